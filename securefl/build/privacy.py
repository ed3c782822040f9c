"""The differentially private algorithm and its accounting, from the settings."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from math import sqrt

from torch import nn

from securefl.algorithms.algorithm import Algorithm
from securefl.algorithms.features import last_linear
from securefl.algorithms.federated import Federated
from securefl.algorithms.fnr import ACCURACIES, NORMS
from securefl.algorithms.public_training import Objective, PublicData, train_on_public
from securefl.build.training import schedule
from securefl.data.samples import samples
from securefl.errors import ConfigError
from securefl.norms.find import batch_normalising, variances
from securefl.privacy.client_level import ClientLevel
from securefl.privacy.clipped import Quantile
from securefl.privacy.clipping import Clipping
from securefl.privacy.distributed_noise import ClientNoise, DistributedNoise
from securefl.privacy.dp_fixbn import DpFixBN, StatisticsRelease, evenly
from securefl.privacy.dp_sgd import DpSgd, PrivateStep
from securefl.privacy.events import (
    Gaussian,
    Level,
    PrivacyEvent,
    SampledGaussian,
    WithoutPrivacy,
)
from securefl.privacy.odometer import Spending
from securefl.privacy.randomness import RandomnessOf, Seeded, secret
from securefl.settings.tables import Config
from securefl.task import Task
from securefl.types import Freeze, Kind, Plan


def clipping_of(config: Config) -> Clipping:
    """Return the rule that bounds norms; an adaptive C clips flat."""
    adaptive = config.privacy.clipping == "adaptive"
    return Clipping.FLAT if adaptive else Clipping(config.privacy.clipping)


def randomness_of(config: Config) -> RandomnessOf:
    """Return the source of all of a client's noise."""
    return Seeded if config.privacy.noise == "seeded" else secret


def check_delta(config: Config, n_clients: int) -> None:
    """Raise ConfigError where δ would allow to publish one record, or all of one client."""
    table = config.privacy
    if table.level == "none":
        return
    hidden, of = n_clients, f"{n_clients} clients"
    if table.level == "record" and table.records:
        hidden, of = table.records * n_clients, f"{table.records} records of each of {of}"
    if table.delta >= 1 / hidden:
        raise ConfigError(
            f"privacy.delta = {table.delta:g} with {of}: must be below 1 / {hidden}, since to "
            f"publish one {table.level} at random would satisfy it"
        )


def shares_of(config: Config, n_clients: int) -> DistributedNoise:
    """Return the clients' shares of a round's noise; raises ConfigError where too few would."""
    table = config.privacy
    return DistributedNoise(config.selection.n_selected(n_clients), table.dropouts, table.colluders)


def fewest_shares(config: Config, n_clients: int) -> int:
    """Return the least contributions whose noise together is what the accounting assumes."""
    return shares_of(config, n_clients).fewest if _in_shares(config) else 1


def record_level(config: Config, inner: Federated, n_clients: int, batch_size: int) -> Federated:
    """Replace the solver's gradients by DP-SGD, and FixBN by DP-FixBN."""
    table, records = config.privacy, config.privacy.records
    if table.level != "record":
        return inner
    assert records is not None  # noqa: S101 -- for mypy: the settings are checked
    step = PrivateStep(
        table.sigma,
        table.clip,
        clipping_of(config),
        config.train.batch_size / records,
        batch_size,
        _quantile(config, batch_size),
    )
    private = replace(inner, solver=DpSgd(inner.solver, step, randomness_of(config)))
    if not config.algorithm.releases_statistics:
        return private
    release = StatisticsRelease(
        table.statistics_clip,
        table.statistics_sigma,
        shares_of(config, n_clients),
        records,
        randomness_of(config),
    )
    policy = DpFixBN(_released_in(config), release, config.algorithm.frozen or Freeze.STATISTICS)
    return replace(private, normalisation=policy)


def client_level(config: Config, inner: Algorithm, model: nn.Module, n_clients: int) -> Algorithm:
    """Wrap the algorithm so that contributions are clipped and noisy."""
    table = config.privacy
    if table.level != "client":
        return inner
    shares = shares_of(config, n_clients)
    bounds = {}
    if config.fnr.refines:
        n_classes = last_linear(model).out_features
        norms = table.statistics_clip * sqrt(2 * n_classes)
        bounds = {ACCURACIES: 1.0, NORMS: norms}  # a client counts one at one level
    noise = ClientNoise(
        table.sigma,
        table.clip,
        clipping_of(config),
        shares,
        _quantile(config, shares.n_clients),
        bounds,
    )
    return ClientLevel(inner, noise, randomness_of(config), variances(model))


def warmed_up(config: Config, task: Task) -> Task:
    """Replace the task's model by one trained on the public samples, in training mode.

    Raises:
        ConfigError: there are none.
    """
    epochs = config.privacy.warm_up
    if not epochs:
        return task
    if task.public is None:
        raise ConfigError(
            f"privacy.warm_up = {epochs} trains on public samples, and the task has none: give it "
            "some that no client holds, Task(public=(x, y))"
        )
    held = samples(task.public, "the public samples")
    public = PublicData(held, config.train.batch_size, epochs, config.run.seed)
    model = copy.deepcopy(task.model)
    train_on_public(model, public, 0, schedule(config)(0), Objective(task.loss))
    return replace(task, model=model)


def spending(config: Config, plan_of: Callable[[int], Plan], model: nn.Module) -> Spending:
    """Build the accounting of the releases of each round."""
    table = config.privacy
    level = Level(table.level)
    if level is Level.RECORD:

        def training(done: int) -> list[PrivacyEvent]:
            return _of_records(config, done, len(batch_normalising(model)))
    else:

        def training(done: int) -> list[PrivacyEvent]:
            plan = plan_of(done)
            sent = [s for s in (*plan.sums, *plan.update) if s.kind is not Kind.CLIPPING]
            return [Gaussian(table.sigma, len(sent))]

    asked = _of_selection(config)
    return Spending(
        level,
        table.delta,
        config.run.rounds,
        lambda done: (*training(done), *asked),
        table.budget,
    )


def _of_records(config: Config, done: int, n_layers: int) -> list[PrivacyEvent]:
    """Return the releases of one client's records; a record is in one client's data alone."""
    table, steps = config.privacy, config.algorithm.local_steps
    assert table.records is not None  # noqa: S101 -- for mypy: the settings are checked
    rate = config.train.batch_size / table.records
    events: list[PrivacyEvent] = [SampledGaussian(table.sigma, rate, steps)]
    if config.algorithm.releases_statistics and done in _released_in(config):
        events.append(Gaussian(table.statistics_sigma, n_layers))
    return events


def _of_selection(config: Config) -> list[PrivacyEvent]:
    """Return the releases of selection: in a round, each question is asked once at most."""
    selection = config.selection
    if selection.asks_for_profiles:
        return [Gaussian(config.privacy.statistics_sigma)]
    if selection.tells:
        told = f'selection.name = "{selection.name}" (clients tell their {selection.tells})'
        return [WithoutPrivacy(told)]
    return []


def _released_in(config: Config) -> frozenset[int]:
    if config.privacy.warm_up:
        return frozenset()
    releases, switch = (
        config.privacy.releases,
        config.algorithm.switch_round(config.run.rounds) or 0,
    )
    found = evenly(releases, switch)
    if len(found) < releases:
        raise ConfigError(
            f"privacy.releases = {releases}: up to algorithm.switch, round {switch}, there are "
            f"{switch + 1} rounds that could begin with one; have fewer releases, or a later switch"
        )
    return found


def _in_shares(config: Config) -> bool:
    level = config.privacy.level
    released = (
        level == "record" and config.algorithm.releases_statistics and not config.privacy.warm_up
    )
    return level == "client" or released


def _quantile(config: Config, expected: float) -> Quantile | None:
    if config.privacy.clipping != "adaptive":
        return None
    return Quantile(config.privacy.quantile, expected, config.privacy.sigma)
