"""Scores of a trained model on data of clients that had no part in its training.

UniFed's external clients: the global model, either with the global BN statistics or with those
that its BN layers estimate from the client's own, unlabelled batches.
"""

import copy
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from torch.nn import functional

from securefl.algorithms.algorithm import Loss, lay_over
from securefl.algorithms.scoring import Score
from securefl.algorithms.scoring import evaluate as score
from securefl.data.samples import Given, given_data, samples
from securefl.errors import ConfigError, RunFolderError
from securefl.evaluation.own_part import require_part_of
from securefl.io.tensors import read_tensors
from securefl.metrics.chosen import Measure, chosen_metric
from securefl.norms.adapted import adapted_batch_norm
from securefl.runs.folder_files import MODEL
from securefl.runs.folder_reader import read_config
from securefl.runs.folder_writer import RunFolder, own_task_needed, way_on
from securefl.runs.loop import Result
from securefl.runs.task_record import require_same_task
from securefl.settings.clashes import require_global_model
from securefl.settings.tables import Config
from securefl.task import Task, configured_task, data_types, with_metric
from securefl.trial import labelled, require_plain, tried
from securefl.types import NamedTensors

BATCH_SIZE = 32  # UniFed's, where nothing else is said


class UntrainedStatistics(UserWarning):
    """Warning that a run's global BN statistics are those from before its training."""


def evaluate(
    model: "nn.Module | Result | Trained | Path | str",
    data: Given,
    *,
    adapt_bn: float | None = None,
    batch_size: int = BATCH_SIZE,
    loss: Loss | None = None,
    metric: str | Measure | None = None,
) -> Score:
    """Score a trained model, with the global BN statistics or adapted ones.

    Adapted statistics come from the batches in the order of the samples, and from inputs alone:
    labels only score. Samples that are sorted by class should be shuffled before, since each batch
    would then show its class.

    Args:
        model: left as it is; or what a run gave, or its folder: its global model is meant.
        data: (x, y) tensors or numpy arrays, or a torch Dataset.
        adapt_bn: τ, the weight of the old statistics, 0 <= τ < 1; None keeps the global ones.
        batch_size: so many samples share one step of the statistics.
        loss: mean over a batch, of (model output, y); where None, the run's, or cross-entropy for
            a model of your own.
        metric: as `Task.metric`; where None, the run's, or it follows from the loss and the data.

    Warns where the global BN statistics are not of training.

    Raises:
        ConfigError: τ or the batch size is out of range, or the metric unknown; the run had a task
            of its own.
        DataError: data or a model that cannot be used; no BN layer to adapt.
        RunFolderError: no run's folder, an unfinished or a damaged one.

    Examples:
        >>> securefl.evaluate(result, test).value == result.score  # or a model, or a run's folder
        True
        >>> adapted = securefl.evaluate(model, test, adapt_bn=0.9)
    """
    check_batch_size(batch_size)
    if not isinstance(model, nn.Module):
        trained = load_trained(model) if isinstance(model, Path | str) else model
        if note := note_on(trained):
            warnings.warn(note, UntrainedStatistics, stacklevel=2)
        model, task = trained.model, trained.task
        if loss is None:
            loss, metric = task.loss, task.metric if metric is None else metric
    require_plain(model)
    own = copy.deepcopy(model)
    adapted = nullcontext() if adapt_bn is None else adapted_batch_norm(own, adapt_bn)
    if loss is None:
        loss = functional.cross_entropy
    held = samples(given_data(data, "the data", data_types(own, loss)), "the data")
    of = {"the data": held}
    held = labelled(of, tried(own, loss, of), loss)["the data"]
    chosen = None if metric is None else chosen_metric(metric, loss)
    with adapted:
        return score(own, held, loss, chosen, batch_size=batch_size)


# Two are compared by identity: tensors have no single truth value to compare by.
@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """Settings, task and model of a finished run.

    Examples:
        >>> trained = securefl.load_trained("runs/first", task)
        >>> trained.config.run.rounds, trained.own
        (2, False)
        >>> trained.model(test[0]).shape
        torch.Size([80, 2])
    """

    config: Config
    task: Task
    """Task of the run; its model is the untrained one."""
    model: nn.Module
    """Model after the last round: the global one, or a client's."""
    own: bool = False
    """True where it is a client's, with the client's own part."""


def load_trained(
    folder: Path | str, task: Task | None = None, own: "NamedTensors | None" = None
) -> Trained:
    """Load a finished run, or one that diverged, with the model that its folder holds.

    Args:
        folder: the run's.
        task: the one that the run was started with, where it had its own.
        own: a client's own part of the model (`own_part`), where that client's is meant.

    Raises:
        ConfigError: the run had a task of its own and `task` is None, or the other way round, or
            `task` is another than the run's; or it trained no global model.
        RunFolderError: no run's folder, an unfinished or a damaged one, or another model's; `own`
            is no part of it.

    Examples:
        >>> trained = securefl.load_trained("runs/first", task)
        >>> securefl.evaluate(trained, test).value == result.score
        True
    """
    folder = Path(folder)
    config = read_config(folder)
    if own is None:
        require_global_model(config)
    if RunFolder(folder).has_own_task() != (task is not None):
        raise ConfigError(
            own_task_needed(folder, f"securefl.load_trained({str(folder)!r}, task)")
            if task is None
            else f"{folder}: this run had no task of its own; load it without one"
        )
    if task is not None:
        require_same_task(folder, task, config)
    task = with_metric(task or configured_task(config), config)
    model = with_trained_tensors(folder, task.model)
    if own:
        require_part_of(model, own)
        lay_over(model, own)
    return Trained(config, task, model, own=own is not None)


def with_trained_tensors(folder: Path, model: nn.Module) -> nn.Module:
    """Return a copy of a run's model with the trained tensors.

    A run that diverged has left its last good model.

    Raises:
        RunFolderError: an unfinished run, a damaged one, or another model's.
    """
    path = folder / MODEL
    if not path.is_file():
        raise RunFolderError(f"{folder}: this run is not finished; go on with {way_on(folder)}")
    tensors = read_tensors(path)
    model = copy.deepcopy(model)
    if _layout(tensors) != _layout(model.state_dict()):
        raise RunFolderError(f"{path}: holds another model than this run trains")
    model.load_state_dict(tensors)
    return model


def note_on(run: "Result | Trained") -> str:
    """Return a note where the model's BN statistics are not of training; empty elsewhere.

    Raises:
        ConfigError: it is a global model of a run that trained none for others.
    """
    if isinstance(run, Trained) and run.own:
        return ""
    require_global_model(run.config)
    return untrained_statistics(run.config)


def untrained_statistics(config: Config) -> str:
    """Return a note where the global BN statistics are not of training; empty elsewhere."""
    algorithm = config.algorithm
    if not algorithm.statistics_stay:
        return ""
    return (
        f"{algorithm.name} keeps {algorithm.kept} at its clients, so the global statistics are "
        "those from before training (UniFed)."
    )


def check_batch_size(batch_size: int) -> None:
    """Raise ConfigError for a number of samples that no batch has."""
    if batch_size < 1:
        raise ConfigError(f"batch_size = {batch_size}: must be at least 1; UniFed's is 32")


def _layout(tensors: NamedTensors) -> dict[str, tuple[object, object]]:
    return {name: (value.shape, value.dtype) for name, value in tensors.items()}
