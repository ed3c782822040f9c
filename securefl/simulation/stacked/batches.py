"""Mini-batches of a block of clients, and their loss."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from securefl.algorithms.algorithm import Loss
from securefl.data.resident import Resident
from securefl.data.samples import Samples, TensorSamples, batches_of
from securefl.metrics.classes import IGNORED
from securefl.norms.padded import Present


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
        # Padding repeats the first sample of the permutation; `Present` keeps it out of moments and
        # loss.
        n_missing = self.batch_size - self.n_samples
        return torch.cat([order, order[:1].expand(n_missing)]) if n_missing > 0 else order


def _indices(drawers: Sequence[_Drawer], device: torch.device) -> Iterator[list[Tensor]]:
    """Yield each client's samples, step by step; permutations drawn together move together."""
    left: list[deque[Tensor]] = [deque() for _ in drawers]
    while True:
        if ended := [i for i, of in enumerate(left) if not of]:
            orders = [drawers[i].order() for i in ended]
            # One transfer for all clients whose permutations end at the same step.
            moved = torch.cat(orders).to(device).split([len(order) for order in orders])
            for i, order in zip(ended, moved, strict=True):
                left[i].extend(batches_of(order, drawers[i].batch_size))
        yield [of.popleft() for of in left]


@dataclass(frozen=True, slots=True)
class BlockLoss:
    """Sum of the clients' losses of outputs (B, K C, ...) and labels (K, B, ...).

    In padded batches, only samples that are `present` count.
    """

    loss: Loss
    n_clients: int
    present: Present | None = None

    def __call__(self, outputs: Tensor, y_KB: Tensor) -> Tensor:
        """Return the sum."""
        loss, present = self.loss, self.present
        outputs_KB = outputs.unflatten(1, (self.n_clients, -1)).transpose(0, 1).contiguous()
        y_KB = y_KB.contiguous()
        if loss is functional.cross_entropy and not y_KB.is_floating_point():
            return _cross_entropies(outputs_KB, _ignoring(y_KB.long(), present))
        if loss is functional.mse_loss and outputs_KB.shape == y_KB.shape and not present:
            # Of batches of one size, the mean over all is the mean of the clients' means.
            return self.n_clients * loss(outputs_KB, y_KB)
        sizes = present.sizes if present else [len(outputs)] * self.n_clients
        each = zip(outputs_KB, y_KB, sizes, strict=True)
        return torch.stack([loss(o[:n], y[:n]) for o, y, n in each]).sum()


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
