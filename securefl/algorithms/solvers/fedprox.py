"""FedProx (Li et al., MLSys 2020, Eq. (2)): the local loss plus μ/2 ‖w - w̄‖²."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from securefl.algorithms.solvers.solver import End, Start, StepContext, trained
from securefl.types import NamedTensors


@dataclass(frozen=True, slots=True)
class FedProx:
    """With μ = 0 it is FedAvg, bit for bit."""

    mu: float

    def control(self, model: nn.Module) -> NamedTensors:
        """Nothing."""
        del model
        return {}

    def begin(self, start: Start) -> _Session:
        """Nothing is remembered."""
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
