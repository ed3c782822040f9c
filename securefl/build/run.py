"""Runs a simulation from its first round to its last, or resumes it."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from securefl.build.simulation import simulated
from securefl.errors import ConfigError, RunFolderError
from securefl.exchange.officer import KeySet
from securefl.federation.client import Identities
from securefl.runs.folder_reader import read_config
from securefl.runs.folder_writer import RunFolder, own_task_needed, server_needed
from securefl.runs.loop import OnEnd, OnRound, OnStart, Result, Rounds
from securefl.runs.progress import RunProgress, progress_bar
from securefl.runs.task_record import require_same_task, task_record
from securefl.settings.tables import Config
from securefl.task import Task, client_names


def run(  # noqa: PLR0913  (what a run may be given)
    config: Config | None = None,
    task: Task | None = None,
    *,
    keys: KeySet | None = None,
    identities: Identities | None = None,
    out: Path | str | None = None,
    on_round: OnRound | None = None,
    on_start: OnStart | None = None,
    on_end: OnEnd | None = None,
    progress: RunProgress | bool = False,
) -> Result:
    """Train by the settings of `config`, on its own data and model or on those of `task`.

    Args:
        config: the defaults are the demo's job.
        task: your own model and data; the tables `[data]` and `[model]` then do not count,
            and what is set in them is warned of.
        keys: where anything is encrypted; ephemeral where None.
        identities: what clients sign with; made for this run where None.
        out: a folder to leave all evidence in; nothing is written where None.
        on_round: called after each round.
        on_start: called before the first round with the engine that trains the clients, and why.
        on_end: called with the result, once all is written.
        progress: True shows a bar at a terminal or in a notebook, and ten lines on stderr
            elsewhere; an object of yours is told of each phase and round.

    Raises:
        ConfigError, DataError: before anything is written.
        Diverged, OpeningRefused, MessageRefused, RunFolderError: the folder then holds all rounds
            before.

    Examples:
        >>> task = securefl.Task(model, clients, test)
        >>> config = securefl.load_config(settings=["run.rounds=3", "train.lr=0.1"])
        >>> result = securefl.run(config, task, on_round=lambda metrics: print(metrics.round))
        1
        2
        3
        >>> 0 <= result.accuracy <= 1
        True
    """
    _require(config, Config, "config", 'securefl.load_config(settings=["train.lr=0.1"])')
    _require_task(task, keys)
    rounds = simulated(config or Config(), task, keys, identities)
    if on_start:
        on_start(rounds.engine)
    if out is None:
        with _shown(progress, rounds) as bar:
            result = rounds.run(on_round, progress=bar)
        return _ended(result, on_end)
    about = b"" if task is None else task_record(task, client_names(rounds.config, task)).to_json()
    folder = RunFolder.create(Path(out), rounds.config, about)
    with folder.locked():
        folder.note_session(
            rounds.config, rounds.session, rounds.key_id, rounds.engine, own_task=task is not None
        )
        with _shown(progress, rounds) as bar:
            result = rounds.run(on_round, folder, bar)
    return _ended(result, on_end)


def resume(  # noqa: PLR0913  (as `run`)
    folder: Path | str,
    task: Task | None = None,
    *,
    keys: KeySet | None = None,
    identities: Identities | None = None,
    on_round: OnRound | None = None,
    on_start: OnStart | None = None,
    on_end: OnEnd | None = None,
    progress: RunProgress | bool = False,
) -> Result:
    """Continue a run from its last complete round, with the settings in its folder.

    In the clear and on a CPU the final model is, bit for bit, that of an uninterrupted run. Of what
    happened before, `Result` holds the metrics; the folder holds everything.

    Raises:
        ConfigError: the run had a task of its own and `task` is None, or the other way round; or
            `task` is another than the run's.
        RunFolderError: no run's folder, a damaged one, one that another process writes, or a run
            that is complete.

    Examples:
        >>> def crash(metrics):
        ...     raise KeyboardInterrupt
        >>> try:
        ...     securefl.run(config, task, out="runs/stopped", on_round=crash)
        ... except KeyboardInterrupt:
        ...     result = securefl.resume("runs/stopped", task)
        >>> [of.round for of in result.metrics]
        [1, 2]
    """
    _require_task(task, keys)
    config = read_config(Path(folder))
    run_folder = RunFolder(Path(folder))
    with run_folder.locked():
        if run_folder.is_over_processes():
            raise RunFolderError(server_needed(Path(folder)))
        if run_folder.has_own_task() != (task is not None):
            raise ConfigError(
                own_task_needed(folder, f"securefl.resume({str(folder)!r}, task)")
                if task is None
                else f"{folder}: this run had no task of its own; resume it without one"
            )
        if task is not None:  # the weights of the first model count until a round has others
            first = run_folder.checkpoint() is None
            require_same_task(Path(folder), task, config, weights=first)
        rounds = simulated(config, task, keys, identities)
        rounds.go_on_in(run_folder)
        run_folder.note_session(
            config, rounds.session, rounds.key_id, rounds.engine, own_task=task is not None
        )
        if on_start:
            on_start(rounds.engine)
        with _shown(progress, rounds) as bar:
            result = rounds.run(on_round, run_folder, bar)
    return _ended(result, on_end)


def _shown(
    progress: RunProgress | bool, rounds: Rounds
) -> AbstractContextManager[RunProgress | None]:
    """Return the context of what follows the run."""
    if not isinstance(progress, bool):
        return nullcontext(progress)
    config = rounds.config
    about = config.name, config.run.rounds, rounds.round
    return progress_bar(*about, private=config.privacy.private) if progress else nullcontext()


def _ended(result: Result, on_end: OnEnd | None) -> Result:
    if on_end:
        on_end(result)
    return result


def _require_task(task: object, keys: object) -> None:
    _require(task, Task, "task", "securefl.Task(model, clients, test)")
    loaded = "securefl_keys.authority_keys: load_all(Path(folder), passphrase)"
    _require(keys, KeySet, "keys", loaded)


def _require(given: object, kind: type, name: str, way: str) -> None:
    if given is not None and not isinstance(given, kind):
        raise ConfigError(f"{name} is {type(given).__name__}: give {kind.__name__}, as from {way}")
