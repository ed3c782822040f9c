"""Differencing: two sums of a real `Authority` that differ by one client.

The rule of a least number of contributions refuses a total of fewer, a second total of one name in
one round, and one with a client less at the same model. It cannot refuse one at the next model,
where an input's statistics are the same, and others nearly: each total by itself hides everybody.

Axes: T trials, side by side in one message; K clients; V values of a statistic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast, final

import numpy as np
import torch

from securefl.audit.statistics import Roc
from securefl.audit.tracing.likelihood import Array, Indices, Others, drawn
from securefl.audit.tracing.traceable import Profiles
from securefl.build.training import equal_weight
from securefl.crypto.params import SUMS
from securefl.errors import MessageRefused, OpeningRefused
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.policy import Policy
from securefl.exchange.sums import OpenedSum
from securefl.federation.authority import Authority
from securefl.federation.client import Client, Identities
from securefl.federation.opening import Opening
from securefl.federation.server import Server
from securefl.privacy.clipping import Clipping
from securefl.privacy.distributed_noise import ClientNoise, DistributedNoise, NoisyExchange
from securefl.privacy.randomness import Seeded
from securefl.types import Kind, MessageSpec, NamedTensors, Total

RUN = "0" * 64


@final
class AdversarialServer:
    """Server that asks for totals as it likes, with an authority and clients of its own.

    All clients count alike. Keys and identities are made here, and end with it.
    """

    values_per_ciphertext = SUMS.values_per_ciphertext

    def __init__(self, n_clients: int, policy: Policy) -> None:
        keys = KeySet.ephemeral()
        names = [f"client-{i}" for i in range(1, n_clients + 1)]
        identities = Identities.ephemeral(names)
        weight = equal_weight(n_clients)
        sealers = {Kind.STATISTICS: OneTimeSealer(keys.public)}
        self._clients = [
            Client(
                name,
                weight,
                sealers,
                weight,
                card_keys=keys.public,
                signing_key=identities.keys[name],
            )
            for name in names
        ]
        self.log: list[Opening] = []
        self._authority = Authority(keys.opener(), identities.roster, policy, self.log.append)
        cards = {client.name: client.send_cards(RUN) for client in self._clients}
        if refused := self._authority.take_cards(RUN, cards):
            raise RuntimeError(f"the authority refuses cards: {refused}")
        self._server = Server(RUN, identities.roster, {Kind.STATISTICS: OneTimeAdder(keys.public)})

    def total(self, round_number: int, name: str, values: Sequence[Array]) -> OpenedSum:
        """Have the authority open a total of as many clients, in their order, as have values.

        Raises:
            OpeningRefused: as in `Authority.open`.
        """
        spec = MessageSpec(name, Kind.STATISTICS, len(values[0]))
        running = self._server.start(round_number, spec)
        for client, own in zip(self._clients[: len(values)], values, strict=True):
            tensors = {"values": torch.from_numpy(own)}
            running.receive(client.contribute(RUN, round_number, spec, tensors))
        return cast("OpenedSum", self._authority.open(running.request()))

    def refusal(self, round_number: int, name: str, values: Sequence[Array]) -> str:
        """Return why the authority refuses; empty where it opens."""
        try:
            self.total(round_number, name, values)
        except (MessageRefused, OpeningRefused) as error:
            return str(error)
        return ""


NAME = "layer/moments"
CLIP = 1.25
"""Clip norm at client level over the norm of a usual statistic: hardly any is clipped."""


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """Clients in the two sums, and how often these are asked for."""

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
    """Results of asking for two sums."""

    again: str
    """Reason why a second total of one name in one round is refused; empty where it is opened."""
    few: str
    """Reason why a total of one client less than the least number is refused."""
    error: float
    """Largest error of a difference against the client's own values, in the public's unit."""
    exact: Roc
    """Scores in the difference of two rounds in which nothing else changed."""
    redrawn: Roc
    """Scores where the other clients have other records in the second round."""
    private: Roc
    """Scores as `exact`, with noise at client level."""


def differenced(
    release: Profiles, labels_N: Indices, setting: Setting, rng: np.random.Generator
) -> Differenced:
    """Ask, and trace records of the client that is in the first sum alone.

    Raises:
        DataError: too few records.
    """
    n, least = setting.n, setting.least
    server = AdversarialServer(least + 1, Policy(min_contributions=least))
    first_TKV, other_TKV, pairs = _clients(release, labels_N, setting, rng)
    same_TKV, noise = first_TKV[:, :-1], _Noise.of(release, setting)
    exact_TV = _differences(server, NAME, first_TKV, same_TKV)
    redrawn_TV = _differences(server, "redrawn", first_TKV, other_TKV)
    noisy = noise.on(first_TKV, rng), noise.on(same_TKV, rng)
    private_TV = _differences(server, "private", *noisy)

    population = release.moments.population
    alone = population.ratio(n)
    exact = [release.scores(alone, *found) for found in zip(exact_TV, pairs, strict=True)]
    # The others' means are in it twice, of other records each time.
    among = population.ratio(n, population.covariance_VV * (2 * least / n))
    under = population.ratio(n, np.eye(exact_TV.shape[1]) * noise.deviation**2 * (2 * least + 1))
    rows_TBV = release.moments.pool_NV[np.stack(pairs)]
    return Differenced(
        server.refusal(1, f"{NAME}/0", [np.zeros(8)] * least),
        server.refusal(3, NAME, [np.zeros(8)] * (least - 1)),
        float(np.abs(exact_TV - first_TKV[:, -1]).max()),
        _roc(exact),
        _roc([among(*found) for found in zip(redrawn_TV, rows_TBV, strict=True)]),
        _roc([under(*found) for found in zip(private_TV, rows_TBV, strict=True)]),
    )


def _clients(
    release: Profiles, labels_N: Indices, setting: Setting, rng: np.random.Generator
) -> tuple[Array, Array, list[Indices]]:
    """Return statistics of all clients, others of all but the last, and a pair for the last one."""
    sets = 2 * setting.least + 1
    statistics, pairs = list[Array](), list[Indices]()
    for members, pair in drawn(labels_N, sets * setting.n, setting.trials, rng, Others.ALL):
        # `drawn` has the member among the first records: these are the last client's.
        own, *rest = (release.statistic([g], _seeded(rng)) for g in np.split(members, sets))
        statistics.append(np.stack([*rest[: setting.least], own, *rest[setting.least :]]))
        pairs.append(pair)
    all_TKV = np.stack(statistics)
    return all_TKV[:, : setting.least + 1], all_TKV[:, setting.least + 1 :], pairs


def _differences(
    server: AdversarialServer, name: str, first_TKV: Array, second_TKV: Array
) -> Array:
    """Return the last client's values: a total of all less one of the others a round later."""
    found = list[Array]()
    n_values = first_TKV.shape[2]
    n_messages = -(-len(first_TKV) * n_values // server.values_per_ciphertext)
    firsts, seconds = (np.array_split(x, n_messages) for x in (first_TKV, second_TKV))
    for i, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
        of_all = server.total(1, f"{name}/{i}", _messages(first))
        of_rest = server.total(2, f"{name}/{i}", _messages(second))
        weighed = of_all.weight * of_all.values - of_rest.weight * of_rest.values
        found.append((weighed / (of_all.weight - of_rest.weight)).reshape(-1, n_values))
    return np.concatenate(found)


def _messages(values_TKV: Array) -> list[Array]:
    return [values_TKV[:, k].ravel() for k in range(values_TKV.shape[1])]


@final
@dataclass(frozen=True, slots=True)
class _Noise:
    """Noise that a client adds at client level, by the library's own code."""

    noise: ClientNoise
    deviation: float
    """Standard deviation of each client's share, on each value."""

    @classmethod
    def of(cls, release: Profiles, setting: Setting) -> "_Noise":
        """Return noise that is all there when one client is missing."""
        mean_V = release.moments.population.mean_V
        clip = CLIP * float(np.linalg.norm(mean_V))
        shares, bounds = DistributedNoise(setting.least + 1, dropouts=1), {NAME: clip}
        noise = ClientNoise(setting.sigma, clip, Clipping.FLAT, shares, bounds=bounds)
        return cls(noise, noise.deviation(setting.sigma, clip, len(mean_V)))

    def on(self, values_TKV: Array, rng: np.random.Generator) -> Array:
        """Return the values, each client's with its share."""
        return np.stack([[self._sent(own_V, rng) for own_V in of_KV] for of_KV in values_TKV])

    def _sent(self, own_V: Array, rng: np.random.Generator) -> Array:
        sent = _Sent(self.noise.shares.n_clients)
        named = {"values": torch.from_numpy(own_V)}
        total = NoisyExchange(sent, self.noise, _seeded(rng)).sum(NAME, named)
        return total.values["values"].numpy()


@final
@dataclass(frozen=True, slots=True)
class _Sent:
    """End of an exchange at a client that gives back what the client would have sent."""

    n_clients: int
    weight: float = 1.0

    def sum(self, name: str, values: NamedTensors) -> Total:
        """Return these very values."""
        del name
        return Total(values, self.weight, self.n_clients)


def _roc(scores: Sequence[Array]) -> Roc:
    found_TB = np.stack(list(scores))
    return Roc.of(found_TB[:, 0], found_TB[:, 1])


def _seeded(rng: np.random.Generator) -> Seeded:
    return Seeded(torch.Generator().manual_seed(int(rng.integers(2**62))))
