"""Leave-one-out: train without each domain in turn, and score that domain's clients.

UniFed's external clients (section 4.1.3): with the global BN statistics, and with adapted ones.
"""

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TypeAlias

from securefl.build.run import resume, run
from securefl.data.domains import leave_out_choices
from securefl.data.samples import samples
from securefl.errors import ConfigError, RunFolderError
from securefl.evaluation.evaluate import (
    BATCH_SIZE,
    UntrainedStatistics,
    check_batch_size,
    evaluate,
    untrained_statistics,
    with_trained_tensors,
)
from securefl.io.text import MAX_FOLDER_BYTES, can_name_a_folder
from securefl.norms.adapted import adapted_batch_norm
from securefl.report.external import ExternalScore, LeaveOneOut
from securefl.runs.folder_files import holds_run, is_finished
from securefl.runs.folder_reader import read_config, read_run
from securefl.runs.folder_writer import RunFolder, write_atomically
from securefl.runs.loop import OnRound
from securefl.settings.clashes import require_global_model
from securefl.settings.tables import Config
from securefl.task import Task, configured_task, own_settings, with_metric

JSON_REPORT, MARKDOWN_REPORT = "report.json", "report.md"

Watch: TypeAlias = Callable[[str, int, int], AbstractContextManager[OnRound | None]]
"""Function of (domain left out, rounds, rounds done) to a context of callbacks after each round."""


def leave_one_out(
    config: Config,
    out: Path | str,
    *,
    tasks: Mapping[str, Task] | None = None,
    adapt_bn: float = 0.9,
    batch_size: int = BATCH_SIZE,
    watch: Watch | None = None,
) -> LeaveOneOut:
    """Train a model without each domain, score it on the clients of that domain, and report.

    Each run has the folder `out`/without-DOMAIN. One that is complete is not run again, one that
    was interrupted goes on. `out` then holds report.json and report.md, too.

    Args:
        config: settings of every run; `data.leave_out` is set to each domain in turn.
        out: where the runs and the report go.
        tasks: your own, by the domain that each leaves out: its clients are the task's `external`.
        adapt_bn: τ, the weight of the old statistics, 0 <= τ < 1.
        batch_size: so many test samples share one step of the statistics.
        watch: opened around each run.

    Warns where the global BN statistics are not of training.

    Raises:
        ConfigError: τ or the batch size is out of range, there are no domains to leave out, or one
            is named, or no global model is trained.
        DataError: a model without BN, or data that cannot be used.
        RunFolderError: a run of other settings is in the way, or a folder cannot be written.
        Diverged: a run has; its folder holds the rounds before.

    Examples:
        >>> corruptions = 'data.corruptions=["gaussian_noise", "fog", "contrast", "zoom_blur"]'
        >>> config = securefl.load_config(settings=["run.rounds=1", corruptions])
        >>> report = securefl.leave_one_out(config, "runs/unseen", adapt_bn=0.9)
        >>> 0 <= report.score <= 1 and 0 <= report.adapted <= 1  # without adapting, and with
        True
    """
    check_batch_size(batch_size)
    require_global_model(config)
    if note := untrained_statistics(config):
        warnings.warn(note, UntrainedStatistics, stacklevel=2)
    folds = _folds(config, tasks)
    folders = {domain: Path(out) / f"without-{domain}" for domain in folds}
    for domain, (settings, task) in folds.items():
        _refuse_another_run(folders[domain], settings, task)
    settings, task = next(iter(folds.values()))
    with adapted_batch_norm((task or configured_task(settings)).model, adapt_bn):
        pass  # what cannot be adapted is refused before hours of training
    scores: list[ExternalScore] = []
    for domain, (settings, task) in folds.items():
        _train(domain, settings, task, folders[domain], watch or _unwatched)
        task = with_metric(task or configured_task(settings), settings)  # noqa: PLW2901
        model = with_trained_tensors(folders[domain], task.model)
        for client, data in task.external.items():
            n = len(samples(data, client))  # first, since it names what it refuses
            by = partial(
                evaluate, model, data, batch_size=batch_size, loss=task.loss, metric=task.metric
            )
            own, adapted = by(), by(adapt_bn=adapt_bn)
            scores.append(ExternalScore(domain, client, n, own.value, adapted.value))
    report = LeaveOneOut(
        config, adapt_bn, batch_size, tuple(scores), own.metric, own_task=tasks is not None
    )
    write_atomically(Path(out) / JSON_REPORT, report.to_json())
    write_atomically(Path(out) / MARKDOWN_REPORT, report.to_markdown().encode())
    return report


def _folds(
    config: Config, tasks: Mapping[str, Task] | None
) -> Mapping[str, tuple[Config, Task | None]]:
    """Return settings and own task by the domain that they leave out."""
    if tasks is None:
        return {
            domain: (_without(config, domain), None) for domain in leave_out_choices(config.data)
        }
    if not tasks:
        raise ConfigError("tasks: there is none; leave-one-out needs one for each domain")
    for domain, task in tasks.items():
        if ".." in domain or not can_name_a_folder(domain):
            raise ConfigError(
                f"tasks[{domain!r}]: names a folder, and must be printable text of 1 to "
                f'{MAX_FOLDER_BYTES} bytes without "/" and ".."; rename the domain'
            )
        if not task.external:
            raise ConfigError(f'tasks["{domain}"]: has no external clients to test on')
    return {domain: (config, task) for domain, task in tasks.items()}


def _without(config: Config, domain: str) -> Config:
    data = config.data.model_copy(update={"leave_out": domain})
    return config.model_copy(update={"data": data})


def _refuse_another_run(folder: Path, settings: Config, task: Task | None) -> None:
    if not holds_run(folder):
        return
    wanted = settings if task is None else own_settings(settings, task)
    if read_config(folder) != wanted or RunFolder(folder).has_own_task() != (task is not None):
        raise RunFolderError(
            f"{folder}: holds a run of other settings; name another folder for this report, or "
            "move that run away"
        )


def _train(domain: str, settings: Config, task: Task | None, folder: Path, watch: Watch) -> None:
    if not holds_run(folder):
        with watch(domain, settings.run.rounds, 0) as on_round:
            run(settings, task, out=folder, on_round=on_round)
    elif not is_finished(folder):
        done = len(read_run(folder).metrics)
        with watch(domain, settings.run.rounds, done) as on_round:
            resume(folder, task, on_round=on_round)


def _unwatched(domain: str, rounds: int, done: int) -> AbstractContextManager[None]:
    del domain, rounds, done
    return nullcontext()
