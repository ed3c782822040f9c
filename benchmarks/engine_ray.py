"""Rounds of two workers behind pipes, and of two actors of a local Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine_jobs import CNN, ENGINES, MLP, task_of
from engine_page import Grid, Part
from engine_ways import Settings, refusals, started
from measure import medians
from turns import in_turns, typical_ratio

JOBS = (MLP, replace(MLP, algorithm="fedtan"), CNN, replace(CNN, algorithm="fedtan"))


@dataclass(frozen=True, slots=True)
class BesideRay:
    """Rounds of one job."""

    job: str
    parallel_s: Sequence[float]
    """Seconds of a round: one reading for each repeat."""
    ray_s: Sequence[float]

    def row(self) -> list[str]:
        """Return the row of the table."""
        one, other = list(self.parallel_s), list(self.ray_s)
        return [self.job, *medians(one, other), f"{typical_ratio(other, one):.2f}"]


def ray_part(settings: Settings) -> Part:
    """Measure a row for each job, with one torch thread in each worker of both engines."""
    usual = {**ENGINES["parallel"], "threads": 1}
    results: list[BesideRay] = []
    refused: dict[str, dict[str, str]] = {}
    for job in (settings.sized(one) for one in (JOBS[:1] if settings.small else JOBS)):
        name = f"{job.algorithm}: {job}"
        settings.note(f"Ray: {name}")
        engines = {"parallel": usual, "ray": {**usual, "engine": "ray"}}
        with started(job, task_of(job), engines) as ways:
            refused[name] = dict(ways.refused)
            if ways.refused:
                continue
            found = in_turns({e: r.step for e, r in ways.rounds.items()}, settings.repeats)
        results.append(BesideRay(name, found["parallel"], found["ray"]))
    columns = ("job", "parallel", "ray", "ray / parallel")
    grid = Grid(columns, [result.row() for result in results])
    title = "Two workers of one machine: processes behind pipes, and actors of Ray"
    return Part(title, {"One round": grid}, results, refusals(refused))
