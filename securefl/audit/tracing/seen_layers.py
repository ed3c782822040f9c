"""What layers make of each record by itself: what every statistic of them is a mean of.

Axes: B records of a batch, N records in all, Q elements or channels of all layers together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefl.algorithms.profiling import representing
from securefl.norms.find import batch_norm_layers

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

MAX_ELEMENTS = 512
"""Of more, so many are looked at, evenly spaced: an attack on all would find no less."""
_BATCH = 256


@final
@dataclass(frozen=True, slots=True, eq=False)
class SeenLayers:
    """Mean and mean square of each element over a record's pixels; where it has none, h and h²."""

    first_NQ: Array
    second_NQ: Array


def represented(model: nn.Module, layer: str | None, x: Tensor) -> Array:
    """The layer's representation of each record, as profiles take moments of it, shape (N, Q).

    Raises:
        DataError: as in `algorithms.profiling.profile`.
    """
    with representing(model, layer) as of:
        rows = [of(batch).cpu().numpy() for batch in x.split(_BATCH)]
    return _few(np.concatenate(rows))


def seen_by_profiles(model: nn.Module, layer: str | None, x: Tensor) -> SeenLayers:
    """What a profile is made of."""
    h_NQ = represented(model, layer, x)
    return SeenLayers(h_NQ, h_NQ**2)


@torch.no_grad()
def seen_by_batch_norm(model: nn.Module, x: Tensor) -> SeenLayers:
    """What all BN layers get, of a model at rest: their statistics are means of this.

    In training, layers above the first see records through the batch's own statistics, and differ.
    """
    device = next(model.parameters()).device
    first, second = list[Array](), list[Array]()
    with _inputs_of_batch_norm(model) as inputs:
        for batch in x.split(_BATCH):
            inputs.clear()
            model(batch.to(device))
            y = [i.double().reshape(len(i), i.shape[1], -1) for i in inputs]
            first.append(np.concatenate([i.mean(2).cpu().numpy() for i in y], axis=1))
            second.append(np.concatenate([i.square().mean(2).cpu().numpy() for i in y], axis=1))
    return SeenLayers(_few(np.concatenate(first)), _few(np.concatenate(second)))


@contextmanager
def _inputs_of_batch_norm(model: nn.Module) -> Iterator[list[Tensor]]:
    """Within, the model is at rest, and what its BN layers get is noted."""
    inputs: list[Tensor] = []

    def note(_layer: nn.Module, got: Any) -> None:
        # Copied, as an activation that works in place may come next.
        inputs.append(got[0].clone())

    training = [(module, module.training) for module in model.modules()]
    with ExitStack() as hooks:
        for layer in batch_norm_layers(model).values():
            hooks.callback(layer.register_forward_pre_hook(note).remove)
        model.eval()
        try:
            yield inputs
        finally:
            for module, mode in training:
                module.training = mode


def _few(rows_NQ: Array) -> Array:
    n = rows_NQ.shape[1]
    if n <= MAX_ELEMENTS:
        return rows_NQ
    return rows_NQ[:, np.linspace(0, n - 1, MAX_ELEMENTS).round().astype(int)]
