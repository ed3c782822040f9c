"""What attackers know or assume of BN's statistics, and which of it they leave free.

Axes: N mini-batches, each attacked by itself; C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from securefl.audit.inversion.recover_bn_statistics import recovered_statistics
from securefl.audit.inversion.victim_gradient import (
    Assumed,
    Belief,
    Beliefs,
    Gradient,
    Statistics,
    batch_gradient,
)
from securefl.norms.find import BatchNorm, batch_norm_layers


def fixed(model: nn.Module, statistics: Statistics, n: int) -> dict[str, Belief]:
    """These statistics, of shape (C,) or (N, C), for each of n mini-batches."""
    layers = batch_norm_layers(model)
    return {name: _belief(layers[name], pair, n) for name, pair in statistics.items()}


def _belief(layer: BatchNorm, pair: tuple[Tensor, Tensor], n: int) -> Belief:
    mu_NC, var_NC = (value.detach().expand(n, -1) for value in pair)
    sigma_NC = (var_NC + layer.eps).sqrt()
    none = torch.zeros_like(mu_NC)
    return Belief(mu_NC / sigma_NC, sigma_NC.log(), none, none)


def freed(beliefs: Beliefs) -> dict[str, Belief]:
    """The same as a start, with nothing taken for known."""
    ones = {name: torch.ones_like(belief.ratio_NC) for name, belief in beliefs.items()}
    return {
        name: Belief(belief.ratio_NC, belief.log_sigma_NC, ones[name], ones[name])
        for name, belief in beliefs.items()
    }


def derived(model: nn.Module, gradients: Gradient, x: Tensor, start: Beliefs) -> dict[str, Belief]:
    """What each of N gradients gives away; `start`, left free, where it says nothing."""
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
    """μ = 0 and σ² = 1."""
    like = next(model.parameters())
    return {
        name: (like.new_zeros(layer.num_features), like.new_ones(layer.num_features))
        for name, layer in batch_norm_layers(model).items()
    }


def measured(model: nn.Module, x: Tensor) -> Statistics:
    """Those that this one batch has, each layer normalised by them: of public images, say."""
    labels = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    _, own = batch_gradient(model, parameters, x, labels, Assumed())
    return {name: (mu_C.detach(), var_C.detach()) for name, (mu_C, var_C) in own.items()}
