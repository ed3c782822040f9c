"""Batch normalisation by a learnable mixture of the batch's statistics and global ones.

C channels. With global (μ̄, V̄), constants, and the batch's (μ_B, σ_B²), a channel is normalised by

    μ = (1 - a) μ̄ + a μ_B,    σ² = (1 - a) V̄ + a σ_B²    with a = sigmoid(α)

α learns by gradients beside γ and β (Chen et al., Hybrid Batch Normalisation, ICML 2025).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from securefl.norms.bn_function import batch_moments, normalised
from securefl.norms.find import (
    BatchNorm,
    batch_norm_layers,
    batch_normalising,
    normalises_by_batch,
    scale_and_shift,
)
from securefl.norms.patch_forward import replaced_forwards
from securefl.types import NamedTensors

FACTOR = "mixing_factor"
"""Name of α in a BN layer, a parameter while batches are mixed."""


def factors_like(model: nn.Module) -> dict[str, Tensor]:
    """Return tensors of the shape and type of each α, by the names of parameters."""
    names = {id(module): name for name, module in model.named_modules()}
    return {
        ".".join(filter(None, (names[id(layer)], FACTOR))): layer.running_mean
        for layer in batch_norm_layers(model).values()
        if layer.running_mean is not None
    }


@dataclass(frozen=True, slots=True)
class _MixedForward:
    """Forward of one BN layer with α and running statistics."""

    layer: BatchNorm

    def __call__(self, y: Tensor) -> Tensor:
        layer = self.layer
        if not normalises_by_batch(layer):
            return type(layer).forward(layer, y)
        mixed = torch.sigmoid(layer.get_parameter(FACTOR))
        batch = batch_moments(y)
        of_all = layer.get_buffer("running_mean"), layer.get_buffer("running_var")
        mu_C, var_C = (torch.lerp(g, b, mixed) for g, b in zip(of_all, batch, strict=True))
        return normalised(y, (mu_C, var_C), scale_and_shift(layer, mu_C), layer.eps)


@contextmanager
def mixed_batch_norm(model: nn.Module, factors: NamedTensors) -> Iterator[dict[str, Tensor]]:
    """Mix statistics in the model's BN layers that normalise by the batch, within the block.

    Running statistics are the global ones, and are not moved. The layers have a further parameter,
    α, for as long.

    Args:
        model: with BN layers anywhere in it that keep running statistics, their forward torch's.
        factors: α by layer; 0 of those that are not named, which mix half and half.

    Yields:
        α by layer, the parameters themselves.
    """
    layers = batch_normalising(model)
    learnt: dict[str, Tensor] = {}
    for name, layer in layers.items():
        like = layer.get_buffer("running_mean")
        start = factors.get(name, torch.zeros_like(like)).to(like)
        learnt[name] = parameter = nn.Parameter(start.clone())
        layer.register_parameter(FACTOR, parameter)

    def forward(name: str, layer: BatchNorm) -> Callable[[Tensor], Tensor]:
        return _MixedForward(layer) if name in layers else partial(type(layer).forward, layer)

    try:
        with replaced_forwards(model, forward):
            yield learnt
    finally:
        for layer in layers.values():
            delattr(layer, FACTOR)
