"""Mini-batch SGD, FedAvg's own solver."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from securefl.algorithms.solvers.solver import End, Start, StepContext, trained
from securefl.types import NamedTensors


@dataclass(frozen=True, slots=True)
class SGD:
    """The gradient of the batch's loss."""

    def control(self, model: nn.Module) -> NamedTensors:
        """Nothing."""
        del model
        return {}

    def begin(self, start: Start) -> _Session:
        """Nothing is remembered."""
        return _Session(start)


@dataclass(frozen=True, slots=True)
class _Session:
    start: Start

    def gradients(self, around: StepContext) -> None:
        self.start.backward(around)

    def end(self) -> End:
        return End(trained(self.start), {}, {})
