"""Statistics that SecureFL releases, of a pool of records, and how an attacker reads them.

Axes: N records of the pool, P public ones, B records that are scored, Q elements, V values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import nn

from securefl.algorithms.profiling import profile
from securefl.audit.tracing.likelihood import (
    IMPOSSIBLE,
    Coordinates,
    LikelihoodRatio,
    Population,
    impossible,
)
from securefl.audit.tracing.seen_layers import Array, Indices, SeenLayers
from securefl.privacy.randomness import Randomness, noisy
from securefl.privacy.record_moments import ChannelMoments, MomentRelease


@final
@dataclass(frozen=True, slots=True, eq=False)
class TraceableMoments:
    """What is known of (z, z²) of a layer, or of several: the pool's vectors and the public's."""

    at: Coordinates
    pool_NV: Array
    population: Population

    @classmethod
    def of(cls, pool: SeenLayers, public: SeenLayers) -> TraceableMoments:
        """In the public's coordinates."""
        at = Coordinates.of(public.first_NQ, public.second_NQ)
        of_public = at.moments(public.first_NQ, public.second_NQ)
        pool_NV = at.moments(pool.first_NQ, pool.second_NQ)
        return cls(at, pool_NV, Population.of(of_public, n_blocks=2))

    def scores(self, ratio: LikelihoodRatio, released_V: Array, records: Indices) -> Array:
        """The likelihood ratio; of records that cannot have been in, less than any."""
        rows_BV = self.pool_NV[records]
        never_B = impossible(released_V, rows_BV, ratio.n, self.at.tolerance_Q)
        return np.where(never_B, IMPOSSIBLE, ratio(released_V, rows_BV))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Profiles:
    """FedProf's profile of all clients' records together: mean and variance, exact."""

    moments: TraceableMoments
    represented_NQ: Array

    @classmethod
    def of(cls, pool: SeenLayers, public: SeenLayers) -> Profiles:
        """Of what `seen_by_profiles` gives."""
        return cls(TraceableMoments.of(pool, public), pool.first_NQ)

    def ratio(self, n: int) -> LikelihoodRatio:
        """Without noise."""
        return self.moments.population.ratio(n)

    def statistic(self, clients: Sequence[Indices], randomness: Randomness) -> Array:
        """By `profile`, over what the layer makes of the records."""
        del randomness
        batches = (torch.from_numpy(self.represented_NQ[records]) for records in clients)
        found = profile(_passing(), "0", batches, version=0)
        mean_Q, variance_Q = found.mean_Q.numpy(), found.variance_Q.numpy()
        return self.moments.at.moments(mean_Q, variance_Q + mean_Q**2)

    def scores(self, ratio: LikelihoodRatio, released_V: Array, records: Indices) -> Array:
        """As `Moments`."""
        return self.moments.scores(ratio, released_V, records)


@final
@dataclass(frozen=True, slots=True, eq=False)
class LayerStatistics:
    """Mean and variance of what BN layers get, of a model at rest, exact."""

    moments: TraceableMoments

    @classmethod
    def of(cls, pool: SeenLayers, public: SeenLayers) -> LayerStatistics:
        """Of what `seen_by_batch_norm` gives."""
        return cls(TraceableMoments.of(pool, public))

    def ratio(self, n: int) -> LikelihoodRatio:
        """Without noise."""
        return self.moments.population.ratio(n)

    def statistic(self, clients: Sequence[Indices], randomness: Randomness) -> Array:
        """All records' mean: a batch's, or the total of as many of each client."""
        del randomness
        return np.asarray(self.moments.pool_NV[np.concatenate(clients)].mean(axis=0))

    def scores(self, ratio: LikelihoodRatio, released_V: Array, records: Indices) -> Array:
        """As `Moments`."""
        return self.moments.scores(ratio, released_V, records)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Means:
    """The means of a layer alone, without the variances: what a BN layer's mean shows."""

    pool_NQ: Array
    population: Population

    @classmethod
    def of(cls, pool: SeenLayers, public: SeenLayers) -> Means:
        """In the public's coordinates."""
        at = Coordinates.of(public.first_NQ, public.second_NQ)
        z_NQ, z_PQ = ((s.first_NQ - at.mean_Q) / at.unit_Q for s in (pool, public))
        return cls(z_NQ, Population.of(z_PQ))

    def ratio(self, n: int) -> LikelihoodRatio:
        """Without noise."""
        return self.population.ratio(n)

    def statistic(self, clients: Sequence[Indices], randomness: Randomness) -> Array:
        """All records' mean."""
        del randomness
        return np.asarray(self.pool_NQ[np.concatenate(clients)].mean(axis=0))

    def scores(self, ratio: LikelihoodRatio, released_V: Array, records: Indices) -> Array:
        """The likelihood ratio."""
        return ratio(released_V, self.pool_NQ[records])


@final
@dataclass(frozen=True, slots=True, eq=False)
class PrivateSums:
    """Clipped [1, mean, second moment] of each record, summed up, with noise (`MomentRelease`).

    The noisy sum is scored itself, before a profile is made of it: that is all there is to see,
    also where the library then refuses it as drowned.
    """

    release: MomentRelease
    represented_NQ: Array
    pool_NV: Array
    population: Population

    @classmethod
    def of(cls, pool: SeenLayers, public: SeenLayers, rms_clip: float, sigma: float) -> PrivateSums:
        """Of what `seen_by_profiles` gives, about the public mean and in its unit."""
        at = Coordinates.of(public.first_NQ, public.second_NQ)
        z_NQ, z_PQ = ((s.first_NQ - at.mean_Q) / at.unit_Q for s in (pool, public))
        release = MomentRelease(z_NQ.shape[1], rms_clip, sigma)
        vectors = [_each(release, z) / release.bound for z in (z_NQ, z_PQ)]
        return cls(release, z_NQ, vectors[0], Population.of(vectors[1]))

    def ratio(self, n: int) -> LikelihoodRatio:
        """In units of the clip, in which the noise on a sum is σ."""
        noise_VV = (self.release.sigma / n) ** 2 * np.eye(self.release.n_values)
        return self.population.ratio(n, noise_VV)

    def statistic(self, clients: Sequence[Indices], randomness: Randomness) -> Array:
        """By `MomentRelease`: the noise is that of one release, of all clients together."""
        records = np.concatenate(clients)
        reference = ChannelMoments.standard(self.release.n_channels)
        sum_V = self.release.sum_of(torch.from_numpy(self.represented_NQ[records]), reference)
        noisy_V = noisy(sum_V, randomness, self.release.deviation).numpy()
        return np.asarray(noisy_V / (self.release.bound * len(records)))

    def scores(self, ratio: LikelihoodRatio, released_V: Array, records: Indices) -> Array:
        """The likelihood ratio."""
        return ratio(released_V, self.pool_NV[records])


def _each(release: MomentRelease, z_NQ: Array) -> Array:
    """What each record adds to a sum."""
    reference = ChannelMoments.standard(release.n_channels)
    rows = (release.sum_of(z_1Q, reference).numpy() for z_1Q in torch.from_numpy(z_NQ).split(1))
    return np.stack(list(rows))


def _passing() -> nn.Module:
    """A model whose layer "0" gives what it gets: records' representations are known already."""
    return nn.Sequential(nn.Identity())
