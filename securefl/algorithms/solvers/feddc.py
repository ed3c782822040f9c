"""FedDC (Gao et al., "Federated Learning with Local Drift Decoupling and Correction", CVPR 2022).

    client:  w ← w - η (∇F_i(w) + α (w + h_i - w̄) + c - c_i),    h_i ← h_i + w_i - w̄
    server:  w̄ ← Σ_S (p_i / P_S) w_i + Σ_all p_i h_i

S are the round's clients. The server keeps the mean of the h_i over all clients (`servers.drift`),
so clients send w_i alone. The correction c - c_i is the paper's (g_i - g) / (K η), from the moves
g_i of the last round and their mean g. As in the authors' own code, and in SCAFFOLD, the move is
taken without its own correction: c_i is the mean of the gradients ∇F_i + α (w + h_i - w̄) of the
round's K steps, and c = Σ_all p_i c_i rides in a sum over clients as in SCAFFOLD. With the
correction left in, it would answer to itself and change its sign from round to round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from securefl.algorithms.solvers.solver import End, Solver, Start, StepContext, trained, zeros_of
from securefl.settings.table import Positive
from securefl.types import NamedTensors

if TYPE_CHECKING:
    from torch import nn


DRIFT, GRADIENT = "drift", "gradient"


class FedDC(Solver):
    """SGD that is drawn to w̄ - h_i and corrected by what other clients' gradients were."""

    name: Literal["feddc"] = "feddc"
    alpha: Positive = 1.0
    """α. The correction looks back on about 1 / (α η E) rounds, η the learning rate: few local
    steps need a large α."""
    elementwise: ClassVar[bool] = True
    corrected: ClassVar[bool] = True
    server_half: ClassVar[bool] = True
    follows_refinement: ClassVar[bool] = True

    def control(self, model: nn.Module) -> NamedTensors:
        """Return c, zero at first."""
        return zeros_of(model)

    def begin(self, start: Start) -> _Session:
        """Begin a round; h_i and c_i are remembered."""
        kept = start.work.client_state.solver
        drift, own = (
            {n: kept.get(f"{part}/{n}", zero) for n, zero in start.zeros().items()}
            for part in (DRIFT, GRADIENT)
        )
        return _Session(start, self.alpha, drift, own, start.zeros())

    def followed(self, client_state: NamedTensors, moved: NamedTensors) -> NamedTensors:
        """Return what a client remembers whose model has `moved` after its last step."""
        drift = {f"{DRIFT}/{name}": move for name, move in moved.items()}
        return {name: v + drift[name] if name in drift else v for name, v in client_state.items()}


@dataclass(frozen=True, slots=True)
class _Session:
    start: Start
    alpha: float
    drift: NamedTensors
    """h_i"""
    own: NamedTensors
    """c_i"""
    gradient_sum: NamedTensors

    def gradients(self, around: StepContext) -> None:
        self.start.backward(around)
        moved = self.start.moved()
        for name, gradient in self.start.gradients():
            gradient.add_(moved[name] + self.drift[name], alpha=self.alpha)
            self.gradient_sum[name].add_(gradient)
            gradient.add_(self.start.control[name]).sub_(self.own[name])

    def end(self) -> End:
        k = self.start.work.local_steps
        own = {name: value / k for name, value in self.gradient_sum.items()}
        control = {name: self.start.control[name] + c - self.own[name] for name, c in own.items()}
        drift = {name: self.drift[name] + moved for name, moved in self.start.moved().items()}
        kept = {f"{DRIFT}/{name}": value for name, value in drift.items()}
        kept |= {f"{GRADIENT}/{name}": value for name, value in own.items()}
        return End(trained(self.start), control, kept)
