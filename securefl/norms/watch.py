"""Watch on batch normalisation: the moments of each layer's input, batch by batch."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from securefl.exchange.moments import along_channels, channel_mean
from securefl.norms.find import BatchNorm, batch_norm_layers, normalises_by_batch
from securefl.norms.patch_forward import in_full_precision

WatchedMoments = dict[str, list[tuple[Tensor, Tensor]]]
"""Moments by layer, for each forward pass: mean and biased variance, both of shape (C,)."""


@contextmanager
def observed_batch_norm(model: nn.Module) -> Iterator[WatchedMoments]:
    """Note the moments of the batches that BN layers get, in every forward pass within."""
    seen: WatchedMoments = {}

    with ExitStack() as handles:
        for name, layer in batch_norm_layers(model).items():
            handles.callback(layer.register_forward_pre_hook(_hook(seen, name, layer)).remove)
        yield seen


def _hook(seen: WatchedMoments, name: str, watched: nn.Module) -> Any:
    """Return a hook of `watched` alone: a copy of the model takes hooks along, and is not noted."""

    def hook(layer: BatchNorm, inputs: tuple[Tensor, ...]) -> None:
        if layer is watched and normalises_by_batch(layer):
            _note(seen, name, inputs)

    return hook


def _note(seen: WatchedMoments, name: str, inputs: tuple[Tensor, ...]) -> None:
    y = in_full_precision(*inputs)
    with torch.no_grad():
        mu_C = channel_mean(y)
        var_C = channel_mean((y - along_channels(mu_C, y)).square())
    seen.setdefault(name, []).append((mu_C, var_C))
