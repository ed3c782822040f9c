"""Phases of a round's time, by the functions that do the work; the timers are in the figures.

With one torch thread (OMP_NUM_THREADS=1) times are of the processor, so that other work on the
machine counts little; with several they are by the clock.

Workers are left out: clients train, and seal, in other processes, where no timer looks. Of pictures
only `auto` is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

import torch
from encrypted_fedtan import OTHER, PHASES, Stopwatch, timers
from engine_jobs import ENGINES, Job, task_of
from engine_page import Grid, Part
from engine_ways import Settings, refusals, started
from measure import ms_text
from turns import in_turns

from securefl.runs.loop import Rounds

TRAIN = "train"
EXCHANGE = ("seal", "add", "open")
"""Phases in this order wherever there are three figures."""
BY_CLIENT = "securefl.algorithms.federated.Federated.client"
"""Function of clients that talk only at a round's end. In the middle of it they stop and go on,
and the engine waits for them in the functions of `PHASES`."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of one job's rounds with one engine."""

    job: str
    engine: str
    seconds: Mapping[str, float]
    """Seconds of a round by phase; medians."""

    @property
    def round_s(self) -> float:
        """Seconds over all phases."""
        return sum(self.seconds.values())

    def grid(self) -> Grid:
        """Return a row for each phase."""
        rows = [
            [self._named(phase), ms_text(seconds), f"{seconds / self.round_s:.1%}"]
            for phase, seconds in self.seconds.items()
            if seconds
        ]
        return Grid(("phase", "a round", "of it"), [*rows, ["all", ms_text(self.round_s), "100%"]])

    def exchange_share(self) -> float:
        """Return the share of encrypting, adding and opening together, 0..1."""
        return sum(self.seconds[phase] for phase in EXCHANGE) / self.round_s

    def _named(self, phase: str) -> str:
        # An engine that does not train client by client does so in its own functions.
        return f"{TRAIN}, {OTHER}" if phase == OTHER and not self.seconds[TRAIN] else phase


@dataclass(slots=True)
class TimedRounds:
    """Rounds with timers in the library; a call is one round."""

    rounds: Rounds
    phases: Mapping[str, tuple[str, ...]]
    clock: Callable[[], float]
    found: list[dict[str, float]] = field(default_factory=list)
    """Seconds by phase, of each round."""

    def __call__(self) -> None:
        """Take one round more."""
        watch = Stopwatch(self.clock)
        with timers(watch, self.phases):
            self.rounds.step()
        self.found.append({phase: watch.seconds[phase] for phase in self.phases})

    def typical(self) -> dict[str, float]:
        """Return medians by phase, without the first round, which is a rehearsal."""
        return {phase: median(round_[phase] for round_ in self.found[1:]) for phase in self.phases}


def phases_of(job: Job) -> dict[str, tuple[str, ...]]:
    """Return the functions that are timed."""
    return {**PHASES} if job.algorithm == "fedtan" else {**PHASES, TRAIN: (BY_CLIENT,)}


def phases_part(job: Job, settings: Settings) -> Part:
    """Measure a table for each engine."""
    job = settings.sized(job)
    settings.note(f"phases of {job}")
    of_pictures = len(job.shape) == 3
    engines = {
        name: run
        for name, run in ENGINES.items()
        if "workers" not in run and (name == "auto" or not of_pictures)
    }
    one_thread = job.device == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if one_thread else time.perf_counter
    with started(job, task_of(job), engines) as ways:
        timed = {e: TimedRounds(rounds, phases_of(job), clock) for e, rounds in ways.rounds.items()}
        in_turns(timed, settings.repeats)
    results = [Shares(str(job), engine, t.typical()) for engine, t in timed.items()]
    notes = [
        f"{r.engine}: sealing, adding and opening together are {r.exchange_share():.1%}"
        for r in results
    ]
    if one_thread:
        notes.append("Times are the processor's, of one thread")
    moments = f" ({job.moments})" if job.algorithm == "fedtan" else ""
    what = f"{job.algorithm}{moments}, encrypt = {job.encrypt}"
    return Part(
        f"By phase: {what}: {job}",
        {result.engine: result.grid() for result in results},
        results,
        [*notes, *refusals({job.model: ways.refused})],
    )
