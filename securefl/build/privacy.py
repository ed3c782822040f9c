"""Differential privacy of a run: what its δ must be below, and the accounting of its releases."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import nn

from securefl.algorithms.public_training import Objective, PublicData, train_on_public
from securefl.build.training import schedule
from securefl.data.samples import Samples, samples
from securefl.errors import ConfigError
from securefl.norms.find import batch_normalising
from securefl.privacy.clipping import clipping_of
from securefl.privacy.events import Gaussian, Level, PrivacyEvent, WithoutPrivacy
from securefl.privacy.independence_check import require_independent
from securefl.privacy.odometer import Spending
from securefl.settings.tables import Config
from securefl.task import Task
from securefl.types import Plan


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


def require_independent_records(config: Config, task: Task, data: Mapping[str, Samples]) -> None:
    """Check that no record acts on another's gradient, where noise hides records.

    Raises:
        ConfigError: one does, or no clip bounds its gradient.
    """
    if config.privacy.of_records:
        frozen = config.algorithm.releases_statistics
        clipping = clipping_of(config.privacy.clipping)
        require_independent(task.model, task.loss, data, clipping, frozen=frozen)


def spending(config: Config, plan_of: Callable[[int], Plan], model: nn.Module) -> Spending:
    """Build the accounting of the releases of each round."""
    choice, asked, n_layers = config.privacy, _of_selection(config), len(batch_normalising(model))
    return Spending(
        Level(choice.level),
        choice.delta,
        config.run.rounds,
        lambda done: (*choice.trained(config, done, plan_of, n_layers), *asked),
        choice.budget,
    )


def _of_selection(config: Config) -> list[PrivacyEvent]:
    """Return the releases of selection: in a round, each question is asked once at most."""
    selection = config.selection
    if selection.asks_for_profiles:
        return [Gaussian(config.privacy.statistics_sigma)]
    if selection.tells:
        told = f'selection.name = "{selection.name}" (clients tell their {selection.tells})'
        return [WithoutPrivacy(told)]
    return []
