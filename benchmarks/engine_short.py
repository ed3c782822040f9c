"""Clients with fewer samples than a batch: side by side, padded and masked, or one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine_jobs import ENGINES, MLP, Job, pool_of, task_of
from engine_page import Grid, Part
from engine_ways import Settings, started
from engine_widths import beside_each_other
from turns import in_turns

from securefl.task import Task


@dataclass(frozen=True, slots=True)
class Short:
    """Rounds of one algorithm."""

    algorithm: str
    one_by_one_s: Sequence[float]
    """Seconds of a round: one reading for each repeat."""
    side_by_side_s: Sequence[float]

    def row(self) -> list[str]:
        """Return the row of the table."""
        return [self.algorithm, *beside_each_other(self.one_by_one_s, self.side_by_side_s)]


def short_part(settings: Settings) -> Part:
    """Measure a row for each algorithm; every size from a fifth of a batch to one less than it."""
    job = settings.sized(replace(MLP, n_samples=MLP.batch_size))
    engines = {name: ENGINES[name] for name in ("sequential", "vectorised")}
    results: list[Short] = []
    for algorithm in ("fedavg", "fedtan"):
        settings.note(f"short batches: {algorithm}, {job}")
        one = replace(job, algorithm=algorithm)
        with started(one, _shortened(one), engines) as ways:
            found = in_turns({e: r.step for e, r in ways.rounds.items()}, settings.repeats)
        results.append(Short(algorithm, found["sequential"], found["vectorised"]))
    columns = ("algorithm", "sequential", "vectorised", "times as fast")
    title = f"Fewer samples than a batch: {job}, of which clients have a fifth and more"
    return Part(title, {"One round": Grid(columns, [of.row() for of in results])}, results)


def _shortened(job: Job) -> Task:
    x, y = pool_of(job)
    least = max(2, job.batch_size // 5)
    sizes = [least + i % (job.batch_size - least) for i in range(job.n_clients)]
    clients = zip(x.split(job.n_samples), y.split(job.n_samples), sizes, strict=True)
    return replace(task_of(job), clients=[(x[:n], y[:n]) for x, y, n in clients])
