"""Mini-batch SGD, FedAvg's own solver."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from securefl.algorithms.solvers.solver import End, Solver, Start, StepContext, trained


class SGD(Solver):
    """The gradient of the batch's loss."""

    name: Literal["sgd"] = "sgd"
    elementwise: ClassVar[bool] = True
    holds_to_global: ClassVar[bool] = False

    def begin(self, start: Start) -> "_Session":
        """Begin a round; nothing is remembered."""
        return _Session(start)


@dataclass(frozen=True, slots=True)
class _Session:
    start: Start

    def gradients(self, around: StepContext) -> None:
        self.start.backward(around)

    def end(self) -> End:
        return End(trained(self.start), {}, {})
