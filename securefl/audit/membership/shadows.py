"""Shadow models: models that a run's settings make of other samples of the same data.

Members and non-members of the run are one pool, of which each shadow model leaves out as large a
part as the run did: its federation has the run's clients, of about the run's sizes and labels. In
one pass over the pool each sample is left out once, whether it trained the run or not.

Models of another size or another algorithm do not serve: on the digits with FedTAN, LiRA's AUC was
0.61 by five models of this kind, 0.59 by sixteen that half of the pool trained, and 0.52 by sixteen
of centralised training on halves.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing.synchronize import Event
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from securefl.audit.membership.attacks import Shadows
from securefl.audit.membership.candidates import Candidates, Phi, confidences
from securefl.build.run import run
from securefl.errors import ConfigError
from securefl.runs.round_metrics import RoundMetrics
from securefl.settings.load import with_changes
from securefl.settings.tables import Config
from securefl.simulation.processes.worker_process import deaf_to_interrupts
from securefl.task import Task

MOST_PARTS = 8
_SPAWN = multiprocessing.get_context("spawn")
OnShadow = Callable[[int, int], None]
"""Callback with how many models are done, and of how many."""
_Job = tuple[Config, Task, Candidates, NDArray[np.bool_]]


def train_shadows(  # noqa: PLR0913  (what may be chosen of them)
    config: Config,
    task: Task,
    pool: Candidates,
    *,
    passes: int,
    seed: int,
    workers: int = 1,
    on_shadow: OnShadow | None = None,
) -> Shadows:
    """Return φ of all of the pool's samples by models of which `passes` have not trained on each.

    Everything starts from the task's own model, as in the run: that model is no secret. The same
    seed gives the same parts and batches.

    Args:
        config: what to train by: `in_the_clear` of the run's settings.
        task: the run's; of its data only test and public ones are used.
        pool: members and non-members of the run.
        passes: over the pool; two or more, so that a deviation can be told.
        seed: of the parts, and of each model's mini-batches.
        workers: processes; with more than one, the caller's script needs a main guard, the task's
            loss must be a function of a module, and each trains in itself with one thread.
        on_shadow: told of each model.

    Raises:
        ConfigError: fewer than two passes, or settings that do not fit the models' data.
        DataError: a client has too few samples for one to be left out.
        Diverged: a model was lost in training; another seed may do.
    """
    if passes < 2:
        raise ConfigError(f"passes = {passes}: must be 2 or more, to tell a deviation")
    if workers > 1:  # the cores are at work
        engine = "auto" if config.run.engine in {"parallel", "ray"} else config.run.engine
        config = with_changes(config, {"run": {"engine": engine, "workers": None, "threads": None}})
    trained_NS = parts(pool, passes, np.random.default_rng(seed))
    jobs = [
        (_seeded(config, (seed, n), pool, trained_S), task, pool, trained_S)
        for n, trained_S in enumerate(trained_NS)
    ]
    phi_NS: list[Phi] = []
    for phi_S in _done(jobs, workers):
        phi_NS.append(phi_S)
        if on_shadow:
            on_shadow(len(phi_NS), len(jobs))
    return Shadows.of(np.stack(phi_NS), trained_NS)


def parts(pool: Candidates, passes: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw which samples train each model, shape (models, samples).

    A pass has as many models as there are parts of the non-members' size in the pool, two to eight;
    each leaves out one part, of every client and label alike.
    """
    n_parts = int(np.clip(round(len(pool) / max(1, (~pool.member_S).sum())), 2, MOST_PARTS))
    trained_NS = np.ones((passes * n_parts, len(pool)), bool)
    for first in range(0, len(trained_NS), n_parts):
        order = np.lexsort((rng.random(len(pool)), pool.cell_S))
        part = (np.arange(len(pool)) + rng.integers(n_parts)) % n_parts
        trained_NS[first + part, order] = False
    return trained_NS


def _seeded(
    config: Config, entropy: tuple[int, int], pool: Candidates, trained_S: NDArray[np.bool_]
) -> Config:
    """Return settings with a seed of the model's own, and no more records than any client has."""
    drawn = int(np.random.SeedSequence(entropy).generate_state(1)[0])
    changes: dict[str, dict[str, Any]] = {"run": {"seed": drawn}}
    if config.privacy.records is not None:
        least = int(np.bincount(pool.client_S[trained_S]).min())
        changes["privacy"] = {"records": min(config.privacy.records, least)}
    return with_changes(config, changes)


def _done(jobs: list[_Job], workers: int) -> Iterator[Phi]:
    if workers == 1:
        yield from map(_shadow, jobs)
        return
    stop = _SPAWN.Event()
    with ProcessPoolExecutor(workers, _SPAWN, _begin, (stop,)) as processes:
        try:
            with deaf_to_interrupts():
                shadows = processes.map(_shadow, jobs)
            yield from shadows
        except BaseException:  # Ctrl-C above all: the pool would wait for models that nobody wants
            stop.set()
            raise


class _Worker:
    """State of a process that trains shadows for another."""

    stop: ClassVar[Event | None] = None


class _Stopped(Exception):
    """End of a model for which nobody waits any more."""


def _begin(stop: Event) -> None:
    """Prepare a process of its own; Ctrl-C is for its parent to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _Worker.stop = stop


def _unless_stopped(_: RoundMetrics | None = None) -> None:
    if _Worker.stop and _Worker.stop.is_set():
        raise _Stopped


def _shadow(job: _Job) -> Phi:
    _unless_stopped()
    config, task, pool, trained_S = job
    clients = [
        pool.take(torch.from_numpy(np.flatnonzero(trained_S & (pool.client_S == client))))
        for client in np.unique(pool.client_S)
    ]
    shadow = replace(task, clients=clients, client_tests=(), external={}, qualities=())
    return confidences(run(config, shadow, on_round=_unless_stopped).model, pool, task.loss)
