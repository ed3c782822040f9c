"""Cost of a round beside training: a tiny model's round, less its bare training steps.

In the clear it is one client. Encrypted it is three, since the authority opens no total of fewer;
there the seconds in the sealer are taken off as well, so what is left is all of a round that is
neither training nor encrypting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from encrypted_fedtan import PHASES, Stopwatch, timers
from engine_jobs import ENGINES, Job, task_of
from engine_page import Grid, Part
from engine_phases import EXCHANGE
from engine_ways import Settings, refusals, started
from measure import ms_text
from naive import Centralised
from turns import in_turns

from securefl.runs.loop import Rounds

PLAIN = Job("mlp", (4,), n_clients=1, local_steps=1, n_samples=32)
ENCRYPTED = replace(PLAIN, n_clients=3, encrypt="statistics")
JOBS = {"in the clear": PLAIN, "statistics encrypted": ENCRYPTED}
ROUNDS = 20
"""Number of rounds in a reading."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """Medians of one engine's round."""

    exchange: str
    engine: str
    n_clients: int
    round_s: float
    step_s: float
    """Seconds of one client's bare training step."""
    seal_s: float
    """Seconds in the sealer, of all clients; 0 in the clear, where it only copies."""
    add_s: float
    open_s: float
    """Seconds of the server and of the authority; 0 in the clear."""
    beyond_s: float
    """Seconds of the round, less all clients' steps and sealing: median over the repeats."""

    def row(self) -> list[str]:
        """Return the row of the table."""
        steps_s = self.n_clients * self.step_s
        figures = (self.round_s, steps_s, self.seal_s, self.beyond_s, self.add_s, self.open_s)
        return [f"{self.exchange}, {self.engine}", str(self.n_clients), *map(ms_text, figures)]


@dataclass(slots=True)
class Reading:
    """Some rounds; a call is one reading."""

    rounds: Rounds
    encrypts: bool
    """True where there is something to encrypt, and so a timer in what does it."""
    found: list[Mapping[str, float]] = field(default_factory=list)
    """Seconds of a round by phase of the exchange, by reading."""

    def __call__(self) -> None:
        """Take as many rounds as a reading has."""
        watch = Stopwatch()
        with ExitStack() as stack:
            if self.encrypts:
                stack.enter_context(timers(watch, {phase: PHASES[phase] for phase in EXCHANGE}))
            _some(self.rounds.step)
        self.found.append({phase: watch.seconds[phase] / ROUNDS for phase in EXCHANGE})

    def seconds(self) -> list[list[float]]:
        """Return seconds of each phase of the exchange, without the first reading, a rehearsal."""
        return [[reading[phase] for reading in self.found[1:]] for phase in EXCHANGE]


def _some(work: Callable[[], Any]) -> None:
    for _ in range(ROUNDS):
        work()


def overheads(exchange: str, job: Job, repeats: int) -> tuple[list[Overhead], Mapping[str, str]]:
    """Return overheads by engine, and which the settings refuse."""
    step = Centralised(replace(job, n_clients=1, encrypt="none"), torch.contiguous_format)
    bare = "bare step"
    with started(job, task_of(job), ENGINES) as ours:
        readings = {e: Reading(r, job.encrypt != "none") for e, r in ours.rounds.items()}
        ways: dict[str, Callable[[], None]] = {bare: partial(_some, step), **readings}
        found = in_turns(ways, repeats)
    return [
        _overhead((exchange, engine, job.n_clients), found[engine], found[bare], reading.seconds())
        for engine, reading in readings.items()
    ], ours.refused


def _overhead(
    what: tuple[str, str, int],
    reading_s: Sequence[float],
    steps_s: Sequence[float],
    exchange_s: Sequence[Sequence[float]],
) -> Overhead:
    n_clients = what[2]
    round_s, step_s = ([s / ROUNDS for s in found] for found in (reading_s, steps_s))
    left = [
        r - n_clients * bare - seal
        for r, bare, seal in zip(round_s, step_s, exchange_s[0], strict=True)
    ]
    return Overhead(*what, *map(median, (round_s, step_s, *exchange_s, left)))


def overhead_part(settings: Settings) -> Part:
    """Measure both tables in one."""
    results, refused = [], {}
    for exchange, job in JOBS.items():
        settings.note(f"overhead, {exchange}: {job}")
        found, refused[exchange] = overheads(exchange, job, settings.repeats)
        results += found
    columns = ("", "clients", "a round", "bare steps", "seal", "beyond", "of it add", "of it open")
    grid = Grid(columns, [result.row() for result in results])
    about = (
        "Beyond: what is left of a round without bare steps and sealing. Encrypted rounds have "
        "three clients, since the authority opens no total of fewer. In the clear, sealing copies."
    )
    title = "What a round costs beside training"
    return Part(title, {str(PLAIN): grid}, results, [about, *refusals(refused)])
