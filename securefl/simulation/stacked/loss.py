"""The loss of a block of clients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from securefl.algorithms.base import Loss
from securefl.metrics import IGNORED
from securefl.norms.padded import Present


def block_loss(loss: Loss, n_clients: int, present: Present | None = None) -> Loss:
    """Build the sum of the clients' losses of outputs (B, K C, ...) and labels (K, B, ...).

    In padded batches, only samples that are `present` count.
    """

    def summed(outputs: Tensor, y_KB: Tensor) -> Tensor:
        outputs_KB = outputs.unflatten(1, (n_clients, -1)).transpose(0, 1).contiguous()
        y_KB = y_KB.contiguous()
        if loss is functional.cross_entropy and not y_KB.is_floating_point():
            return _cross_entropies(outputs_KB, _ignoring(y_KB.long(), present))
        if loss is functional.mse_loss and outputs_KB.shape == y_KB.shape and not present:
            return n_clients * loss(outputs_KB, y_KB)
        sizes = present.sizes if present else [len(outputs)] * n_clients
        each = zip(outputs_KB, y_KB, sizes, strict=True)
        return torch.stack([loss(o[:n], y[:n]) for o, y, n in each]).sum()

    return summed


def _ignoring(y_KB: Tensor, present: Present | None) -> Tensor:
    if not present:
        return y_KB
    absent_KB = present.absent_BK.T
    return y_KB.masked_fill(absent_KB.view(*absent_KB.shape, *(1,) * (y_KB.dim() - 2)), IGNORED)


def _cross_entropies(outputs_KB: Tensor, y_KB: Tensor) -> Tensor:
    """Sum each client's mean over its own labels."""
    losses = functional.cross_entropy(
        outputs_KB.flatten(0, 1), y_KB.flatten(0, 1), ignore_index=IGNORED, reduction="none"
    )
    counted_K = (y_KB != IGNORED).flatten(1).sum(dim=1)
    return (losses.view(len(y_KB), -1).sum(dim=1) / counted_K).sum()
