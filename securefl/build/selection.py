"""The participation that the settings name: selector, its questions, and simulated devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from securefl.build.own_choices import OwnSelector
from securefl.errors import ConfigError
from securefl.exchange.noise import ScoreNoise
from securefl.federation.broadcast import Broadcast
from securefl.federation.cards import Cards
from securefl.federation.engine import Engine
from securefl.federation.message import SCORES
from securefl.federation.profile_match import MatchChannel, ProfileQuestion
from securefl.federation.query import Profiling
from securefl.federation.questions import NumberQuestion, Question
from securefl.federation.server import Server
from securefl.federation.survey import NumberRange
from securefl.federation.training import DEVICES, PROFILING, round_generator
from securefl.privacy.randomness import Randomness, Secret, randomness_of, secret
from securefl.selection.device_simulation import ClientWorkloads, SimulatedDevices
from securefl.selection.fairness import FairnessFloor
from securefl.selection.participation import Conditions, Participation, RoundSelection
from securefl.selection.selector import Selector
from securefl.settings.axes import SELECTORS
from securefl.settings.tables import Config
from securefl.types import PROFILE, SIZE

if TYPE_CHECKING:
    from securefl.build.job import Job


@dataclass(frozen=True, slots=True)
class Ground:
    """Parts of a run that its participation is built from."""

    job: Job
    server: Server
    engine: Engine
    broadcast: Broadcast
    channel: MatchChannel
    """Channel that profiles are matched over."""
    profiling: Profiling
    cards: Cards


def participation(config: Config, ground: Ground) -> Participation:
    """Build the participation of clients in the rounds of a run.

    Raises:
        ConfigError, DataError: the settings, the model and the data do not go together.
    """
    table, clients, job = config.selection, list(ground.job.names), ground.job
    choice = None
    if isinstance(table, Selector):
        table.require_clients(clients)
        wait = table.longest_wait
        own = SELECTORS.is_own(type(table))
        selector = OwnSelector(table, job.needed) if own else table
        choice = RoundSelection(
            FairnessFloor(selector, wait) if wait else selector,
            selector.n_selected(len(clients)),
            [_question(name, ground) for name in table.asked],
            table.needs_devices,
            selector.scores,
        )
    return Participation(
        clients,
        choice,
        _conditions(config, clients),
        ClientWorkloads(
            ground.server, ground.broadcast, job.training, job.data, job.public_samples
        ),
        ground.broadcast,
        config.run.seed,
        job.needed,
    )


def numbers_of(job: Job) -> tuple[str, ...]:
    """Return the names of the answers that a job asks of single clients, scores among them."""
    each = job.scores_at_clients and job.config.sites.scores == "each"
    scores = SCORES if each else ()
    return (*job.config.selection.asked, *scores)


def most_times(config: Config, n_clients: int) -> int:
    """Return how often one client may count in a round: once, except in draws with replacement."""
    return config.selection.n_selected(n_clients) if config.selection.repeats else 1


def _question(name: str, ground: Ground) -> Question:
    if name != PROFILE:
        form = ground.job.config.samples
        sizes = NumberRange(1, form.most, whole=True) if form and name == SIZE else None
        return NumberQuestion(ground.server, ground.engine, name, sizes)
    public = ground.job.public
    if public is None:
        raise ConfigError(
            f'selection.name = "{ground.job.config.selection.name}": the server compares profiles '
            "with that of its own samples: give Task(public=(x, y)), which no client holds"
        )
    model, profiling = ground.job.task.model, ground.profiling
    return ProfileQuestion(ground.cards, profiling, model, public, ground.channel)


def score_noise(config: Config) -> ScoreNoise | None:
    """Return the noise that hides a client in its opened score; None where none does."""
    noise: ScoreNoise | None = config.privacy.score_noise()
    return noise


def profiling_of(config: Config, clients: Sequence[str]) -> Profiling:
    """Build the profiling of clients' data, whether or not it is asked for."""
    layer, profiler = config.selection.profiled_layer, config.privacy.profiler()
    return Profiling(layer, profiler, _randomness(config, clients))


def _randomness(config: Config, clients: Sequence[str]) -> Callable[[int, str], Randomness]:
    number = {client: PROFILING + i for i, client in enumerate(clients)}
    of, seed = randomness_of(config.privacy.noise), config.run.seed
    if of is secret:
        return lambda _version, _client: Secret()
    return lambda version, client: of(round_generator(seed, version, number[client]))


def _conditions(config: Config, clients: Sequence[str]) -> Conditions:
    table = config.devices
    simulated = None
    if table.specification:
        rng = round_generator(config.run.seed, 0, DEVICES)
        simulated = SimulatedDevices.drawn(table.specification, clients, rng)
    return Conditions(simulated, table.deadline_s, table.dropout)
