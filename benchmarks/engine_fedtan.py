"""FedTAN's first step against an ordinary one: rounds of one step, in the clear.

A round of FedTAN sends sums in the middle of its first step, and is FedAvg's otherwise. What else
is in a round, such as sending and adding up models, is in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from engine_jobs import ENGINES, RESNET20, Job, task_of
from engine_page import Grid, Part
from engine_ways import Settings, refusals, started
from measure import ms_text
from turns import in_turns, typical_ratio

ORDINARY = replace(RESNET20, local_steps=1)
TAN = replace(ORDINARY, algorithm="fedtan")
STEPS: Mapping[str, Job] = {
    "ordinary": ORDINARY,
    "two-pass": TAN,
    "fused": replace(TAN, moments="fused"),
}


@dataclass(frozen=True, slots=True)
class FirstStep:
    """Rounds of one engine."""

    engine: str
    seconds: Mapping[str, Sequence[float]]
    """Seconds of a round of one step, by what the step is: one reading for each repeat."""

    def ratio(self, step: str) -> float:
        """Return how many times as long as an ordinary step's round it takes."""
        return typical_ratio(list(self.seconds[step]), list(self.seconds["ordinary"]))

    def row(self) -> list[str]:
        """Return the row of the table; empty where the engine does not do that step."""
        figures = []
        for step in STEPS:
            known = step in self.seconds
            figures.append(ms_text(median(self.seconds[step])) if known else "")
            if step != "ordinary":
                figures.append(f"{self.ratio(step):.2f}" if known else "")
        return [self.engine, *figures]


def fedtan_step_part(
    settings: Settings, engines: Mapping[str, Mapping[str, Any]] = ENGINES
) -> Part:
    """Measure a row for each engine."""
    settings.note(f"FedTAN's first step: {settings.sized(ORDINARY)}")
    ways: dict[tuple[str, str], Callable[[], Any]] = {}
    refused: dict[str, Mapping[str, str]] = {}
    with ExitStack() as stack:
        for step, full_job in STEPS.items():
            job = replace(settings.sized(full_job), local_steps=1)
            ours = stack.enter_context(started(job, task_of(job), engines))
            ways |= {(engine, step): rounds.step for engine, rounds in ours.rounds.items()}
            refused[step] = ours.refused
        found = in_turns(ways, settings.repeats, job.wait)
    measured = dict.fromkeys(engine for engine, step in ways if step == "ordinary")
    results = [
        FirstStep(e, {step: found[e, step] for step in STEPS if (e, step) in found})
        for e in measured
    ]
    columns = ("engine", "ordinary", "two-pass", "/ ordinary", "fused", "/ ordinary")
    grid = Grid(columns, [result.row() for result in results])
    job, notes = settings.sized(ORDINARY), refusals(refused)
    return Part(f"FedTAN's first step: {job}", {"A round of one step": grid}, results, notes)
