"""Setup of tracing: releases of a run's model, and the records that they are of.

Each trial releases a statistic of drawn records by the library's own code, and scores a member and
a record that is none. Public records are neither. One of each a trial: so scores are independent,
as `Roc` takes them to be.

Axes: N records of the pool, B records that are scored, V values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
import torch
from torch import Tensor, nn

from securefl.audit.statistics import Interval, Roc
from securefl.audit.tracing.likelihood import Array, Indices, LikelihoodRatio, Others, drawn
from securefl.audit.tracing.traceable import (
    LayerStatistics,
    Means,
    PrivateSums,
    Profiles,
    SeenLayers,
    seen_by_batch_norm,
    seen_by_profiles,
)
from securefl.audit.tracing.verdict import SentStatistics
from securefl.data.split import Labelled
from securefl.errors import DataError
from securefl.norms.find import batch_norm_layers
from securefl.privacy.randomness import Randomness, Seeded

LARGEST_SHARE = 0.5
"""Largest share of the pool in one release: beyond, the rest are too few and too much like it."""


class Release(Protocol):
    """Statistic, and how an attacker who knows the population reads it."""

    def ratio(self, n: int) -> LikelihoodRatio:
        """Return the likelihood ratio for statistics of n records."""

    def statistic(self, clients: Sequence[Indices], randomness: Randomness) -> Array:
        """Return the statistic of these records of the pool, as a mean of theirs, shape (V,)."""

    def scores(self, ratio: LikelihoodRatio, released_V: Array, records: Indices) -> Array:
        """Return scores of records of the pool, shape (B,)."""


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
    """Return the scores of a member and a non-member of each trial.

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


@final
@dataclass(frozen=True, slots=True)
class TracingEffort:
    """Effort of tracing: numbers of trials and records."""

    trials: int
    sizes: tuple[int, ...]
    """Numbers n of records of a client."""
    pool: int
    """Number of records that are drawn from, at most."""
    public: int


EFFORTS = {
    "quick": TracingEffort(300, (4, 16, 64), 1500, 1000),
    "full": TracingEffort(2000, (4, 8, 16, 32, 64, 128), 5000, 2000),
}


@final
class TracingSetup:
    """Releases of one model, the pool that they are of, and the draws."""

    def __init__(
        self,
        model: nn.Module,
        pool: Labelled,
        public: Tensor,
        sent: SentStatistics,
        rng: np.random.Generator,
        effort: TracingEffort,
    ) -> None:
        """Draw pool and public records; raises DataError for too few public ones."""
        self.effort, self.sent, self.rng = effort, sent, rng
        chosen = torch.from_numpy(rng.permutation(len(pool[0]))[: effort.pool])
        x, y = pool[0][chosen], pool[1][chosen].cpu()
        known = public[torch.from_numpy(rng.permutation(len(public))[: effort.public])]
        # Of a regression, all are of one class.
        self.labels_N: Indices = (
            (torch.zeros(len(y)) if y.is_floating_point() else y).long().numpy()
        )
        self._seen: tuple[SeenLayers, SeenLayers] = (
            seen_by_profiles(model, sent.layer, x),
            seen_by_profiles(model, sent.layer, known),
        )
        self.profiles, self.means = Profiles.of(*self._seen), Means.of(*self._seen)
        self._private: dict[float, PrivateSums] = {}
        self.layers = None
        if batch_norm_layers(model):
            both = seen_by_batch_norm(model, x), seen_by_batch_norm(model, known)
            self.layers = LayerStatistics.of(*both)

    def private(self, sigma: float) -> PrivateSums:
        """Return the private sums with the run's clip, made once for each σ."""
        if sigma not in self._private:
            self._private[sigma] = PrivateSums.of(*self._seen, self.sent.clip, sigma)
        return self._private[sigma]

    def most(self, n_clients: int = 1) -> int:
        """Return the most records of each client that a release may have."""
        return int(LARGEST_SHARE * len(self.labels_N)) // n_clients

    def auc(
        self, release: Release, n: int, n_clients: int = 1, others: Others = Others.ALL
    ) -> Interval:
        """Return how often a member scores above another record.

        Raises:
            DataError: too few records for so many in a release.
        """
        trials, labels_N, rng = self.effort.trials, self.labels_N, self.rng
        found = traced(release, labels_N, n, rng, trials=trials, n_clients=n_clients, others=others)
        return found.auc(rng)
