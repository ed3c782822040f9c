"""A client's own samples: tensors or a torch Dataset, and mini-batches of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from securefl.errors import DataError

BATCH = 1024
"""Samples at a time, where nothing is learnt from them."""
ClientData = tuple[Tensor, Tensor] | Dataset[tuple[Tensor, Tensor]]


class Samples(Protocol):
    """Samples by index."""

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The batch (x, y) of these indices."""


@dataclass(frozen=True, slots=True)
class TensorSamples:
    """Samples that are in memory as they are."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """See `Samples.take`."""
        x, y = self.x, self.y
        return x.index_select(0, index.to(x.device)), y.index_select(0, index.to(y.device))


@dataclass(frozen=True, slots=True)
class _DatasetSamples:
    dataset: Dataset[tuple[Tensor, Tensor]]

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # sized, as `samples` has checked

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        x, y = default_collate([self.dataset[i] for i in index.tolist()])
        return x, y


def samples(data: ClientData, owner: str) -> Samples:
    """One client's data, checked.

    Raises:
        DataError: fewer than two samples (batch normalisation needs two), x and y of different
            lengths, values that are not finite, or neither tensors nor a sized Dataset.
    """
    if isinstance(data, tuple) and len(data) == 2:
        x, y = data
        if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
            raise DataError(
                f"{owner}: ({type(x).__name__}, {type(y).__name__}) where (x, y) tensors are "
                "needed: torch.as_tensor makes them"
            )
        if len(x) != len(y):
            raise DataError(f"{owner}: {len(x)} inputs but {len(y)} labels")
        if x.is_floating_point() and not torch.isfinite(x).all():
            raise DataError(f"{owner}: inputs hold NaN or infinity; clean them first")
        found: Samples = TensorSamples(x, y)
    elif isinstance(data, Dataset) and hasattr(data, "__len__"):
        found = _DatasetSamples(data)
    else:
        raise DataError(
            f"{owner}: expected (x, y) tensors or a torch Dataset with a length, "
            f"got {type(data).__name__}"
        )
    if len(found) < 2:
        raise DataError(f"{owner}: {len(found)} samples; batch normalisation needs at least two")
    return found


def in_order(data: Samples, batch_size: int = BATCH) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of all samples, each once; the last one has what is left."""
    for index in torch.arange(len(data)).split(batch_size):
        yield data.take(index)


def whole(data: ClientData, owner: str) -> tuple[Tensor, Tensor]:
    """All of one party's samples as tensors; raises DataError as `samples`."""
    found = samples(data, owner)
    return found.take(torch.arange(len(found)))


def minibatches(
    data: Samples, batch_size: int, rng: torch.Generator, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches without end, drawn without replacement; each permutation of the data is a new one.

    Each has min(batch_size, n) samples.
    """
    where = data.x.device if isinstance(data, TensorSamples) else torch.device("cpu")
    for index in batch_indices(len(data), batch_size, rng, where):
        x, y = data.take(index)
        yield x.to(device), y.to(device)


def batch_indices(
    n_samples: int, batch_size: int, rng: torch.Generator, device: torch.device
) -> Iterator[Tensor]:
    """Which samples each of `minibatches` has, on a device that gets a permutation at a time."""
    while True:
        yield from batches_of(torch.randperm(n_samples, generator=rng).to(device), batch_size)


def batches_of(order: Tensor, batch_size: int) -> Iterator[Tensor]:
    """A permutation in batches of one size, without what is left over."""
    size = min(batch_size, len(order))
    for start in range(0, len(order) - size + 1, size):
        yield order[start : start + size]


def batches_in_epoch(data: Samples, batch_size: int) -> int:
    """How many of `minibatches` one permutation of the data gives."""
    return len(data) // min(batch_size, len(data))
