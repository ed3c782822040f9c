"""Batch normalisation of clients side by side, of whose batches some are padded to one size.

Axes: K clients, B batch, C channels of all clients, K times as many as one has. What is behind a
client's own samples has no part in its moments, and so no gradient.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from securefl.norms.bn_function import batch_moments, training_forward
from securefl.norms.find import BatchNorm, batch_norm_layers, normalises_by_batch
from securefl.norms.patch_forward import replaced_forwards

_PRESENT = "_present_in_batch"
"""Attribute of a BN layer that says which samples are present, where some are not."""


@dataclass(frozen=True, slots=True, eq=False)
class Present:
    """Presence of samples in a batch padded to one size: of each client, the first ones."""

    sizes: Sequence[int]
    n_K: Tensor
    """Sizes in double precision, shape (K,)."""
    absent_BK: Tensor
    """Mask of the samples behind a client's own, shape (B, K)."""
    share_BK: Tensor
    """Shares 1 / n of a client's own samples, 0 of others, shape (B, K)."""

    @classmethod
    def of(cls, sizes: Sequence[int], device: torch.device) -> "Present | None":
        """Return the presence for these sizes; None where all are of one size."""
        if min(sizes) == max(sizes):
            return None
        n_K = torch.tensor(sizes, dtype=torch.float64, device=device)
        absent_BK = torch.arange(max(sizes), device=device).unsqueeze(1) >= n_K
        return cls(sizes, n_K, absent_BK, ~absent_BK / n_K)

    def moments(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return μ, the biased σ² and the number of values of each channel."""
        n_clients = len(self.n_K)
        y_BKCS = y.reshape(len(y), n_clients, y.shape[1] // n_clients, -1)
        share_BK11 = self.share_BK[:, :, None, None].to(y.dtype)
        mu_KC1 = (share_BK11 * y_BKCS).sum(0).mean(-1, keepdim=True)
        apart_BKCS = y_BKCS - mu_KC1.detach()  # the gradient by way of μ is 0
        var_KC = (share_BK11 * apart_BKCS.square()).sum(0).mean(-1)
        # Channels of one client stand together, so its count stands at each of them.
        n_C = (self.n_K * y_BKCS.shape[3]).repeat_interleave(y_BKCS.shape[2])
        return mu_KC1.flatten(), var_KC.flatten(), n_C.to(y.dtype)


def moments_of(layer: BatchNorm, y: Tensor) -> tuple[Tensor, Tensor, float | Tensor]:
    """Return μ, biased σ² and the number of values of a layer's batch; by channel if padded."""
    present: Present | None = getattr(layer, _PRESENT, None)
    if present:
        return present.moments(y)
    return *batch_moments(y), y.numel() / y.shape[1]


@dataclass(frozen=True, slots=True)
class _PaddedForward:
    """Forward of one BN layer while batches are padded."""

    layer: BatchNorm

    def __call__(self, y: Tensor) -> Tensor:
        layer = self.layer
        if not normalises_by_batch(layer):
            return type(layer).forward(layer, y)
        return training_forward(layer, y, *moments_of(layer, y))


@contextmanager
def padded_batch_norm(model: nn.Module, present: Present | None) -> Iterator[None]:
    """Show the model's BN layers in training the present samples alone, within the block.

    As always where None. Raises DataError where a layer has a forward of its own.
    """
    if present is None:
        yield
        return
    layers = batch_norm_layers(model).values()
    with replaced_forwards(model, lambda _name, layer: _PaddedForward(layer)):
        for layer in layers:
            setattr(layer, _PRESENT, present)
        try:
            yield
        finally:
            for layer in layers:
                delattr(layer, _PRESENT)
