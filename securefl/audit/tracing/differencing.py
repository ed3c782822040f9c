"""Two sums that differ by one client, asked of a real `Authority`: their difference is that client.

The rule of a least number of contributions refuses a total of fewer, a second total of one name in
one round, and one with a client less at the same model. It cannot refuse one at the next model,
where an input's statistics are the same, and others nearly: each total by itself hides everybody.

Axes: T trials, side by side in one message; K clients; V values of a statistic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from securefl.audit.statistics import Roc
from securefl.audit.tracing.adversarial_server import AdversarialServer
from securefl.audit.tracing.experiment import Others, drawn
from securefl.audit.tracing.seen_layers import Array, Indices
from securefl.audit.tracing.traceable import Profiles
from securefl.exchange.policy import Policy
from securefl.privacy.clipping import Clipping
from securefl.privacy.distributed_noise import ClientNoise, DistributedNoise, NoisyExchange
from securefl.privacy.randomness import Seeded
from securefl.types import NamedTensors, Total

NAME = "layer/moments"
CLIP = 1.25
"""At client level, over the norm of a usual statistic: hardly any is clipped."""


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """Who is in the two sums, and how often they are asked for."""

    n: int = 16
    """Records of each client."""
    least: int = 3
    """Contributions that the authority wants; the first sum has one client more."""
    trials: int = 300
    sigma: float = 1.0
    """Noise multiplier at client level, where there is noise."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Differenced:
    """What came of it."""

    again: str
    """Why a second total of one name in one round is refused; empty where it is opened."""
    few: str
    """Why a total of one client less than the least number is."""
    error: float
    """The largest by which a difference is off the client's own values, in the public's unit."""
    exact: Roc
    """Members told from others by the difference of two rounds in which nothing else changed."""
    redrawn: Roc
    """The same, where the other clients have other records in the second round."""
    private: Roc
    """The same as `exact`, with noise at client level."""


def differenced(
    release: Profiles, labels_N: Indices, setting: Setting, rng: np.random.Generator
) -> Differenced:
    """Ask, and trace records of the client that is in the first sum alone.

    Raises:
        DataError: too few records.
    """
    n, least = setting.n, setting.least
    asked = AdversarialServer(least + 1, Policy(min_contributions=least))
    first_TKV, other_TKV, pairs = _clients(release, labels_N, setting, rng)
    same_TKV, noise = first_TKV[:, :-1], _Noise.of(release, setting)
    exact_TV = _differences(asked, NAME, first_TKV, same_TKV)
    redrawn_TV = _differences(asked, "redrawn", first_TKV, other_TKV)
    noisy = noise.on(first_TKV, rng), noise.on(same_TKV, rng)
    private_TV = _differences(asked, "private", *noisy)

    population = release.moments.population
    alone = population.ratio(n)
    exact = [release.scores(alone, *found) for found in zip(exact_TV, pairs, strict=True)]
    # The others' means are in it twice, of other records each time.
    among = population.ratio(n, population.covariance_VV * (2 * least / n))
    under = population.ratio(n, np.eye(exact_TV.shape[1]) * noise.deviation**2 * (2 * least + 1))
    rows_TBV = release.moments.pool_NV[np.stack(pairs)]
    return Differenced(
        asked.refusal(1, f"{NAME}/0", [np.zeros(8)] * least),
        asked.refusal(3, NAME, [np.zeros(8)] * (least - 1)),
        float(np.abs(exact_TV - first_TKV[:, -1]).max()),
        _roc(exact),
        _roc([among(*found) for found in zip(redrawn_TV, rows_TBV, strict=True)]),
        _roc([under(*found) for found in zip(private_TV, rows_TBV, strict=True)]),
    )


def _clients(
    release: Profiles, labels_N: Indices, setting: Setting, rng: np.random.Generator
) -> tuple[Array, Array, list[Indices]]:
    """Statistics of all clients, others of all but the last, and a pair for the last one."""
    sets = 2 * setting.least + 1
    statistics, pairs = list[Array](), list[Indices]()
    for members, pair in drawn(labels_N, sets * setting.n, setting.trials, rng, Others.ALL):
        # `drawn` has the member among the first records: these are the last client's.
        own, *rest = (release.statistic([g], _seeded(rng)) for g in np.split(members, sets))
        statistics.append(np.stack([*rest[: setting.least], own, *rest[setting.least :]]))
        pairs.append(pair)
    all_TKV = np.stack(statistics)
    return all_TKV[:, : setting.least + 1], all_TKV[:, setting.least + 1 :], pairs


def _differences(asked: AdversarialServer, name: str, first_TKV: Array, second_TKV: Array) -> Array:
    """The last client's values, from a total of all in round 1 and one of the others in round 2."""
    found = list[Array]()
    n_values = first_TKV.shape[2]
    n_messages = -(-len(first_TKV) * n_values // asked.values_per_ciphertext)
    firsts, seconds = (np.array_split(x, n_messages) for x in (first_TKV, second_TKV))
    for i, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
        of_all = asked.total(1, f"{name}/{i}", _messages(first))
        of_rest = asked.total(2, f"{name}/{i}", _messages(second))
        weighed = of_all.weight * of_all.values - of_rest.weight * of_rest.values
        found.append((weighed / (of_all.weight - of_rest.weight)).reshape(-1, n_values))
    return np.concatenate(found)


def _messages(values_TKV: Array) -> list[Array]:
    return [values_TKV[:, k].ravel() for k in range(values_TKV.shape[1])]


@final
@dataclass(frozen=True, slots=True)
class _Noise:
    """What a client adds at client level, by the library's own code."""

    noise: ClientNoise
    deviation: float
    """Of each client's share, on each value."""

    @classmethod
    def of(cls, release: Profiles, setting: Setting) -> _Noise:
        """All of it is there when one client is missing."""
        mean_V = release.moments.population.mean_V
        clip = CLIP * float(np.linalg.norm(mean_V))
        shares, bounds = DistributedNoise(setting.least + 1, dropouts=1), {NAME: clip}
        noise = ClientNoise(setting.sigma, clip, Clipping.FLAT, shares, bounds=bounds)
        return cls(noise, noise.deviation(setting.sigma, clip, len(mean_V)))

    def on(self, values_TKV: Array, rng: np.random.Generator) -> Array:
        """The values, each client's with its share."""
        return np.stack([[self._sent(own_V, rng) for own_V in of_KV] for of_KV in values_TKV])

    def _sent(self, own_V: Array, rng: np.random.Generator) -> Array:
        sent = _Sent(self.noise.shares.n_clients)
        named = {"values": torch.from_numpy(own_V)}
        total = NoisyExchange(sent, self.noise, _seeded(rng)).sum(NAME, named)
        return total.values["values"].numpy()


@final
@dataclass(frozen=True, slots=True)
class _Sent:
    """A client's end of an exchange that gives back what it would have sent."""

    n_clients: int
    weight: float = 1.0

    def sum(self, name: str, values: NamedTensors) -> Total:
        """These very values."""
        del name
        return Total(values, self.weight, self.n_clients)


def _roc(scores: Sequence[Array]) -> Roc:
    found_TB = np.stack(list(scores))
    return Roc.of(found_TB[:, 0], found_TB[:, 1])


def _seeded(rng: np.random.Generator) -> Seeded:
    return Seeded(torch.Generator().manual_seed(int(rng.integers(2**62))))
