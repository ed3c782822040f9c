"""Samples of which an attack has to say whether they trained: members, and others like them.

An attack that only tells classes apart, or clients, must learn nothing. So non-members are dealt to
clients label by label, as clients have them, and what is compared has for each client and label as
many members to a non-member.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from securefl.data.samples import whole
from securefl.errors import DataError
from securefl.task import Task

Ints: TypeAlias = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Members of all clients, and test samples dealt to these clients."""

    x: Tensor
    y: Tensor
    client_S: Ints
    """Whose the sample is, or would be, as its number in the task."""
    cell_S: Ints
    """One number for each client and label."""
    member_S: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.member_S)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The batch (x, y) of these indices."""
        return self.x[index], self.y[index]

    def compared(self, rng: np.random.Generator) -> Ints:
        """Indices of samples with the same ratio of members to non-members in each cell.

        The ratio is a whole number, the one that leaves most to compare: 1 / (1/members + 1/others)
        is largest. In cells with too few members others are left out.

        Raises:
            DataError: no cell has both.
        """
        sizes = {
            cell: (len(self._in(cell, self.member_S)), len(self._in(cell, ~self.member_S)))
            for cell in np.unique(self.cell_S)
        }
        most = max((m // o for m, o in sizes.values() if o), default=0)
        if not most:
            raise DataError("no client has as many samples of a label as there are test samples")
        ratio = max(range(1, most + 1), key=lambda r: _others(sizes.values(), r) * r / (1 + r))
        chosen = []
        for cell, (m, o) in sizes.items():
            n = min(o, m // ratio)
            for side, size in ((self.member_S, ratio * n), (~self.member_S, n)):
                chosen.append(rng.choice(self._in(cell, side), size, replace=False))
        return np.sort(np.concatenate(chosen))

    def _in(self, cell: int, side: NDArray[np.bool_]) -> Ints:
        return np.flatnonzero((self.cell_S == cell) & side)


def candidates(task: Task, rng: np.random.Generator) -> Candidates:
    """All that clients train on, and test samples of the labels that they have.

    Each client's own test data stay with it; of data that all share each sample goes to one client,
    drawn by how many of its label each has. Samples of labels that no client has are left out, and
    where there are no labels all count as of one.

    Raises:
        DataError: data that cannot be used.
    """
    own = [whole(data, f"client {i}") for i, data in enumerate(task.clients, 1)]
    label_of = [_labels(y) for _, y in own]
    if task.client_tests:
        tests = [whole(data, f"test of client {i}") for i, data in enumerate(task.client_tests, 1)]
    else:
        x, y = whole(task.test, "test")
        dealt_S = _dealt(_labels(y), label_of, rng)
        tests = [(x[dealt_S == i], y[dealt_S == i]) for i in range(len(own))]
    parts = [*own, *tests]
    label_S = np.concatenate([_labels(y) for _, y in parts])
    client_S = np.concatenate([np.full(len(y), i % len(own)) for i, (_, y) in enumerate(parts)])
    member_S = np.repeat([True, False], [sum(len(y) for _, y in side) for side in (own, tests)])
    cell_S = client_S * (label_S.max() + 1) + label_S
    return Candidates(
        torch.cat([x for x, _ in parts]),
        torch.cat([y for _, y in parts]),
        client_S.astype(np.int64),
        cell_S.astype(np.int64),
        member_S,
    )


def _others(sizes: Iterable[tuple[int, int]], ratio: int) -> int:
    """Non-members that are left where each has so many members in its cell."""
    return sum(min(o, m // ratio) for m, o in sizes)


def _dealt(label_S: Ints, label_of: Sequence[Ints], rng: np.random.Generator) -> Ints:
    """The client of each sample, by shares of its label; -1 for labels that nobody has."""
    client_S = np.full(len(label_S), -1)
    for label in np.unique(label_S):
        where = rng.permutation(np.flatnonzero(label_S == label))
        n_K = np.array([(own == label).sum() for own in label_of])
        if n_K.any():
            ends_K = np.round(len(where) * n_K.cumsum() / n_K.sum()).astype(int)
            for client, part in enumerate(np.split(where, ends_K[:-1])):
                client_S[part] = client
    return client_S


def _labels(y: Tensor) -> Ints:
    if y.dim() != 1 or y.is_floating_point():
        return np.zeros(len(y), np.int64)
    return y.cpu().numpy().astype(np.int64)
