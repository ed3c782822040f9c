"""Server momentum, FedAvgM (Hsu, Qi, Brown 2019, arXiv:1909.06335)."""

from typing import Annotated, Literal

from pydantic import Field

from securefl.algorithms.servers.server_optimiser import Averaged, ServerOptimiser, Stepped
from securefl.settings.table import Positive
from securefl.types import NamedTensors


class ServerMomentum(ServerOptimiser):
    """v ← β v + Δ,  w̄ ← w̄ + η v."""

    name: Literal["momentum"] = "momentum"
    lr: Positive = 0.1
    """η"""
    momentum: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.9
    """β"""

    def init(self, parameters: NamedTensors) -> NamedTensors:
        """Return v = 0."""
        return {name: value.new_zeros(value.shape) for name, value in parameters.items()}

    def step(self, averaged: Averaged, kept: NamedTensors) -> Stepped:
        """Take SGD's step with momentum on -Δ."""
        moving = {n: self.momentum * kept[n] + move for n, move in averaged.moves().items()}
        model = {name: averaged.last[name] + self.lr * v for name, v in moving.items()}
        return model, {**kept, **moving}
