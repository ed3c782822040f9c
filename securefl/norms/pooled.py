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
from securefl.exchange.moments import Batch, Gradients, Moments, fused, two_pass
from securefl.norms.find import BatchNorm
from securefl.norms.forward import training_forward
from securefl.norms.padded import moments_of
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
        *own, n_own = moments_of(layer, y)
        if self.moments is Moments.FUSED:
            reference_C = layer.running_mean
            if reference_C is None:
                reference_C = torch.zeros(layer.num_features, dtype=y.dtype, device=y.device)
            pooled = fused(self.exchange, self.name, own, reference_C.clone())
        else:
            pooled = two_pass(self.exchange, self.name, own, self.gradients)
        # The union has n_i / p_i values where p_i is this batch's share of it.
        n = n_own / pooled.share
        return training_forward(layer, y, pooled.mu_C, pooled.var_C, n)


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
