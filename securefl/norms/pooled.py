"""Batch normalisation with the moments of all clients' batches: FedTAN's layer.

y is normalised by (μ, σ²) over the union of the clients' batches, and the backward pass is that of
the union too (FedTAN Algorithms 2 and 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from securefl.errors import DataError
from securefl.exchange.base import Exchange
from securefl.exchange.moments import (
    Batch,
    Gradients,
    Moments,
    Pooled,
    fused,
    two_pass,
)
from securefl.norms.find import BatchNorm
from securefl.norms.normalised import normalised
from securefl.norms.replaced import replaced_forwards


@dataclass(slots=True)
class _PooledForward:
    """Stands in for one BN layer's `forward` while its batches are pooled."""

    name: str
    layer: BatchNorm
    exchange: Exchange
    moments: Moments
    gradients: Gradients
    called: bool = False

    def __call__(self, y: Batch) -> Tensor:
        if self.called:
            raise DataError(
                f"BN layer {self.name!r} is used twice in one forward pass; FedTAN pools each "
                "layer once a step: give each use a layer of its own"
            )
        self.called = True
        layer = self.layer
        if self.moments is Moments.FUSED:
            reference_C = layer.running_mean
            if reference_C is None:
                reference_C = torch.zeros(layer.num_features, dtype=y.dtype, device=y.device)
            pooled = fused(self.exchange, self.name, y, reference_C.clone())
        else:
            pooled = two_pass(self.exchange, self.name, y, self.gradients)
        self._follow(y, pooled)
        affine = [torch.ones_like(pooled.mu_C), torch.zeros_like(pooled.mu_C)]
        if layer.affine:
            affine = [layer.weight, layer.bias]
        return normalised(y, (pooled.mu_C, pooled.var_C), affine, layer.eps)

    def _follow(self, y: Batch, pooled: Pooled) -> None:
        """Running statistics move towards the pooled ones, as PyTorch's would."""
        layer = self.layer
        if layer.running_mean is None or layer.running_var is None or layer.momentum is None:
            return
        # PyTorch keeps the unbiased variance, what travels is the biased one. The union has
        # n_i / p_i values where p_i is this batch's share of it.
        n = y.numel() / y.shape[1] / pooled.share
        layer.running_mean.lerp_(pooled.mu_C.detach(), layer.momentum)
        layer.running_var.lerp_(pooled.var_C.detach() * (n / (n - 1)), layer.momentum)
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked += 1


@contextmanager
def pooled_batch_norm(
    model: nn.Module, exchange: Exchange, moments: Moments, gradients: Gradients
) -> Iterator[None]:
    """Within, the model's BN layers see the batches of all clients, forward and backward.

    Every client of the round must run the same layers. Raises DataError where one runs twice, or
    has a forward of its own.
    """
    with replaced_forwards(
        model, lambda name, layer: _PooledForward(name, layer, exchange, moments, gradients)
    ):
        yield
