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

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from securefl.algorithms.servers.server_optimiser import Averaged, ServerOptimiser, Stepped
from securefl.settings.table import Positive
from securefl.types import NamedTensors

if TYPE_CHECKING:
    from torch import Tensor


class Adaptive(ServerOptimiser):
    """A step whose size is a parameter's own."""

    lr: Positive = 0.01
    """η"""
    beta1: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.9
    """β₁"""
    tau: Positive = 0.001
    """τ, how adaptive the optimiser is: the less, the more."""

    def init(self, parameters: NamedTensors) -> NamedTensors:
        """Return m = 0, v = τ²."""
        m = {f"m/{name}": w.new_zeros(w.shape) for name, w in parameters.items()}
        v = {f"v/{name}": w.new_full(w.shape, self.tau**2) for name, w in parameters.items()}
        return m | v

    def step(self, averaged: Averaged, kept: NamedTensors) -> Stepped:
        """Take one step for each parameter."""
        model: dict[str, Tensor] = {}
        now = dict(kept)
        for name, delta in averaged.moves().items():
            m = self.beta1 * kept[f"m/{name}"] + (1 - self.beta1) * delta
            v = self.second_moment(kept[f"v/{name}"], delta.square())
            step = self.lr / (v.sqrt() + self.tau)
            model[name] = averaged.mean[name] + (step * m - delta)
            now |= {f"m/{name}": m, f"v/{name}": v}
        return model, now

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the next v, of the last one and Δ²."""


class FedAdagrad(Adaptive):
    """v that sums Δ²."""

    name: Literal["fedadagrad"] = "fedadagrad"
    lr: Positive = 0.1

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """See `Adaptive`."""
        return v + square


class FedAdam(Adaptive):
    """v that is a moving mean of Δ²."""

    name: Literal["fedadam"] = "fedadam"
    beta2: Annotated[float, Field(ge=0, le=1, strict=True)] = 0.99
    """β₂"""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """See `Adaptive`."""
        return self.beta2 * v + (1 - self.beta2) * square


class FedYogi(Adaptive):
    """v that follows the sign of v - Δ²."""

    name: Literal["fedyogi"] = "fedyogi"
    beta2: Annotated[float, Field(ge=0, le=1, strict=True)] = 0.99
    """β₂"""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """See `Adaptive`."""
        return v - (1 - self.beta2) * square * (v - square).sign()
