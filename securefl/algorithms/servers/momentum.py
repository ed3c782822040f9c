"""Server momentum, FedAvgM (Hsu, Qi, Brown 2019, arXiv:1909.06335)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from securefl.algorithms.servers.server_optimiser import Averaged, Stepped
from securefl.types import NamedTensors


@dataclass(frozen=True, slots=True)
class ServerMomentum:
    """v ← β v + Δ,  w̄ ← w̄ + η v."""

    lr: float
    beta: float

    def init(self, parameters: NamedTensors) -> NamedTensors:
        """V = 0."""
        return {name: torch.zeros_like(value) for name, value in parameters.items()}

    def step(self, averaged: Averaged, kept: NamedTensors) -> Stepped:
        """SGD with momentum on -Δ."""
        moving = {name: self.beta * kept[name] + move for name, move in averaged.moves().items()}
        model = {name: averaged.last[name] + self.lr * v for name, v in moving.items()}
        return model, {**kept, **moving}
