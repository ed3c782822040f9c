"""FedDyn (Acar et al., ICLR 2021, Algorithm 1).

    client:  w_i ≈ argmin F_i(w) - <h_i, w> + α/2 ‖w - w̄‖²,    h_i ← h_i - α (w_i - w̄)
    server:  h ← h - α (mean w_i - w̄),    w̄ ← mean w_i - h/α

The server's half, `servers.drift`, needs the average alone. The means are weighted like the model,
and h is over all clients where a round has some.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from securefl.algorithms.solvers.solver import End, Solver, Start, StepContext, trained
from securefl.settings.table import Positive
from securefl.types import NamedTensors


class FedDyn(Solver):
    """SGD on the dynamically regularised loss."""

    name: Literal["feddyn"] = "feddyn"
    alpha: Positive = 1.0
    """α. The correction looks back on about 1 / (α η E) rounds, η the learning rate: few local
    steps need a large α."""
    elementwise: ClassVar[bool] = True
    corrected: ClassVar[bool] = True
    server_half: ClassVar[bool] = True
    follows_refinement: ClassVar[bool] = True

    def begin(self, start: Start) -> _Session:
        """Begin a round; h_i, the gradient of F_i at the last w_i, is remembered."""
        return _Session(start, self.alpha, start.remembered())

    def followed(self, client_state: NamedTensors, moved: NamedTensors) -> NamedTensors:
        """Return h_i of a client whose model has `moved` after its last step, as the server's h."""
        return {name: h - self.alpha * moved[name] for name, h in client_state.items()}


@dataclass(frozen=True, slots=True)
class _Session:
    start: Start
    alpha: float
    gradient_own: NamedTensors
    """h_i"""

    def gradients(self, around: StepContext) -> None:
        self.start.backward(around)
        moved = self.start.moved()
        for name, gradient in self.start.gradients():
            gradient.add_(moved[name], alpha=self.alpha).sub_(self.gradient_own[name])

    def end(self) -> End:
        moved = self.start.moved()
        own = {name: self.gradient_own[name] - self.alpha * m for name, m in moved.items()}
        return End(trained(self.start), {}, own)
