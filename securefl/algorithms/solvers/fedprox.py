"""FedProx (Li et al., MLSys 2020, Eq. (2)): the local loss plus μ/2 ‖w - w̄‖²."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from securefl.algorithms.solvers.solver import End, Solver, Start, StepContext, trained
from securefl.settings.table import NotNegative


class FedProx(Solver):
    """SGD on the loss and the distance from the global model."""

    name: Literal["fedprox"] = "fedprox"
    mu: NotNegative = 0.01
    """μ; with 0 it is FedAvg, bit for bit."""
    elementwise: ClassVar[bool] = True

    def begin(self, start: Start) -> "_Session":
        """Begin a round; nothing is remembered."""
        return _Session(start, self.mu)


@dataclass(frozen=True, slots=True)
class _Session:
    start: Start
    mu: float

    def gradients(self, around: StepContext) -> None:
        self.start.backward(around)
        moved = self.start.moved()
        for name, gradient in self.start.gradients():
            gradient.add_(moved[name], alpha=self.mu)

    def end(self) -> End:
        return End(trained(self.start), {}, {})
