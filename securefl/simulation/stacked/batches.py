"""Mini-batches of a block of clients."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from securefl.data.resident import Resident
from securefl.data.samples import Samples, TensorSamples, batches_of


def block_batches(
    data: Mapping[str, Samples],
    together: Resident | None,
    batch_size: int,
    generators: Sequence[torch.Generator],
    device: torch.device,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield `minibatches` of each client, side by side: x (B, K C, ...) and y (K, B, ...).

    Shorter batches are padded to the longest with a sample of their own.
    """
    longest = min(batch_size, max(map(len, data.values())))
    drawers = [
        _Drawer(len(samples), longest, rng, together.start[name] if together else 0)
        for (name, samples), rng in zip(data.items(), generators, strict=True)
    ]
    first = next(iter(data.values()))
    x = together.x if together else first.x if isinstance(first, TensorSamples) else None
    indices = _indices(drawers, torch.device("cpu") if x is None else x.device)
    while together:
        index_BK = torch.stack(next(indices), dim=1)
        x, y = together.take(index_BK.flatten())
        yield (
            x.unflatten(0, index_BK.shape).flatten(1, 2),
            y.unflatten(0, index_BK.shape).transpose(0, 1),
        )
    while True:
        labels: list[Tensor] = []
        for i, (samples, index) in enumerate(zip(data.values(), next(indices), strict=True)):
            x, y = samples.take(index)
            if not labels:
                x_BK = x.new_empty((len(x), len(data), *x.shape[1:]))
            x_BK[:, i] = x  # at once, while it is in the processor's cache
            labels.append(y)
        yield x_BK.flatten(1, 2).to(device), torch.stack(labels).to(device)


@dataclass(frozen=True, slots=True)
class _Drawer:
    """One client's permutations."""

    n_samples: int
    batch_size: int
    """Number of samples in a batch, padding included."""
    rng: torch.Generator
    start: int
    """Offset added to each index."""

    def order(self) -> Tensor:
        """Draw a permutation: whole batches, or one that is padded."""
        order = torch.randperm(self.n_samples, generator=self.rng) + self.start
        n_missing = self.batch_size - self.n_samples
        return torch.cat([order, order[:1].expand(n_missing)]) if n_missing > 0 else order


def _indices(drawers: Sequence[_Drawer], device: torch.device) -> Iterator[list[Tensor]]:
    """Yield each client's samples, step by step; permutations drawn together move together."""
    left: list[deque[Tensor]] = [deque() for _ in drawers]
    while True:
        if ended := [i for i, of in enumerate(left) if not of]:
            orders = [drawers[i].order() for i in ended]
            moved = torch.cat(orders).to(device).split([len(order) for order in orders])
            for i, order in zip(ended, moved, strict=True):
                left[i].extend(batches_of(order, drawers[i].batch_size))
        yield [of.popleft() for of in left]
