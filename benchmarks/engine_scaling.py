"""Growth of a round with the number of clients, and its gain from a second core."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from engine_jobs import CNN, ENGINES, MANY, MLP, Job, task_of
from engine_page import Grid, Part
from engine_plot import curves
from engine_ways import Rates, Settings, rates, refusals, started, yardsticks
from measure import medians, ms_text
from turns import in_turns, typical_ratio

CLIENTS = (*(replace(MANY, n_clients=n, fraction=1.0) for n in (10, 100, 1000)), MANY)
"""Federations by size: a hundredth of the largest takes part in a round."""
CORES = (1, 2)
Turn = tuple[str, int]
"""Way, on so many cores."""


@dataclass(frozen=True, slots=True)
class OnCores:
    """One way of one job."""

    job: str
    way: str
    seconds: Mapping[int, Sequence[float]]
    """Seconds of a round, by cores: one reading for each repeat."""

    def row(self) -> list[str]:
        """Return the row of the table."""
        one, two = (list(self.seconds[n]) for n in CORES)
        return [self.way, *medians(one, two), f"{typical_ratio(one, two):.2f}"]


def clients_part(settings: Settings) -> Part:
    """Measure a row for each way, a column for each number of clients."""
    small = [replace(CLIENTS[0].small(), n_clients=n) for n in (2, 4)]
    found: dict[Job, Rates] = {}
    for job in small if settings.small else CLIENTS:
        settings.note(f"by clients: {job}")
        found[job] = rates(job, settings)
    ways = dict.fromkeys(way for result in found.values() for way in result.seconds)
    lines = {
        way: {j.n_clients: median(r.seconds[way]) for j, r in found.items() if way in r.seconds}
        for way in ways
    }
    rows = [
        [way, *(ms_text(line[j.n_clients]) if j.n_clients in line else "" for j in found)]
        for way, line in lines.items()
    ]
    notes = [f"{job.n_clients:,} clients: {job}" for job in found if job.fraction < 1]
    notes += refusals({f"{job.n_clients:,} clients": r.refused for job, r in found.items()})
    return Part(
        f"By number of clients: {job.model}, {job.local_steps} steps of {job.batch_size}",
        {"One round": Grid(("way", *(f"{job.n_clients:,}" for job in found)), rows)},
        list(found.values()),
        notes,
        curves(
            lines,
            f"clients (of {MANY.n_clients:,}, {MANY.n_selected} in a round)",
            "seconds of a round",
        ),
    )


def cores_part(settings: Settings) -> Part:
    """Measure a table for each job; the ways take turns, and so do the numbers of cores."""
    results: list[OnCores] = []
    grids: dict[str, Grid] = {}
    refused: dict[str, Mapping[str, str]] = {}
    for full_job in (MLP, CNN):
        job = settings.sized(full_job)
        settings.note(f"by cores: {job}")
        found, refused[job.model] = _on_cores(job, settings.repeats)
        grids[str(job)] = Grid(("way", "1 core", "2 cores", "ratio"), [r.row() for r in found])
        results += found
    about = (
        "Cores are torch's threads, and the workers of `parallel`; ratio: how many times as fast "
        "two are."
    )
    return Part("By cores", grids, results, [about, *refusals(refused)])


def _on_cores(job: Job, repeats: int) -> tuple[list[OnCores], Mapping[str, str]]:
    usual, task = torch.get_num_threads(), task_of(job)
    ways: dict[Turn, Callable[[], Any]] = {}
    refused: dict[str, str] = {}
    try:
        with ExitStack() as stack:
            for n in CORES:
                torch.set_num_threads(n)
                engines = {
                    engine: {**run, "workers": n} if "workers" in run else run
                    for engine, run in ENGINES.items()
                }
                ours = stack.enter_context(started(job, task, engines))
                refused |= ours.refused
                steps = {engine: rounds.step for engine, rounds in ours.rounds.items()}
                both = {**yardsticks(job, task), **steps}
                ways |= {(way, n): _with_threads(n, work) for way, work in both.items()}
            seconds = in_turns(ways, repeats)
    finally:
        torch.set_num_threads(usual)
    both_ways = [way for way, n in ways if n == CORES[0] and (way, CORES[1]) in ways]
    found = [OnCores(str(job), way, {n: seconds[way, n] for n in CORES}) for way in both_ways]
    return found, refused


def _with_threads(n: int, work: Callable[[], Any]) -> Callable[[], None]:
    def threaded() -> None:
        torch.set_num_threads(n)
        work()

    return threaded
