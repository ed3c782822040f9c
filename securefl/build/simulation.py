"""A simulation: clients, server and authority of a run in one process.

No other module sees all three.
"""

from __future__ import annotations

import copy
import secrets

from securefl.build.algorithm import divergence_advice
from securefl.build.exchange import policy_of_sums, quorum_of
from securefl.build.job import job_of
from securefl.build.selection import Ground, participation, profiling_of, score_noise
from securefl.errors import ConfigError
from securefl.evaluation.evaluator import Evaluator
from securefl.exchange.noise import ScoreNoise
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.one_time_match import OneTimeProfileSealer
from securefl.exchange.policy import Policy
from securefl.exchange.profile_match import PlainMatch, ProfileSealer
from securefl.exchange.sums import Adder, Sealer
from securefl.federation.authority import Authority, CheckingOfficer, ScoreAuthority
from securefl.federation.broadcast import Broadcast
from securefl.federation.cards import Cards
from securefl.federation.client import Client, Identities
from securefl.federation.engine import InTheClear, Opener
from securefl.federation.message import Roster
from securefl.federation.officers import Officers, OfficersHere
from securefl.federation.profile_match import (
    MatchChannel,
    MatchInTheClear,
    OpenScores,
    SealedMatch,
)
from securefl.federation.query import Profiling, Respondent
from securefl.federation.server import Server
from securefl.report.finish import at_end
from securefl.runs.loop import Parts, Record, Rounds
from securefl.settings.tables import Config
from securefl.simulation.choice import ClientEnds, chosen_engine
from securefl.simulation.clients import Clients
from securefl.task import Task, client_names
from securefl.types import Kind


def simulated(
    config: Config,
    task: Task | None = None,
    keys: KeySet | None = None,
    identities: Identities | None = None,
    record: Record | None = None,
) -> Rounds:
    """Build the rounds of a simulated federation, before the first one.

    Args:
        config: the settings.
        task: model and data of the user's own; those that the settings name where None.
        keys: where anything is encrypted; ephemeral where None.
        identities: what clients sign with; made for this run where None.
        record: what is written down; a fresh one where None.

    Raises:
        ConfigError, DataError: the settings, the model and the data do not go together.
    """
    if not config.needs_cards:
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
    job, record = job_of(config, task), record or Record()
    config, task = job.config, job.task
    evaluator = Evaluator(task, client_names(config, task))
    identities = identities or Identities.ephemeral(job.data)
    identities.require(job.data)
    sealers: dict[Kind, Sealer] = dict.fromkeys(Kind, job.plain)
    adders: dict[Kind, Adder] = dict.fromkeys(Kind, job.plain)
    opener: Opener = InTheClear()
    profile_sealer: ProfileSealer = PlainMatch()
    noise, profiling, least = score_noise(config), profiling_of(config, job.names), job.needed
    channel: MatchChannel = MatchInTheClear(noise)
    public = keys.public if keys else None
    if keys and public:
        sealers |= dict.fromkeys(job.sealed, OneTimeSealer(public))
        adders |= dict.fromkeys(job.sealed, OneTimeAdder(public))
        policy = policy_of_sums(config, keys.policy, len(job.weights))
        opener = judge = _opener(keys, identities.roster, policy, record)
        if config.exchange.seals_sums:
            least = max(least, policy.min_contributions)
        if config.seals_scores:
            profile_sealer = OneTimeProfileSealer(public)
            channel = SealedMatch(judge, noise, _scores(judge, noise, profiling))
    clients = {
        name: Client(
            name,
            weight,
            sealers,
            job.equal_weight,
            profile_sealer,
            public,
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
        sealed=job.sealed,
        ledger=record.ledger,
        report=record.incidents.append,
        blind=config.exchange.blind,
    )
    respondent = Respondent(clients, job.data, task.model, task.loss, profiling)
    index = {name: i for i, name in enumerate(job.data)}
    trained = Clients(job.algorithm, copy.deepcopy(task.model), job.data, job.training, index)
    ends = ClientEnds(clients, respondent, profiling, job.plain.dtype)
    chosen = chosen_engine(config, trained, ends)
    engine = chosen.engine
    broadcast = Broadcast(server, job.names)
    cards = Cards(server, engine, opener)
    ground = Ground(job, server, engine, broadcast, channel, profiling, cards)
    return Rounds(
        Parts(
            config=config,
            task=task,
            algorithm=job.algorithm,
            training=job.training,
            server=server,
            engine=engine,
            opener=opener,
            cards=cards,
            broadcast=broadcast,
            participation=participation(config, ground),
            score=lambda model, state: evaluator.score(model, state, engine.memories),
            metric=evaluator.metric,
            record=record,
            engine_words=chosen.words,
            least_clients=least,
            quorum=config.sites.quorum or 1,
            spending=job.spending(),
            key_id=public.key_id if public else "",
            qualities=_by_client(config, task),
            advice=lambda done: divergence_advice(config, done),
            at_end=at_end(config),
        )
    )


def _opener(keys: KeySet, roster: Roster, policy: Policy, record: Record) -> Authority | Officers:
    """Build the authority, or whoever asks officers in its place, each of whom checks for itself.

    The officers' own logs are not kept, as they say what the record says.
    """
    if keys.quorum.officers == 1:
        return Authority(keys.opener(), roster, policy, record.log_opening)
    officers = [
        CheckingOfficer(officer, roster, policy, lambda _opening: None)
        for officer in keys.officers()
    ]
    panel = OfficersHere(officers)
    return Officers(keys.public, panel, record.log_opening, record.incidents.append)


def _scores(
    opener: Authority | Officers, noise: ScoreNoise | None, profiling: Profiling
) -> OpenScores:
    """Return the function that opens scores."""
    if isinstance(opener, Officers):
        return opener.open_scores
    return ScoreAuthority(opener, noise, profiling.draw).open


def _by_client(config: Config, task: Task) -> dict[str, str]:
    """Return the quality of each client's data; empty where the task has none."""
    if len(task.qualities) not in {0, len(task.clients)}:
        raise ConfigError(
            f"{len(task.qualities)} qualities for {len(task.clients)} clients: name each client's, "
            "or none"
        )
    names = client_names(config, task) if task.qualities else ()
    return dict(zip(names, task.qualities, strict=True))
