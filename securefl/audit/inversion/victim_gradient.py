"""The gradient of one mini-batch, under statistics that somebody assumes of the model's BN layers.

A client's own gradient, and what an attacker compares it with, are the same function.
Axes: B batch, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional

from securefl.exchange.moments import Batch, along_channels, channel_mean
from securefl.norms.find import BatchNorm, batch_norm_layers, scale_and_shift
from securefl.norms.patch_forward import replaced_forwards
from securefl.types import NamedTensors

Pair: TypeAlias = tuple[Tensor, Tensor]
"""Two vectors of a layer, each of shape (C,): μ and σ², or gradients for β and γ."""
Statistics: TypeAlias = Mapping[str, Pair]
"""μ and σ² of each BN layer, by its dotted name."""
Gradient: TypeAlias = NamedTensors
"""By the dotted names of the model's parameters."""


@dataclass(frozen=True, slots=True)
class Belief:
    """One layer's statistics as μ/σ and log σ, with σ = √(σ² + ε); all of shape (N, C)."""

    ratio_NC: Tensor
    log_sigma_NC: Tensor
    free_ratio_NC: Tensor
    """1 where the attack may move μ/σ, 0 where it is known or believed."""
    free_sigma_NC: Tensor

    def free(self) -> bool:
        """Whether anything is."""
        return bool(self.free_ratio_NC.any() or self.free_sigma_NC.any())


Beliefs: TypeAlias = Mapping[str, Belief]
"""By layer; without an entry, the rebuilt batch's own statistics normalise it."""


def running(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """The model's running statistics, of the layers that keep any."""
    return {
        name: (layer.running_mean.detach().clone(), layer.running_var.detach().clone())
        for name, layer in batch_norm_layers(model).items()
        if layer.running_mean is not None and layer.running_var is not None
    }


@dataclass(frozen=True, slots=True)
class Assumed:
    """How a mini-batch is normalised."""

    given: Statistics = field(default_factory=dict)
    """Constants of the gradient. A layer that is not named normalises the batch by its own
    statistics, and the gradient goes through them: FedAvg's BN."""
    totals: Statistics = field(default_factory=dict)
    """FedTAN: Σ p_j ∂F_j/∂β and Σ p_j ∂F_j/∂γ over all clients, from which follow the gradients for
    the pooled statistics, which `given` has then."""


def batch_gradient(
    model: nn.Module, parameters: NamedTensors, x: Batch, y: Tensor, assumed: Assumed
) -> tuple[Gradient, Statistics]:
    """The gradient of the mean cross-entropy for `parameters`, and the batch's own statistics.

    Everything is differentiable, and can be mapped (`torch.func.vmap`) over problems.
    """

    def loss(parameters: NamedTensors) -> tuple[Tensor, Statistics]:
        layers: dict[str, _AssumedForward] = {}

        def forward(name: str, layer: BatchNorm) -> _AssumedForward:
            given, totals = assumed.given.get(name), assumed.totals.get(name)
            layers[name] = _AssumedForward(name, layer, given, totals)
            return layers[name]

        with replaced_forwards(model, forward):
            scores = functional_call(model, dict(parameters), (x,))
        found = functional.cross_entropy(scores, y)
        for layer in layers.values():
            found = found + layer.pooled_part
        return found, {name: layer.own for name, layer in layers.items()}

    gradient, own = grad(loss, has_aux=True)(dict(parameters))
    return gradient, own


@dataclass(slots=True)
class _AssumedForward:
    """Stands in for one BN layer's `forward`."""

    name: str
    layer: BatchNorm
    given: Pair | None
    totals: Pair | None
    own: Pair = field(init=False)
    pooled_part: Tensor = field(init=False)

    def __call__(self, y: Batch) -> Tensor:
        mu_i_C = channel_mean(y)
        mu_C = mu_i_C if self.given is None else self.given[0]
        var_i_C = channel_mean((y - along_channels(mu_i_C, y)).square())
        self.own = (mu_i_C, var_i_C)
        var_C = var_i_C if self.given is None else self.given[1]
        scale_C = torch.rsqrt(var_C + self.layer.eps)
        self.pooled_part = self._pooled_part(y, mu_C, scale_C)
        x = (y - along_channels(mu_C, y)) * along_channels(scale_C, y)
        weight_C, bias_C = scale_and_shift(self.layer, mu_C)
        return x * along_channels(weight_C, y) + along_channels(bias_C, y)

    def _pooled_part(self, y: Batch, mu_C: Tensor, scale_C: Tensor) -> Tensor:
        """A term whose gradient is what FedTAN sends back through μ and σ² (Eq. (41)).

        ∂F/∂μ = -γ/σ Σ p_j ∂F_j/∂β and ∂F/∂σ² = -γ/(2σ²) Σ p_j ∂F_j/∂γ.
        """
        if self.totals is None:
            return y.new_zeros(())
        gamma_C = scale_and_shift(self.layer, scale_C)[0].detach()
        shift_C, slope_C = self.totals
        mu_i_C, var_i_C = channel_mean(y), channel_mean((y - along_channels(mu_C, y)).square())
        mean_part = gamma_C * scale_C * shift_C * mu_i_C
        return -(mean_part + gamma_C * scale_C.square() / 2 * slope_C * var_i_C).sum()
