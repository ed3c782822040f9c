"""FedAdagrad, FedAdam and FedYogi (Reddi et al., "Adaptive Federated Optimization", Algorithm 2).

    m ← β₁ m + (1 - β₁) Δ
    v ← v + Δ²                                   FedAdagrad
    v ← β₂ v + (1 - β₂) Δ²                       FedAdam
    v ← v - (1 - β₂) Δ² sign(v - Δ²)             FedYogi
    w̄ ← w̄ + η m / (√v + τ)

v begins at τ², the least that the paper allows. FedAdam with β₁ = 0, β₂ = 1, τ = ½ and η = 1 is
FedAvg, bit for bit: the step is written so that rounding is the average's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from securefl.algorithms.servers.server_optimiser import Averaged, Stepped
from securefl.types import NamedTensors


class Rule(StrEnum):
    """How v follows Δ²."""

    ADAGRAD = "fedadagrad"
    ADAM = "fedadam"
    YOGI = "fedyogi"


@dataclass(frozen=True, slots=True)
class Adaptive:
    """A step whose size is a parameter's own."""

    rule: Rule
    lr: float
    beta1: float
    beta2: float
    tau: float

    def init(self, parameters: NamedTensors) -> NamedTensors:
        """M = 0, v = τ²."""
        m = {f"m/{name}": torch.zeros_like(value) for name, value in parameters.items()}
        v = {f"v/{name}": torch.full_like(w, self.tau**2) for name, w in parameters.items()}
        return m | v

    def step(self, averaged: Averaged, kept: NamedTensors) -> Stepped:
        """One step for each parameter."""
        model: dict[str, Tensor] = {}
        now = dict(kept)
        for name, delta in averaged.moves().items():
            m = self.beta1 * kept[f"m/{name}"] + (1 - self.beta1) * delta
            v = self._second_moment(kept[f"v/{name}"], delta.square())
            step = self.lr / (v.sqrt() + self.tau)
            model[name] = averaged.mean[name] + (step * m - delta)
            now |= {f"m/{name}": m, f"v/{name}": v}
        return model, now

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        match self.rule:
            case Rule.ADAGRAD:
                return v + square
            case Rule.ADAM:
                return self.beta2 * v + (1 - self.beta2) * square
            case Rule.YOGI:
                return v - (1 - self.beta2) * square * torch.sign(v - square)
