"""A simulation: clients, server and authority of a run in one process.

No other module sees all three.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from securefl.build.algorithm import divergence_advice
from securefl.build.exchange import (
    check_reproducible,
    policy_of,
    policy_of_sums,
    quorum_of,
    score_seed,
)
from securefl.build.job import Job, job_of
from securefl.build.selection import Ground, participation, profiling_of, score_noise
from securefl.config.schema import Config
from securefl.errors import ConfigError
from securefl.evaluation.evaluator import Evaluator
from securefl.exchange.base import Adder, Sealer
from securefl.exchange.keyset import KeySet
from securefl.exchange.match_ckks import CkksMatcher, CkksProfileSealer
from securefl.exchange.match_forms import FORMS, MatchForm
from securefl.exchange.match_open import MatchKeys
from securefl.exchange.match_plain import PlainMatch
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.score_noise import ScoreNoise
from securefl.federation.authority import Authority
from securefl.federation.broadcast import Broadcast
from securefl.federation.cards import Cards
from securefl.federation.client import Client
from securefl.federation.engine import InTheClear, Opener
from securefl.federation.identities import Identities
from securefl.federation.incidents import Incident
from securefl.federation.opening_history import OpeningHistory
from securefl.federation.profile_match import MatchChannel, MatchInTheClear
from securefl.federation.query import Respondent
from securefl.federation.score_authority import ScoreAuthority
from securefl.federation.server import Server
from securefl.federation.survey import ScoreRequest
from securefl.report.finish import at_end
from securefl.runs.loop import Parts, Record, Rounds
from securefl.simulation.choice import ClientEnds, chosen_engine
from securefl.simulation.clients import Clients
from securefl.task import Task, client_names
from securefl.types import Kind


def simulated(
    config: Config,
    task: Task | None = None,
    keys: KeySet | None = None,
    match_keys: MatchKeys | None = None,
    identities: Identities | None = None,
    record: Record | None = None,
) -> Rounds:
    """Build the rounds of a simulated federation, before the first one.

    Args:
        config: the settings.
        task: model and data of the user's own; those that the settings name where None.
        keys: where sums are encrypted; ephemeral where None.
        match_keys: where profiles are encrypted; ephemeral ones where None.
        identities: what clients sign with; made for this run where None.
        record: what is written down; a fresh one where None.

    Raises:
        ConfigError, DataError: the settings, the model and the data do not go together.
    """
    if not config.exchange.seals_sums:
        keys = None
    elif keys is None:
        keys = KeySet.ephemeral(quorum_of(config))
    elif keys.quorum != quorum_of(config):
        asked, given = quorum_of(config), keys.quorum
        raise ConfigError(
            f"exchange.officers = {asked.officers}, of whom {asked.needed} open sums, and the keys "
            f"that are given are of {given.officers}, of whom {given.needed} do: leave the keys "
            "out, or set exchange.officers and exchange.threshold to theirs"
        )
    if match_keys:
        check_reproducible(score_seed(config), match_keys.seed)
    job, record = job_of(config, task), record or Record()
    config, task = job.config, job.task
    evaluator = Evaluator(task, client_names(config, task))
    identities = identities or Identities.ephemeral(job.data)
    identities.require(job.data)
    sealers: dict[Kind, Sealer] = dict.fromkeys(Kind, job.plain)
    adders: dict[Kind, Adder] = dict.fromkeys(Kind, job.plain)
    opener: Opener = InTheClear()
    least = job.needed
    if keys:
        sealers |= dict.fromkeys(job.sealed, OneTimeSealer(keys.public))
        adders |= dict.fromkeys(job.sealed, OneTimeAdder(keys.public))
        opener = authority = _authority(job, keys, identities, record)
        least = max(least, authority.policy.min_contributions)
    clients = {
        name: Client(
            name,
            weight,
            sealers,
            job.equal_weight,
            blind=config.exchange.blind,
            signing_key=identities.keys[name],
        )
        for name, weight in job.weights.items()
    }
    server = Server(
        secrets.token_hex(32),
        identities.roster,
        adders,
        job.shares,
        plain=job.plain,
        sealed=job.sealed if keys else frozenset(),
        ledger=record.ledger,
        report=record.incidents.append,
        blind=config.exchange.blind,
    )
    profiling = profiling_of(config, job.names)
    respondent = Respondent(clients, job.data, task.model, task.loss, profiling)
    index = {name: i for i, name in enumerate(job.data)}
    trained = Clients(job.algorithm, copy.deepcopy(task.model), job.data, job.training, index)
    ends = ClientEnds(clients, respondent, profiling, job.plain.dtype)
    chosen = chosen_engine(config, trained, ends)
    engine = chosen.engine
    broadcast = Broadcast(server, job.names)
    channel = _channel(config, match_keys, identities, record, clients)
    ground = Ground(job, server, engine, broadcast, channel, profiling)
    return Rounds(
        Parts(
            config=config,
            task=task,
            algorithm=job.algorithm,
            training=job.training,
            server=server,
            engine=engine,
            opener=opener,
            cards=Cards(server, engine, opener),
            broadcast=broadcast,
            participation=participation(config, ground),
            score=lambda model, state: evaluator.score(model, state, engine.memories),
            record=record,
            engine_words=chosen.words,
            least_clients=least,
            quorum=config.sites.quorum or 1,
            spending=job.spending(),
            key_id=keys.public.key_id if keys else "",
            qualities=_by_client(config, task),
            advice=lambda done: divergence_advice(config, done),
            at_end=at_end(config),
        )
    )


def _authority(job: Job, keys: KeySet, identities: Identities, record: Record) -> Authority:
    """Build the authority; officers that are away or lie are incidents."""
    policy = policy_of_sums(job.config, keys.policy, len(job.weights))
    opener = keys.opener(lambda text: record.incidents.append(Incident(0, "officers", "", text)))
    return Authority(opener, identities.roster, policy, record.log_opening)


@dataclass(slots=True)
class _Match:
    """A `MatchChannel` whose keys are replaced as they wear out."""

    form: MatchForm
    keys: MatchKeys
    noise: ScoreNoise | None
    authority_of: Callable[[MatchKeys], ScoreAuthority]
    clients: Mapping[str, Client]
    sealed: bool = True
    matcher: CkksMatcher = field(init=False)
    _authority: ScoreAuthority = field(init=False)

    def __post_init__(self) -> None:
        self._take(self.keys)

    def _take(self, keys: MatchKeys) -> None:
        self.keys = keys
        self.matcher = CkksMatcher(self.form, keys.scoring)
        self._authority = self.authority_of(keys)
        for client in self.clients.values():
            client.profile_sealer = CkksProfileSealer(self.form, keys.public)

    def room(self) -> int:
        """See `MatchChannel.room`."""
        if not self.keys.left:
            self._take(self.keys.successor())
        return self.keys.left

    def open(self, request: ScoreRequest) -> list[float | None]:
        """See `MatchChannel.open`."""
        return self._authority.open(request)


def _channel(
    config: Config,
    match_keys: MatchKeys | None,
    identities: Identities,
    record: Record,
    clients: Mapping[str, Client],
) -> MatchChannel:
    noise, plain = score_noise(config), PlainMatch()
    if not config.exchange.seals_profiles:
        for client in clients.values():
            client.profile_sealer = plain
        return MatchInTheClear(noise, plain)
    form, history = FORMS[config.selection.match], OpeningHistory()

    def authority(keys: MatchKeys) -> ScoreAuthority:
        opener, policy = keys.opener(form, noise), policy_of(config, keys.policy)
        return ScoreAuthority(opener, identities.roster, policy, record.log_opening, history)

    keys = match_keys or MatchKeys.ephemeral(form, seed=score_seed(config))
    return _Match(form, keys, noise, authority, clients)


def _by_client(config: Config, task: Task) -> dict[str, str]:
    """Return the quality of each client's data; empty where the task has none."""
    if len(task.qualities) not in {0, len(task.clients)}:
        raise ConfigError(
            f"{len(task.qualities)} qualities for {len(task.clients)} clients: name each client's, "
            "or none"
        )
    names = client_names(config, task) if task.qualities else ()
    return dict(zip(names, task.qualities, strict=True))
