"""The participation that the settings name: selector, what it asks for, and simulated devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from securefl.build.algorithm import n_selected, randomness_of
from securefl.config.schema import Config
from securefl.config.selection import SelectionTable
from securefl.data.samples import Samples
from securefl.errors import ConfigError
from securefl.federation.broadcast import Broadcast
from securefl.federation.delivery import Delivery
from securefl.federation.profile_match import MatchChannel, ProfileQuestion, Profiling
from securefl.federation.questions import LossQuestion, Question, SizeQuestion
from securefl.federation.training import DEVICES, PROFILING, Training, round_generator
from securefl.privacy.profiles import PrivateProfiler
from securefl.privacy.randomness import Randomness
from securefl.selection.afl import Afl
from securefl.selection.base import Selector
from securefl.selection.cfcfm import Cfcfm
from securefl.selection.data_share import ByDataShare
from securefl.selection.device_simulation import Fleet, Loads
from securefl.selection.draw import Replacement
from securefl.selection.fairness import FairnessFloor
from securefl.selection.fedprof import Alpha, FedProf, Theorem1
from securefl.selection.participation import Choice, Conditions, Participation
from securefl.selection.uniform import Random


def chosen_selector(table: SelectionTable, clients: Sequence[str]) -> Selector:
    """The one that the settings name.

    Raises:
        ConfigError: a penalty factor for a client that there is none of.
    """
    if strangers := sorted(table.alpha_by_client.keys() - set(clients)):
        raise ConfigError(
            f"selection.alpha_by_client names {', '.join(strangers)}: the clients are "
            f"{clients[0]} to {clients[-1]}"
        )
    replacement = Replacement(table.replacement)
    selector: Selector
    match table.name:
        case "data-share":
            selector = ByDataShare(replacement)
        case "fedprof":
            alpha = table.alpha
            penalty = Theorem1() if alpha == "theorem1" else Alpha(alpha, table.alpha_by_client)
            selector = FedProf(penalty, replacement)
        case "afl":
            selector = Afl(table.excluded, table.sharpness, table.uniform)
        case "cfcfm":
            selector = Cfcfm()
        case _:
            selector = Random(replacement)
    return selector


@dataclass(frozen=True, slots=True)
class Ground:
    """What the rounds of a run are made of."""

    model: nn.Module
    """Copied where it is needed, not changed."""
    data: Mapping[str, Samples]
    """By client."""
    public: Samples | None
    """What the server profiles."""
    training: Training
    delivery: Delivery
    needed: int
    """Clients without whom a round comes to nothing."""
    public_samples: float
    """That a client trains on in a round, in expectation."""


def participation(
    config: Config, ground: Ground, broadcast: Broadcast, channels: Iterator[MatchChannel]
) -> Participation:
    """Who takes part in the rounds of a run.

    Args:
        config: its settings.
        ground: what its engine has.
        broadcast: its engine's.
        channels: that profiles are matched over, one after the other.

    Raises:
        ConfigError, DataError: the settings, the model and the data do not go together.
    """
    table, clients = config.selection, list(ground.data)
    choice = None
    if table.name != "all":
        selector = chosen_selector(table, clients)
        choice = Choice(
            FairnessFloor(selector, table.fairness) if table.fairness else selector,
            n_selected(config, len(clients)),
            _questions(config, ground, channels),
            isinstance(selector, Cfcfm),
            selector if isinstance(selector, FedProf) else None,
        )
    return Participation(
        clients,
        choice,
        _conditions(config, clients),
        Loads(ground.delivery, broadcast, ground.training, ground.data, ground.public_samples),
        broadcast,
        config.run.seed,
        ground.needed,
    )


def _questions(config: Config, ground: Ground, channels: Iterator[MatchChannel]) -> list[Question]:
    table = config.selection
    delivery, data, model = ground.delivery, ground.data, ground.model
    sizes = SizeQuestion(delivery, data)
    match table.name:
        case "fedprof" if table.asks_for_profiles:
            if ground.public is None:
                raise ConfigError(
                    'selection.name = "fedprof": the server compares profiles with that of its own '
                    "samples: give Task(public=(x, y)), which no client holds"
                )
            profiling = _profiling(config, model, list(data))
            return [ProfileQuestion(delivery, data, profiling, ground.public, channels)]
        case "afl":
            return [LossQuestion(delivery, data, model, ground.training.loss), sizes]
        case "data-share" | "fedprof":
            return [sizes]
        case _:
            return []


def _profiling(config: Config, model: nn.Module, clients: Sequence[str]) -> Profiling:
    table = config.privacy
    private = PrivateProfiler(table.statistics_clip, table.statistics_sigma)
    profiler = private if table.level == "record" else None
    return Profiling(model, config.selection.layer, profiler, _randomness(config, clients))


def _randomness(config: Config, clients: Sequence[str]) -> Callable[[int, str], Randomness]:
    number = {client: PROFILING + i for i, client in enumerate(clients)}
    of, seed = randomness_of(config), config.run.seed
    return lambda version, client: of(round_generator(seed, version, number[client]))


def _conditions(config: Config, clients: Sequence[str]) -> Conditions:
    table = config.devices
    fleet = None
    if table.specification:
        rng = round_generator(config.run.seed, 0, DEVICES)
        fleet = Fleet.drawn(table.specification, clients, rng)
    return Conditions(fleet, table.deadline_s, table.dropout)
