"""Batch normalisation whose batch statistics are moved by constants: control variates for BN.

C channels. A batch of mean μ_B and variance σ_B² is normalised by

    μ = μ_B + d,    σ² = v + (V̄ - V_k)    with d = μ̄ - μ_k and v = σ_B² + d²

where (μ_k, V_k) are a client's own statistics and (μ̄, V̄) those of all. v is the batch's variance
about the mean that normalises it, as FedTAN's Eq. (40) has it, so that the mean of clients' v is
the variance of the union, and their different means count in it.

σ² is an estimate by a difference, which need not be positive. It is no less than half of the one
by a ratio, v · min(1, V̄ / V_k): which is positive, and half of which is less wherever v is what
V_k says.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from securefl.norms.bn_function import batch_moments, normalised
from securefl.norms.find import BatchNorm, normalises_by_batch, scale_and_shift
from securefl.norms.patch_forward import replaced_forwards

Pair: TypeAlias = tuple[Tensor, Tensor]
"""Mean and biased variance of a layer's channels, both of shape (C,)."""
Measured: TypeAlias = Callable[[], dict[str, Pair]]


def corrected_variance(v_C: Tensor, own_C: Tensor, all_C: Tensor) -> Tensor:
    """Return σ² of v, V_k and V̄; positive wherever v and V̄ are."""
    ratio_C = (all_C / own_C.clamp_min(torch.finfo(own_C.dtype).tiny)).clamp(0, 1)
    return torch.maximum(v_C + (all_C - own_C), v_C * ratio_C / 2)


@dataclass(slots=True)
class _CorrectedForward:
    """Forward of one BN layer while its batch statistics are corrected."""

    layer: BatchNorm
    own: Pair
    of_all: Pair
    seen: list[Pair] = field(default_factory=list)
    """Statistics (μ_B, v) of each batch."""

    def __call__(self, y: Tensor) -> Tensor:
        layer = self.layer
        if not normalises_by_batch(layer):
            return type(layer).forward(layer, y)
        mu_B_C, var_B_C = batch_moments(y)
        shift_C = self.of_all[0] - self.own[0]
        v_C = var_B_C + shift_C.square()
        self.seen.append((mu_B_C.detach(), v_C.detach()))
        var_C = corrected_variance(v_C, self.own[1], self.of_all[1])
        affine = scale_and_shift(layer, mu_B_C)
        return normalised(y, (mu_B_C + shift_C, var_C), affine, layer.eps)


@contextmanager
def corrected_batch_norm(
    model: nn.Module, own: Mapping[str, Pair], of_all: Mapping[str, Pair]
) -> Iterator[Measured]:
    """Correct the batch statistics of the BN layers in `own` within the block.

    Running statistics are neither read nor written. The corrections are constants of the gradient.

    Args:
        model: with BN layers anywhere in it, whose forward is torch's.
        own: the client's (μ_k, V_k), by layer.
        of_all: (μ̄, V̄), by layer.

    Yields:
        A function that returns, by layer, the mean of (μ_B, v) over the batches so far; without
        those that had none.
    """
    corrected: dict[str, _CorrectedForward] = {}

    def forward(name: str, layer: BatchNorm) -> Callable[[Tensor], Tensor]:
        if name not in own:  # the model's own `train()` keeps it in evaluation mode
            return partial(type(layer).forward, layer)
        corrected[name] = _CorrectedForward(layer, own[name], of_all[name])
        return corrected[name]

    with replaced_forwards(model, forward):
        yield lambda: {name: _mean(of.seen) for name, of in corrected.items() if of.seen}


def _mean(seen: list[Pair]) -> Pair:
    mu_C, v_C = (torch.stack(values).mean(0) for values in zip(*seen, strict=True))
    return mu_C, v_C
