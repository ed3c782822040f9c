"""A server optimiser takes the global model's step from the average of the clients' models.

w̄ is the model that the round began with, Δ = Σ p_i w_i - w̄ the clients' mean move, or what takes
the place of a negative gradient (Reddi et al., "Adaptive Federated Optimization", ICLR 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

from securefl.types import NamedTensors

Stepped: TypeAlias = tuple[NamedTensors, NamedTensors]
"""The next model, and what the server keeps now."""


@dataclass(frozen=True, slots=True)
class Averaged:
    """What a round came to; the names are those that travelled in it."""

    last: NamedTensors
    """w̄"""
    mean: NamedTensors
    """Σ p_i w_i"""
    control: NamedTensors
    """The total of what the solver exchanges beside the model."""
    share: float
    """P, the weight of the clients whose models these are, as a share of all clients'."""

    def moves(self) -> dict[str, Tensor]:
        """Δ, by name."""
        return {name: w - self.last[name] for name, w in self.mean.items()}


class ServerOptimiser(Protocol):
    """Two steps over plain values; it sees nothing that is not public to the server."""

    def init(self, parameters: NamedTensors) -> NamedTensors:
        """What the server keeps, as it is before the first round."""

    def step(self, averaged: Averaged, kept: NamedTensors) -> Stepped:
        """The next model, and what is kept for the step after."""
