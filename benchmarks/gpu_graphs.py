"""Rounds on a GPU with CUDA graphs and without, in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from unittest import mock

from engine_jobs import ENGINES, task_of
from engine_page import Grid, Part
from engine_ways import Settings, started
from gpu_jobs import CNN, LENET5, MLP, RESNET20
from measure import ms_text
from turns import in_turns, typical_ratio

from securefl.runs.loop import Rounds
from securefl.simulation.graphed import GraphedPasses

COARSE = replace(RESNET20, precision="bfloat16")
TAN = replace(CNN, algorithm="fedtan")
JOBS = MLP, CNN, RESNET20, COARSE, LENET5, TAN
WAYS = {"side by side": "vectorised", "one after the other": "sequential"}


@dataclass(frozen=True, slots=True)
class Graphs:
    """Rounds of one job by one engine."""

    job: str
    way: str
    plain_s: Sequence[float]
    """Seconds of a round without graphs: one reading for each repeat."""
    graphed_s: Sequence[float]

    def row(self) -> list[str]:
        """Return the row of the table."""
        seconds = (ms_text(median(of)) for of in (self.plain_s, self.graphed_s))
        ratio = typical_ratio(list(self.plain_s), list(self.graphed_s))
        return [f"{self.job}; {self.way}", *seconds, f"{ratio:.2f}"]


def graphs_part(settings: Settings) -> Part:
    """Measure a row for each job and engine."""
    results = list[Graphs]()
    for job in map(settings.sized, JOBS):
        settings.note(f"graphs: {job}")
        engines = {engine: ENGINES[engine] for engine in WAYS.values()}
        with started(job, task_of(job), engines) as ours:
            ways: Mapping[tuple[str, bool], Callable[[], object]] = {
                (engine, graphed): rounds.step if graphed else partial(_plain, rounds)
                for engine, rounds in ours.rounds.items()
                for graphed in (False, True)
            }
            found = in_turns(ways, settings.repeats, job.wait)
        name = f"{job.algorithm}, {job}"
        results += [
            Graphs(name, way, found[engine, False], found[engine, True])
            for way, engine in WAYS.items()
            if engine in ours.rounds
        ]
    grid = Grid(("job", "no graph", "graph", "× as fast"), [result.row() for result in results])
    return Part("What CUDA graphs are worth", {"A round": grid}, results)


def _plain(rounds: Rounds) -> None:
    with mock.patch.object(GraphedPasses, "_changed", return_value=True):  # so none is replayed
        rounds.step()
