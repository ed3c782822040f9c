"""The composition root: settings become an algorithm, a solver, and the three roles.

The only module that sees client, server and authority together.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from torch import nn

from securefl.algorithms.base import Algorithm
from securefl.algorithms.participation import Aggregation, Participating
from securefl.build.algorithm import chosen_algorithm
from securefl.build.fnr import check_refinement, expected_public, fewest_clients, refined
from securefl.build.independence_check import guard
from securefl.build.privacy import (
    check_delta,
    client_level,
    fewest_shares,
    record_level,
    spending,
)
from securefl.build.selection import Ground, participation
from securefl.build.terms import (
    check_precision,
    check_sealed,
    client_weights,
    equal_weight,
    least_clients,
    policy_of,
    precision_of,
    score_seed,
    sealed_kinds,
    training_of,
)
from securefl.config.schema import Config
from securefl.data.resident import near
from securefl.data.samples import samples
from securefl.errors import ConfigError
from securefl.exchange.base import Adder, Sealer
from securefl.exchange.keyset import OpeningKeys
from securefl.exchange.match_ckks import CkksMatcher, CkksProfileSealer
from securefl.exchange.match_forms import FORMS
from securefl.exchange.match_open import CkksScoreOpener, MatchKeys
from securefl.exchange.match_plain import PlainMatch
from securefl.exchange.plain import PlainChannel
from securefl.exchange.score_noise import ScoreNoise
from securefl.federation.authority import Authority, Opening
from securefl.federation.client import Client
from securefl.federation.delivery import Delivery
from securefl.federation.identities import Identities
from securefl.federation.incidents import Incident
from securefl.federation.ledger import Ledger
from securefl.federation.message import Roster
from securefl.federation.profile_match import MatchChannel
from securefl.federation.score_authority import ScoreAuthority
from securefl.federation.sealing import Sealing
from securefl.federation.server import Server, Shares
from securefl.federation.training import Training
from securefl.privacy.spending import Spending
from securefl.runs.folder_writer import RunFolder
from securefl.selection.participation import Participation
from securefl.simulation.choice import chosen_engine
from securefl.simulation.clients import Clients
from securefl.simulation.local_rounds import LocalRounds
from securefl.task import Task, client_data
from securefl.types import Kind, Plan


@dataclass(slots=True)
class Record:
    """What the roles write down while a run goes on."""

    ledger: Ledger = field(default_factory=Ledger)
    incidents: list[Incident] = field(default_factory=list)
    openings: list[Opening] = field(default_factory=list)
    folder: RunFolder | None = None

    def log_opening(self, opening: Opening) -> None:
        """On disk before the total is released."""
        self.openings.append(opening)
        if self.folder:
            self.folder.note_opening(opening)


@dataclass(frozen=True, slots=True)
class Composed:
    """The objects of a run."""

    algorithm: Algorithm
    training: Training
    rounds: LocalRounds
    engine: str
    """Which one trains the clients, and why."""
    participation: Participation
    spending: Spending | None
    """Of differential privacy; None where no noise is added."""


def compose(
    config: Config,
    task: Task,
    keys: OpeningKeys | None,
    record: Record,
    match_keys: MatchKeys | None = None,
    identities: Identities | None = None,
) -> Composed:
    """The objects of a run; nothing has happened yet.

    Args:
        config: its settings.
        task: its data and model.
        keys: where sums are encrypted.
        record: what is written down.
        match_keys: of encrypted profiles; a fresh one whenever it is needed where None.
        identities: what clients sign with; made for this run where None.

    Raises:
        ConfigError, DataError: the settings, the model and the data do not go together.
    """
    data, batch_size = client_data(config, task)
    public = None if task.public is None else samples(task.public, "the public samples")
    data = near(data, task.model)
    training = training_of(config, task.loss, batch_size)
    weights = client_weights(config, data, batch_size)
    algorithm = _algorithm(config, task, training, len(data))
    check_precision(config, task.model)
    check_delta(config, len(task.clients))
    guard(config, task.model, task.loss, data)
    check_refinement(config, task, algorithm, data)
    check_sealed(config, algorithm, task.model, len(data))
    needed = max(fewest_clients(config, algorithm), fewest_shares(config, len(data)))
    public_samples = expected_public(algorithm)
    aggregation = Aggregation(config.selection.aggregation)
    algorithm = Participating(algorithm, len(data), sum(weights.values()), aggregation)
    algorithm = client_level(config, algorithm, task.model, len(data))
    identities = identities or Identities.ephemeral(data)
    identities.require(data)
    delivery = _roles(config, task.model, keys, weights, identities, record)
    index = {name: i for i, name in enumerate(data)}
    clients = Clients(algorithm, copy.deepcopy(task.model), data, training, index)
    chosen = chosen_engine(config.run.engine, clients, config.run.workers)
    rounds = LocalRounds(clients, chosen.engine, delivery)
    channels = _channels(config, match_keys, identities.roster, record)
    ground = Ground(task.model, data, public, training, delivery, needed, public_samples)
    who = participation(config, ground, rounds.broadcast, channels)
    spent = None
    if config.privacy.level != "none":
        spent = spending(config, _plan_of(algorithm, task.model), task.model)
    return Composed(algorithm, training, rounds, chosen.words, who, spent)


def planned_spending(config: Config, task: Task) -> Callable[[float], Spending]:
    """What each round of a run is going to release, by its `privacy.sigma`.

    All that σ has no say in is looked at once, before this returns: the guard takes seconds.

    Raises:
        ConfigError, DataError: the settings, the model and the data do not go together, or the run
            adds no noise.
    """
    if config.privacy.level == "none":
        raise ConfigError(
            'privacy.level = "none": nothing is noisy, so ε is infinite; set privacy.level = '
            '"record" or "client"'
        )
    data, batch_size = client_data(config, task)
    check_precision(config, task.model)
    check_delta(config, len(task.clients))
    guard(config, task.model, task.loss, data)
    training = training_of(config, task.loss, batch_size)
    plan_of = _plan_of(_algorithm(config, task, training, len(data)), task.model)
    return lambda sigma: spending(config.with_sigma(sigma), plan_of, task.model)


def _plan_of(algorithm: Algorithm, model: nn.Module) -> Callable[[int], Plan]:
    first = algorithm.init(model)
    return lambda done: algorithm.plan(replace(first, round=done), model)


def _algorithm(config: Config, task: Task, training: Training, n_clients: int) -> Algorithm:
    algorithm = task.algorithm
    if algorithm is None:
        chosen = chosen_algorithm(config, sealed_kinds(config))
        private = record_level(config, chosen, n_clients, training.batch_size)
        return refined(config, task, private, training.sgd)
    if config.privacy.level != "none":
        raise ConfigError(
            f'privacy.level = "{config.privacy.level}" with an algorithm of your own: nobody knows '
            "what it sends of a record; name one of the settings' algorithms, or leave privacy out"
        )
    if isinstance(algorithm, type) or not isinstance(algorithm, Algorithm):
        raise ConfigError(
            f"{algorithm!r:.80} is no algorithm: it needs the methods init, plan, client "
            "and update of securefl.algorithms.base.Algorithm"
        )
    return algorithm


def _roles(
    config: Config,
    model: nn.Module,
    keys: OpeningKeys | None,
    weights: dict[str, float],
    identities: Identities,
    record: Record,
) -> Delivery:
    plain = PlainChannel(precision_of(model), least_clients(config))
    sealers: dict[Kind, Sealer] = dict.fromkeys(Kind, plain)
    adders: dict[Kind, Adder] = dict.fromkeys(Kind, plain)
    alike = equal_weight(len(weights))
    roster, own = identities.roster, identities.keys
    clients = {
        name: Client(name, weight, sealers, alike, _identity=own[name])
        for name, weight in weights.items()
    }
    sealing = None
    if keys:
        policy = policy_of(config, keys.policy)
        least = max(policy.min_contributions, fewest_shares(config, len(clients)))
        policy = replace(policy, min_contributions=least)
        opener = keys.opener(policy.flooding, len(clients))
        authority = Authority(opener, roster, policy, record.log_opening)
        sealing = Sealing(
            sealed_kinds(config), sealers, adders, authority, policy, len(clients), keys
        )
    session = secrets.token_hex(32)
    return Delivery(
        run=session,
        clients=clients,
        # Drawn with replacement, a client counts as often as it is drawn.
        server=Server(
            session,
            roster,
            adders,
            None if config.selection.replacement == "with" else Shares(weights, alike),
        ),
        sealing=sealing,
        plain=plain,
        value_bytes=np.dtype(plain.dtype).itemsize,
        ledger=record.ledger,
        report=record.incidents.append,
    )


def _channels(
    config: Config, match_keys: MatchKeys | None, roster: Roster, record: Record
) -> Iterator[MatchChannel]:
    """In the clear, or under one key after the other."""
    noise = _score_noise(config)
    if not config.exchange.seals_profiles:
        plain = PlainMatch()
        yield MatchChannel(plain, plain, noise=noise)
        return
    form = FORMS[config.selection.match]
    keys = match_keys or MatchKeys.ephemeral(form, seed=score_seed(config))
    while True:
        opener = CkksScoreOpener(form, keys.secret, keys.count, noise, keys.draw)
        yield MatchChannel(
            CkksProfileSealer(form, keys.public),
            CkksMatcher(form, keys.scoring),
            ScoreAuthority(opener, roster, policy_of(config, keys.policy), record.log_opening),
            keys,
            noise,
        )
        keys = keys.successor()


def _score_noise(config: Config) -> ScoreNoise | None:
    table = config.privacy
    if table.level != "client":
        return None
    return ScoreNoise(table.score_clip, table.statistics_sigma * table.score_clip)
