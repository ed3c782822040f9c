"""What a run's model shows of its clients' records, ready to be traced.

Axes: N records of the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from securefl.audit.statistics import Interval
from securefl.audit.tracing.experiment import LARGEST_SHARE, Others, Release, traced
from securefl.audit.tracing.seen_layers import (
    Indices,
    SeenLayers,
    seen_by_batch_norm,
    seen_by_profiles,
)
from securefl.audit.tracing.traceable import LayerStatistics, Means, PrivateSums, Profiles
from securefl.data.split import Labelled
from securefl.norms.find import batch_norm_layers


class Shown(StrEnum):
    """How a statistic leaves a client."""

    NOT_SENT = "not sent"
    EACH = "in the clear: the server reads each client's"
    TOTALS = "encrypted: totals over the clients are opened"
    HIDDEN = "encrypted: no total of it is opened either"


@final
@dataclass(frozen=True, slots=True)
class SentStatistics:
    """What a run's clients send of the statistics that can be traced."""

    statistics: Shown
    """Means and variances of BN layers."""
    profiles: Shown
    """FedProf's; encrypted ones are `HIDDEN`, since scores alone are opened."""
    n_clients: int
    """Whose statistics are in one total."""
    n_records: int
    """In one such statistic of the client with the fewest: its mini-batch, or all its data."""
    least: int = 3
    """exchange.min_clients."""
    layer: str | None = None
    """selection.layer, that is profiled."""
    sigma: float | None = None
    """Noise at record level on these statistics, privacy.statistics_sigma; None without."""
    clip: float = 1.5
    """privacy.statistics_clip."""
    client_sigma: float | None = None
    """Noise at client level, privacy.sigma; None without."""

    @property
    def worst(self) -> Shown:
        """How that one leaves a client of which most is seen."""
        order = (Shown.EACH, Shown.TOTALS, Shown.HIDDEN, Shown.NOT_SENT)
        return min((self.statistics, self.profiles), key=order.index)


@final
@dataclass(frozen=True, slots=True)
class TracingEffort:
    """How much is tried."""

    trials: int
    sizes: tuple[int, ...]
    """Records n of a client."""
    pool: int
    """Records that are drawn from, at most."""
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
        """Raises DataError for too few public records."""
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
        """With the run's clip."""
        if sigma not in self._private:
            self._private[sigma] = PrivateSums.of(*self._seen, self.sent.clip, sigma)
        return self._private[sigma]

    def most(self, n_clients: int = 1) -> int:
        """The most records of each client that a release may have."""
        return int(LARGEST_SHARE * len(self.labels_N)) // n_clients

    def auc(
        self, release: Release, n: int, n_clients: int = 1, others: Others = Others.ALL
    ) -> Interval:
        """How often a member scores above another record.

        Raises:
            DataError: too few records for so many in a release.
        """
        trials, labels_N, rng = self.effort.trials, self.labels_N, self.rng
        found = traced(release, labels_N, n, rng, trials=trials, n_clients=n_clients, others=others)
        return found.auc(rng)
