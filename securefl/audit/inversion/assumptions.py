"""Assumptions of attackers on BN's statistics, or what they recover of these from the gradient.

Behind a layer y = W x + b, BN makes γ (y - μ)/σ + β. With g the gradient for its output, δ = γ g/σ
that for y, and sums over all values of a channel,

    ∂β = Σ g,   ∂γ = Σ g (y - μ)/σ,   ∂b = Σ δ = γ ∂β/σ,   W·∂W + b ∂b = Σ δ y,

so that σ = γ ∂β / ∂b and μ/σ = ((W·∂W + b ∂b)/γ - ∂γ) / ∂β: who sees the gradients of weights
needs nothing else. Without a bias μ/σ alone follows.

Axes: N mini-batches, each attacked by itself; C channels.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from securefl.audit.inversion.target import (
    Belief,
    Beliefs,
    Gradient,
    Statistics,
    batch_statistics,
)
from securefl.norms.find import BatchNorm, batch_norm_layers

LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
SMALLEST = 1e-6
"""Smallest share of the largest divisor in its layer that says more than rounding."""


@dataclass(frozen=True, slots=True)
class RecoveredStatistics:
    """Statistics of one BN layer; NaN where the gradient does not tell."""

    ratio_C: Tensor
    """Ratio μ / √(σ² + ε)."""
    sigma_C: Tensor
    """Deviation √(σ² + ε)."""


def recovered_statistics(
    model: nn.Module, gradient: Gradient, x: Tensor
) -> Mapping[str, RecoveredStatistics]:
    """Return what a mini-batch's gradient tells of the constants that BN layers were given.

    Args:
        model: as the client got it.
        gradient: by the names of the model's parameters.
        x: any batch, to see which layer stands in front of which.
    """
    layers, feeds = batch_norm_layers(model), feeding(model, x)
    return {
        name: _solved(model, gradient, feeds[name], name, layers[name])
        for name in layers
        if name in feeds and f"{name}.bias" in gradient and f"{name}.weight" in gradient
    }


def _solved(
    model: nn.Module, gradient: Gradient, front: str, name: str, layer: BatchNorm
) -> RecoveredStatistics:
    gamma_C = layer.weight.detach()
    shift_C, slope_C = gradient[f"{name}.bias"], gradient[f"{name}.weight"]
    weight = model.get_parameter(f"{front}.weight").detach()
    product_C = (weight * gradient[f"{front}.weight"]).flatten(1).sum(1)
    sigma_C = torch.full_like(gamma_C, torch.nan)
    if f"{front}.bias" in gradient:
        bias_gradient_C = gradient[f"{front}.bias"]
        product_C = product_C + model.get_parameter(f"{front}.bias").detach() * bias_gradient_C
        sigma_C = _divided(gamma_C * shift_C, bias_gradient_C)
        sigma_C = torch.where(sigma_C >= layer.eps**0.5, sigma_C, torch.nan)
    return RecoveredStatistics(_divided(_divided(product_C, gamma_C) - slope_C, shift_C), sigma_C)


def _divided(over_C: Tensor, under_C: Tensor) -> Tensor:
    clear_C = under_C.abs() > SMALLEST * under_C.abs().max()
    return torch.where(clear_C, over_C / torch.where(clear_C, under_C, 1), torch.nan)


def feeding(model: nn.Module, x: Tensor) -> dict[str, str]:
    """Return the linear layer or convolution whose output each BN layer gets, where one does."""
    outputs: list[tuple[Tensor, str]] = []
    found: dict[str, str] = {}

    def note_output(name: str) -> Any:
        return lambda _layer, _inputs, output: outputs.append((output, name))

    def note_input(name: str) -> Any:
        def note(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            for output, front in outputs:
                if output is inputs[0]:
                    found[name] = front

        return note

    watched = copy.deepcopy(model).eval()
    for name, module in watched.named_modules():
        if type(module) in LINEAR:
            module.register_forward_hook(note_output(name))
    for name, layer in batch_norm_layers(watched).items():
        layer.register_forward_pre_hook(note_input(name))
    with torch.no_grad():
        watched(x)
    uses = [front for _, front in outputs]
    return {name: front for name, front in found.items() if uses.count(front) == 1}


def fixed(model: nn.Module, statistics: Statistics, n: int) -> dict[str, Belief]:
    """Return these statistics, of shape (C,) or (N, C), for each of n mini-batches."""
    layers = batch_norm_layers(model)
    return {name: _belief(layers[name], pair, n) for name, pair in statistics.items()}


def _belief(layer: BatchNorm, pair: tuple[Tensor, Tensor], n: int) -> Belief:
    mu_NC, var_NC = (value.detach().expand(n, -1) for value in pair)
    sigma_NC = (var_NC + layer.eps).sqrt()
    none = torch.zeros_like(mu_NC)
    return Belief(mu_NC / sigma_NC, sigma_NC.log(), none, none)


def freed(beliefs: Beliefs) -> dict[str, Belief]:
    """Return the same beliefs as a start, with nothing taken for known."""
    ones = {name: torch.ones_like(belief.ratio_NC) for name, belief in beliefs.items()}
    return {
        name: Belief(belief.ratio_NC, belief.log_sigma_NC, ones[name], ones[name])
        for name, belief in beliefs.items()
    }


def derived(model: nn.Module, gradients: Gradient, x: Tensor, start: Beliefs) -> dict[str, Belief]:
    """Return what each of N gradients gives away; `start`, left free, where it says nothing."""
    found = freed(start)
    n = len(next(iter(gradients.values())))
    told = [
        recovered_statistics(model, {k: v[i] for k, v in gradients.items()}, x) for i in range(n)
    ]
    for name in told[0]:
        ratio_NC = torch.stack([one[name].ratio_C for one in told])
        log_NC = torch.stack([one[name].sigma_C for one in told]).log()
        open_ratio, open_sigma = ratio_NC.isnan(), log_NC.isnan()
        found[name] = Belief(
            torch.where(open_ratio, start[name].ratio_NC, ratio_NC),
            torch.where(open_sigma, start[name].log_sigma_NC, log_NC),
            open_ratio.to(ratio_NC.dtype),
            open_sigma.to(log_NC.dtype),
        )
    return found


def fresh(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """Return μ = 0 and σ² = 1 for each layer."""
    like = next(model.parameters())
    return {
        name: (like.new_zeros(layer.num_features), like.new_ones(layer.num_features))
        for name, layer in batch_norm_layers(model).items()
    }


def measured(model: nn.Module, x: Tensor) -> Statistics:
    """Return the statistics of public samples as one batch."""
    own = batch_statistics(model, x)
    return {name: (mu_C.detach(), var_C.detach()) for name, (mu_C, var_C) in own.items()}
