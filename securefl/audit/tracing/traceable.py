"""Statistics that SecureFL releases, the layers they are of, and how an attacker reads them.

Axes: N records of the pool, P public ones, B records that are scored, Q elements or channels of all
layers together, V values.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from securefl.algorithms.profiling import profile, representing
from securefl.audit.tracing.likelihood import (
    IMPOSSIBLE,
    Array,
    Coordinates,
    Indices,
    LikelihoodRatio,
    Population,
    impossible,
)
from securefl.norms.find import batch_norm_layers
from securefl.privacy.randomness import Randomness, noisy
from securefl.privacy.record_moments import ChannelMoments, MomentRelease

MAX_ELEMENTS = 512
"""Number of elements that are looked at, evenly spaced: an attack on all would find no less."""
_BATCH = 256


@final
@dataclass(frozen=True, slots=True, eq=False)
class SeenLayers:
    """Mean and mean square of each element over a record's pixels; where it has none, h and h²."""

    first_NQ: Array
    second_NQ: Array


def represented(model: nn.Module, layer: str | None, x: Tensor) -> Array:
    """Return the layer's representation of each record, as profiles use it, shape (N, Q).

    Raises:
        DataError: as in `algorithms.profiling.profile`.
    """
    with representing(model, layer) as of:
        rows = [of(batch).cpu().numpy() for batch in x.split(_BATCH)]
    return _few(np.concatenate(rows))


def seen_by_profiles(model: nn.Module, layer: str | None, x: Tensor) -> SeenLayers:
    """Return what a profile is made of."""
    h_NQ = represented(model, layer, x)
    return SeenLayers(h_NQ, h_NQ**2)


@torch.no_grad()
def seen_by_batch_norm(model: nn.Module, x: Tensor) -> SeenLayers:
    """Return what all BN layers get, of a model at rest: their statistics are means of this.

    In training, layers above the first see records through the batch's own statistics, and differ.
    """
    device = next(model.parameters()).device
    first, second = list[Array](), list[Array]()
    with _inputs_of_batch_norm(model) as inputs:
        for batch in x.split(_BATCH):
            inputs.clear()
            model(batch.to(device))
            y = [i.double().reshape(len(i), i.shape[1], -1) for i in inputs]
            first.append(np.concatenate([i.mean(2).cpu().numpy() for i in y], axis=1))
            second.append(np.concatenate([i.square().mean(2).cpu().numpy() for i in y], axis=1))
    return SeenLayers(_few(np.concatenate(first)), _few(np.concatenate(second)))


@contextmanager
def _inputs_of_batch_norm(model: nn.Module) -> Iterator[list[Tensor]]:
    """Put the model at rest, and yield the list to which inputs of its BN layers are added."""
    inputs: list[Tensor] = []

    def note(_layer: nn.Module, got: Any) -> None:
        # Copied, as an activation that works in place may come next.
        inputs.append(got[0].clone())

    training = [(module, module.training) for module in model.modules()]
    with ExitStack() as hooks:
        for layer in batch_norm_layers(model).values():
            hooks.callback(layer.register_forward_pre_hook(note).remove)
        model.eval()
        try:
            yield inputs
        finally:
            for module, mode in training:
                module.training = mode


def _few(rows_NQ: Array) -> Array:
    n = rows_NQ.shape[1]
    if n <= MAX_ELEMENTS:
        return rows_NQ
    return rows_NQ[:, np.linspace(0, n - 1, MAX_ELEMENTS).round().astype(int)]


@final
@dataclass(frozen=True, slots=True, eq=False)
class TraceableMoments:
    """Vectors (z, z²) of a layer, or of several, of pool and public."""

    at: Coordinates
    pool_NV: Array
    population: Population

    @classmethod
    def of(cls, pool: SeenLayers, public: SeenLayers) -> "TraceableMoments":
        """Put both in the public's coordinates."""
        at = Coordinates.of(public.first_NQ, public.second_NQ)
        of_public = at.moments(public.first_NQ, public.second_NQ)
        pool_NV = at.moments(pool.first_NQ, pool.second_NQ)
        return cls(at, pool_NV, Population.of(of_public, n_blocks=2))

    def scores(self, ratio: LikelihoodRatio, released_V: Array, records: Indices) -> Array:
        """Return the likelihood ratio; of records that cannot have been in, less than any."""
        rows_BV = self.pool_NV[records]
        never_B = impossible(released_V, rows_BV, ratio.n, self.at.tolerance_Q)
        return np.where(never_B, IMPOSSIBLE, ratio(released_V, rows_BV))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Profiles:
    """Profile of FedProf of all clients' records together: mean and variance, exact."""

    moments: TraceableMoments
    represented_NQ: Array

    @classmethod
    def of(cls, pool: SeenLayers, public: SeenLayers) -> "Profiles":
        """Take what `seen_by_profiles` gives."""
        return cls(TraceableMoments.of(pool, public), pool.first_NQ)

    def ratio(self, n: int) -> LikelihoodRatio:
        """Return the ratio without noise."""
        return self.moments.population.ratio(n)

    def statistic(self, clients: Sequence[Indices], randomness: Randomness) -> Array:
        """Return what `profile` makes of the layer's outputs for the records."""
        del randomness
        batches = (torch.from_numpy(self.represented_NQ[records]) for records in clients)
        found = profile(_passing(), "0", batches, version=0)
        mean_Q, variance_Q = found.mean_Q.numpy(), found.variance_Q.numpy()
        return self.moments.at.moments(mean_Q, variance_Q + mean_Q**2)

    def scores(self, ratio: LikelihoodRatio, released_V: Array, records: Indices) -> Array:
        """Return scores as `TraceableMoments`."""
        return self.moments.scores(ratio, released_V, records)


@final
@dataclass(frozen=True, slots=True, eq=False)
class LayerStatistics:
    """Mean and variance of what BN layers get, of a model at rest, exact."""

    moments: TraceableMoments

    @classmethod
    def of(cls, pool: SeenLayers, public: SeenLayers) -> "LayerStatistics":
        """Take what `seen_by_batch_norm` gives."""
        return cls(TraceableMoments.of(pool, public))

    def ratio(self, n: int) -> LikelihoodRatio:
        """Return the ratio without noise."""
        return self.moments.population.ratio(n)

    def statistic(self, clients: Sequence[Indices], randomness: Randomness) -> Array:
        """Return all records' mean: a batch's, or the total of as many of each client."""
        del randomness
        return np.asarray(self.moments.pool_NV[np.concatenate(clients)].mean(axis=0))

    def scores(self, ratio: LikelihoodRatio, released_V: Array, records: Indices) -> Array:
        """Return scores as `TraceableMoments`."""
        return self.moments.scores(ratio, released_V, records)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Means:
    """The means of a layer alone, without the variances: what a BN layer's mean shows."""

    pool_NQ: Array
    population: Population

    @classmethod
    def of(cls, pool: SeenLayers, public: SeenLayers) -> "Means":
        """Put both in the public's coordinates."""
        at = Coordinates.of(public.first_NQ, public.second_NQ)
        z_NQ, z_PQ = ((s.first_NQ - at.mean_Q) / at.unit_Q for s in (pool, public))
        return cls(z_NQ, Population.of(z_PQ))

    def ratio(self, n: int) -> LikelihoodRatio:
        """Return the ratio without noise."""
        return self.population.ratio(n)

    def statistic(self, clients: Sequence[Indices], randomness: Randomness) -> Array:
        """Return all records' mean."""
        del randomness
        return np.asarray(self.pool_NQ[np.concatenate(clients)].mean(axis=0))

    def scores(self, ratio: LikelihoodRatio, released_V: Array, records: Indices) -> Array:
        """Return the likelihood ratio."""
        return ratio(released_V, self.pool_NQ[records])


@final
@dataclass(frozen=True, slots=True, eq=False)
class PrivateSums:
    """Sums of clipped [1, mean, second moment] of each record, with noise (`MomentRelease`).

    The noisy sum is scored itself, before a profile is made of it: that is all there is to see,
    also where the library then refuses it as drowned.
    """

    release: MomentRelease
    represented_NQ: Array
    pool_NV: Array
    population: Population

    @classmethod
    def of(
        cls, pool: SeenLayers, public: SeenLayers, rms_clip: float, sigma: float
    ) -> "PrivateSums":
        """Take what `seen_by_profiles` gives, about the public mean and in its unit."""
        at = Coordinates.of(public.first_NQ, public.second_NQ)
        z_NQ, z_PQ = ((s.first_NQ - at.mean_Q) / at.unit_Q for s in (pool, public))
        release = MomentRelease(z_NQ.shape[1], rms_clip, sigma)
        vectors = [_each(release, z) / release.bound for z in (z_NQ, z_PQ)]
        return cls(release, z_NQ, vectors[0], Population.of(vectors[1]))

    def ratio(self, n: int) -> LikelihoodRatio:
        """Return the ratio in units of the clip, in which the noise on a sum is σ."""
        noise_VV = (self.release.sigma / n) ** 2 * np.eye(self.release.n_values)
        return self.population.ratio(n, noise_VV)

    def statistic(self, clients: Sequence[Indices], randomness: Randomness) -> Array:
        """Return what `MomentRelease` makes of all records, with the noise of one release."""
        records = np.concatenate(clients)
        reference = ChannelMoments.standard(self.release.n_channels)
        sum_V = self.release.sum_of(torch.from_numpy(self.represented_NQ[records]), reference)
        noisy_V = noisy(sum_V, randomness, self.release.deviation).numpy()
        return np.asarray(noisy_V / (self.release.bound * len(records)))

    def scores(self, ratio: LikelihoodRatio, released_V: Array, records: Indices) -> Array:
        """Return the likelihood ratio."""
        return ratio(released_V, self.pool_NV[records])


def _each(release: MomentRelease, z_NQ: Array) -> Array:
    """Return what each record adds to a sum."""
    reference = ChannelMoments.standard(release.n_channels)
    rows = (release.sum_of(z_1Q, reference).numpy() for z_1Q in torch.from_numpy(z_NQ).split(1))
    return np.stack(list(rows))


def _passing() -> nn.Module:
    """Return a model whose layer "0" gives what it gets: representations are known already."""
    return nn.Sequential(nn.Identity())
