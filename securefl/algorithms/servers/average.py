"""The average itself, as in FedAvg."""

from typing import ClassVar, Literal

from securefl.algorithms.servers.server_optimiser import Averaged, ServerOptimiser, Stepped
from securefl.types import NamedTensors


class Average(ServerOptimiser):
    """w̄ ← Σ p_i w_i."""

    name: Literal["average"] = "average"
    takes_step: ClassVar[bool] = False

    def step(self, averaged: Averaged, kept: NamedTensors) -> Stepped:
        """Return the average."""
        return averaged.mean, kept
