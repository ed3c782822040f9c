"""A simulation: clients, server and authority of a run in one process.

No other module sees all three.
"""

import copy
import secrets

from securefl.build.job import job_of
from securefl.build.parties import keys_for, parties_of
from securefl.build.selection import Ground, participation
from securefl.build.training import divergence_advice
from securefl.errors import ConfigError
from securefl.exchange.officer import KeySet
from securefl.federation.broadcast import Broadcast
from securefl.federation.cards import Cards
from securefl.federation.client import Identities
from securefl.federation.query import Respondent
from securefl.federation.server import Server
from securefl.report.finish import at_end
from securefl.runs.loop import Parts, Record, Rounds
from securefl.settings.tables import Config
from securefl.simulation.choice import ClientEnds, chosen_engine
from securefl.simulation.clients import Clients
from securefl.task import Task, client_names


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
    keys = keys_for(config, keys)
    job, record = job_of(config, task), record or Record()
    config, task = job.config, job.task
    identities = identities or Identities.ephemeral(job.data)
    identities.require(job.data)
    parties = parties_of(job, keys, identities, record)
    server = Server(
        secrets.token_hex(32),
        identities.roster,
        parties.adders,
        job.shares,
        plain=job.plain,
        sealed=job.sealed,
        ledger=record.ledger,
        report=record.incidents.append,
        blind=config.exchange.blind,
    )
    profiling, opener = parties.profiling, parties.opener
    respondent = Respondent(parties.clients, job.data, task.model, task.loss, profiling)
    index = {name: i for i, name in enumerate(job.data)}
    trained = Clients(job.algorithm, copy.deepcopy(task.model), job.data, job.training, index)
    ends = ClientEnds(parties.clients, respondent, profiling, job.plain.dtype)
    chosen = chosen_engine(config, trained, ends)
    engine = chosen.engine
    broadcast = Broadcast(server, job.names)
    cards = Cards(server, engine, opener)
    ground = Ground(job, server, engine, broadcast, parties.channel, profiling, cards)
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
            score=lambda model, state: job.evaluator.score(model, state, engine.client_states),
            metric=job.evaluator.metric,
            record=record,
            engine_words=chosen.words,
            least_clients=parties.least,
            quorum=config.sites.quorum or 1,
            spending=job.spending(),
            key_id=parties.public.key_id if parties.public else "",
            qualities=_by_client(config, task),
            advice=lambda done: divergence_advice(config, done),
            at_end=at_end(config),
        )
    )


def _by_client(config: Config, task: Task) -> dict[str, str]:
    """Return the quality of each client's data; empty where the task has none."""
    if len(task.qualities) not in {0, len(task.clients)}:
        raise ConfigError(
            f"{len(task.qualities)} qualities for {len(task.clients)} clients: name each client's, "
            "or none"
        )
    names = client_names(config, task) if task.qualities else ()
    return dict(zip(names, task.qualities, strict=True))
