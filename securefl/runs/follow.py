"""A run as it goes on, from its folder alone: its title, and its rounds as they are done."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from securefl.errors import RunFolderError
from securefl.io.files import MAX_LINE_BYTES, read_bounded, read_lines
from securefl.io.records import json_object
from securefl.io.text import printable
from securefl.runs.folder_files import (
    CONFIG,
    METRICS,
    MODEL,
    PHASE,
    PRIVACY,
    holds_run,
    is_at_work,
    is_finished,
    length_of,
    read_phase,
    read_soundly,
    require_run,
)
from securefl.runs.round_metrics import RoundMetrics, round_in


@dataclass(frozen=True, slots=True)
class RunTitle:
    """Title of a run, for those who follow it."""

    name: str
    """Name that the settings give it; that of its folder where they give none."""
    rounds: int
    """Rounds that the settings ask for."""
    private: bool
    """True where it has begun to spend a budget of differential privacy."""


def read_title(path: Path) -> RunTitle:
    """Return a run's title. Its settings are not checked, as to follow it takes no others.

    Raises:
        RunFolderError: no run's folder, or a damaged one.
    """
    require_run(path)
    with read_soundly(path / CONFIG):
        tables = json_object(read_bounded(path / CONFIG, MAX_LINE_BYTES), RunFolderError)
        match tables:
            case {"run": {"name": str() | None as name, "rounds": int(n)}} if (
                n > 0 and n is not True
            ):
                title = printable(name or path.resolve().name)
                return RunTitle(title, n, (path / PRIVACY).exists())
        raise RunFolderError("has no run.name or no run.rounds of 1 or more")


def has_begun(path: Path) -> bool:
    """Return whether a run in this folder has come to its first round."""
    return holds_run(path) and any((path / name).exists() for name in (PHASE, METRICS, MODEL))


def follow(
    path: Path, pause_s: float = 1.0, on_phase: Callable[[str], None] | None = None
) -> Iterator[RoundMetrics]:
    """Yield the rounds of a run, those that are done and each new one, until no process is at work.

    The folder may be a simulation's or a server's. Between two rounds it looks at the file's length
    alone, once in `pause_s` seconds; `on_phase` is told each time which phase goes on.

    Raises:
        RunFolderError: no run's folder, or a damaged one.
    """
    require_run(path)
    file, at, last = path / METRICS, 0, 0
    while True:
        working = is_at_work(path) is not False and not is_finished(path)
        length = length_of(file)
        if length < at:  # resumed: the lines of a round that did not count are gone
            at = 0
        if length > at:
            with read_soundly(file):
                for line in read_lines(file, start=at):
                    at += len(line) + 1
                    metrics = round_in(line)
                    if metrics.round > last:
                        last = metrics.round
                        yield metrics
        if not working:
            return
        if on_phase:
            on_phase(read_phase(path))
        time.sleep(pause_s)
