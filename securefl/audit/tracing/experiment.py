"""Tracing a statistic that SecureFL releases, many times over: draw, release, score.

Each trial draws n records without replacement, releases their statistic by the library's own code,
and scores one of them and one record that is not in it. Public records are neither. One of each a
trial: so scores are independent, as `roc` takes them to be. Over all trials members and others are
of the same classes, each as often.

Axes: N records of the pool, T trials, B records that are scored, V values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Protocol

import numpy as np
import torch

from securefl.audit.statistics import Roc
from securefl.audit.tracing.likelihood import LikelihoodRatio
from securefl.audit.tracing.seen_layers import Array, Indices
from securefl.errors import DataError
from securefl.privacy.randomness import Randomness, Seeded

LARGEST_SHARE = 0.5
"""Of the pool in one release; of more of it, the rest are too few and too much like them."""


_ATTEMPTS = 1000


class Others(StrEnum):
    """Whom a member is told from, over all trials in the same classes."""

    ALL = "anybody"
    SAME_CLASS = "of its class"
    """In each trial: harder, since the class itself is no hint."""


class Release(Protocol):
    """A statistic, and how an attacker who knows the population reads it."""

    def ratio(self, n: int) -> LikelihoodRatio:
        """For statistics of n records."""

    def statistic(self, clients: Sequence[Indices], randomness: Randomness) -> Array:
        """Of these records of the pool, as a mean of theirs, shape (V,)."""

    def scores(self, ratio: LikelihoodRatio, released_V: Array, records: Indices) -> Array:
        """Of records of the pool, shape (B,)."""


def traced(  # noqa: PLR0913 -- what is released, of whom, and how often
    release: Release,
    labels_N: Indices,
    n: int,
    rng: np.random.Generator,
    *,
    trials: int,
    n_clients: int = 1,
    others: Others = Others.ALL,
) -> Roc:
    """The scores of a member and a non-member of each trial.

    Args:
        release: whose statistic is traced.
        labels_N: the pool's classes; zeros where it has none.
        n: records of each client.
        rng: draws records and noise.
        trials: how often.
        n_clients: whose records one statistic is of.
        others: whom a member is told from.

    Raises:
        DataError: too few records for so many in a release.
    """
    in_all = n * n_clients
    if in_all > LARGEST_SHARE * len(labels_N):
        raise DataError(
            f"{n_clients} x {n} records in a release, of a pool of {len(labels_N)}: must be "
            f"{LARGEST_SHARE:.0%} of it at most, or there is nobody to be told apart from"
        )
    ratio = release.ratio(in_all)
    found = np.empty((trials, 2))
    for trial, (members, pair) in enumerate(drawn(labels_N, in_all, trials, rng, others)):
        seed = torch.Generator().manual_seed(int(rng.integers(2**62)))
        released_V = release.statistic(np.split(members, n_clients), Seeded(seed))
        found[trial] = release.scores(ratio, released_V, pair)
    return Roc.of(found[:, 0], found[:, 1])


def drawn(
    labels_N: Indices, n: int, trials: int, rng: np.random.Generator, others: Others
) -> Iterator[tuple[Indices, Indices]]:
    """For each trial n members, and a pair: the first of them, and one that is none.

    Raises:
        DataError: no two records are of one class, or nearly all of a class are needed.
    """
    _, kinds_N, sizes = np.unique(labels_N, return_inverse=True, return_counts=True)
    comparable = np.flatnonzero(sizes[kinds_N] > 1)
    if not len(comparable):
        raise DataError(f"of {len(labels_N)} records no two are of one class: nothing to compare")
    chosen = rng.choice(comparable, trials)
    # Another trial's member says of which class: so both sides have each class as often, and this
    # trial's release does not.
    classes_T = kinds_N[np.roll(chosen, 1) if others is Others.ALL else chosen]
    for member, kind in zip(chosen, classes_T, strict=True):
        yield _one(kinds_N, member, kind, n, rng)


def _one(
    kinds_N: Indices, member: np.int64, kind: np.int64, n: int, rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """The other is the first of its class that is left."""
    for _ in range(_ATTEMPTS):
        order = rng.permutation(len(kinds_N))
        order = order[order != member]
        left = order[n - 1 :]
        alike = left[kinds_N[left] == kind]
        if len(alike):
            return np.concatenate([[member], order[: n - 1]]), np.array([member, alike[0]])
    raise DataError(
        f"{n} of {len(kinds_N)} records are members: of a class nobody is left to compare"
    )
