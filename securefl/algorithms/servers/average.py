"""The average itself, as in FedAvg."""

from __future__ import annotations

from dataclasses import dataclass

from securefl.algorithms.servers.server_optimiser import Averaged, Stepped
from securefl.types import NamedTensors


@dataclass(frozen=True, slots=True)
class Average:
    """w̄ ← Σ p_i w_i."""

    def init(self, parameters: NamedTensors) -> NamedTensors:
        """Nothing."""
        del parameters
        return {}

    def step(self, averaged: Averaged, kept: NamedTensors) -> Stepped:
        """The average."""
        return averaged.mean, kept
