"""The server's half of FedDyn (Acar et al., ICLR 2021, Algorithm 1); see `solvers.feddyn`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from securefl.algorithms.servers.base import Averaged, Stepped
from securefl.types import NamedTensors

ALL = "feddyn/weight"


@dataclass(frozen=True, slots=True)
class FedDynServer:
    """h ← h - α P Δ,  w̄ ← Σ p_i w_i - h / α.

    P is the weight of the clients present as a share of all, so that h stays Σ p_i h_i where some
    are missing. All is `everyone`, or the largest weight of any round so far.
    """

    alpha: float
    everyone: float = 0.0
    """The weight of all clients, where it is known."""

    def init(self, parameters: NamedTensors) -> NamedTensors:
        """H = 0."""
        like = next(iter(parameters.values()))
        zeros = {name: torch.zeros_like(value) for name, value in parameters.items()}
        return {**zeros, ALL: like.new_tensor(self.everyone, dtype=torch.float64)}

    def step(self, averaged: Averaged, kept: NamedTensors) -> Stepped:
        """The average, moved on by what the clients' gradients still are."""
        everyone = kept[ALL].clamp_min(averaged.weight)
        step = self.alpha * averaged.weight / float(everyone)
        h = {name: kept[name] - step * move for name, move in averaged.moves().items()}
        model = {name: w - h[name] / self.alpha for name, w in averaged.mean.items()}
        return model, {**kept, **h, ALL: everyone}
