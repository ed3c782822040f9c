"""Rounds of one job, each way in turn: the naive loop, centralised training, and our engines."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from engine_jobs import ENGINES, Job, task_of
from engine_page import Grid, Part
from measure import ms_text
from naive import Centralised, NaiveLoop
from turns import in_turns, typical_ratio

from securefl.errors import ConfigError
from securefl.runs.loop import Rounds
from securefl.task import Task

NAIVE, CENTRALISED = "naive loop", "centralised"
CHANNELS_LAST = "centralised, channels_last"
COARSE = "auto, bfloat16"
ABOUT = (
    "× naive: how many times as fast as the naive loop. / centralised: how many times the time of "
    "centralised training. Both are medians over the repeats."
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings by which all parts of the benchmark measure."""

    repeats: int
    small: bool = False
    """True where each job is as small as can be, to try the benchmark."""
    note: Callable[[str], None] = print
    """Function called with what is being measured, or left out."""
    device: str = "cpu"

    def sized(self, job: Job) -> Job:
        """Return the job, or the small one that stands for it, on the device."""
        return replace(job.small() if self.small else job, device=self.device)


@dataclass(frozen=True, slots=True)
class Started:
    """Rounds of one job by the engines that the settings allow."""

    rounds: Mapping[str, Rounds]
    """Runs by engine."""
    refused: Mapping[str, str]
    """Reasons for a refusal, by engine."""


@contextmanager
def started(
    job: Job, task: Task, engines: Mapping[str, Mapping[str, Any]] = ENGINES
) -> Iterator[Started]:
    """Begin a run with each engine, before its first round; processes end with the context."""
    rounds: dict[str, Rounds] = {}
    refused: dict[str, str] = {}
    try:
        for engine, run in engines.items():
            try:
                rounds[engine] = job.rounds(task, run)
            except ConfigError as error:
                refused[engine] = str(error)
        yield Started(rounds, refused)
    finally:
        for run_ in rounds.values():
            if close := getattr(run_, "close", None):  # of engines that have processes
                close()


def arguments(
    description: str | None, examples: str, parts: Mapping[str, Any]
) -> argparse.ArgumentParser:
    """Return the arguments that every script that measures parts understands."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--jobs",
        nargs="+",
        choices=parts,
        default=list(parts),
        metavar="JOB",
        help=f"of {', '.join(parts)}; all where absent",
    )
    parser.add_argument("--repeats", type=int, default=5, help="after the rehearsal (5)")
    parser.add_argument("--small", action="store_true", help="tiny jobs, to try this script")
    parser.add_argument("--out", type=Path, metavar="PAGE.md", help="plots go beside it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all readings")
    return parser


def command(script: str, name: str, args: argparse.Namespace, options: str = "") -> str:
    """Return the command that measures one part alone as `args` say."""
    size = " --small" if args.small else ""
    return f"python benchmarks/{script} --jobs {name}{options} --repeats {args.repeats}{size}"


def refusals(refused: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a line for each engine left out, and why; `refused` is by job, then by engine."""
    jobs: dict[str, list[str]] = defaultdict(list)
    for job, reasons in refused.items():
        for engine, why in reasons.items():
            jobs[f"{engine} is left out: {why}"].append(job)
    return [f"{', '.join(of)}: {line}" for line, of in jobs.items()]


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of one job."""

    job: str
    samples_per_round: int
    seconds: Mapping[str, Sequence[float]]
    """Seconds of a round, by way: one reading for each repeat."""
    refused: Mapping[str, str] = field(default_factory=dict)

    def row(self, way: str) -> list[str]:
        """Return a row of the table."""
        found = list(self.seconds[way])
        typical = median(found)
        naive, centralised = list(self.seconds[NAIVE]), list(self.seconds[CENTRALISED])
        return [
            way,
            ms_text(typical),
            f"{ms_text(min(found))} to {ms_text(max(found))}",
            f"{self.samples_per_round / typical:,.0f}",
            f"{typical_ratio(naive, found):.2f}",
            f"{typical_ratio(found, centralised):.2f}",
        ]

    def grid(self) -> Grid:
        """Return a row for each way."""
        columns = ("way", "a round", "least to most", "samples/s", "× naive", "/ centralised")
        return Grid(columns, [self.row(way) for way in self.seconds])


def makers(job: Job, task: Task) -> dict[str, Callable[[], Callable[[], None]]]:
    """Return the makers of the ways that are not ours."""
    ways: dict[str, Callable[[], Callable[[], None]]] = {
        NAIVE: partial(NaiveLoop, job, task),
        CENTRALISED: partial(Centralised, job, torch.contiguous_format),
    }
    if len(job.shape) == 3:
        ways[CHANNELS_LAST] = partial(Centralised, job, torch.channels_last)
    return ways


def yardsticks(job: Job, task: Task) -> dict[str, Callable[[], Any]]:
    """Return the ways that are not ours."""
    return {way: make() for way, make in makers(job, task).items()}


def rates(
    job: Job, settings: Settings, engines: Mapping[str, Mapping[str, Any]] = ENGINES
) -> Rates:
    """Measure all ways, in turns."""
    task = task_of(job)
    # A GPU's page has tables of their own for each precision.
    images = len(job.shape) == 3 and job.device == "cpu"
    coarse_job = replace(job, precision="bfloat16")
    coarse_ways = {COARSE: ENGINES["auto"]} if images else {}
    with started(job, task, engines) as ours, started(coarse_job, task, coarse_ways) as coarse:
        rounds = {**ours.rounds, **coarse.rounds}
        steps = {way: run.step for way, run in rounds.items()}
        found = in_turns({**yardsticks(job, task), **steps}, settings.repeats, job.wait)
    return Rates(str(job), job.n_batches * job.batch_size, found, ours.refused)


def rates_part(job: Job, settings: Settings) -> Part:
    """Measure the job's table."""
    job = settings.sized(job)
    settings.note(str(job))
    result = rates(job, settings)
    notes = [ABOUT, *refusals({job.model: result.refused})]
    return Part(f"FedAvg: {job}", {"One round": result.grid()}, [result], notes)
