"""Rounds of a run as they are done, from its folder alone."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import TypeAdapter

from securefl.errors import RunFolderError
from securefl.io.files import read_lines
from securefl.io.json import parsed
from securefl.runs.folder_reader import (
    METRICS,
    RoundMetrics,
    is_at_work,
    is_finished,
    read_config,
    read_phase,
    read_soundly,
)

_ROUND = TypeAdapter(RoundMetrics)


def follow(
    path: Path, pause_s: float = 1.0, on_phase: Callable[[str], None] | None = None
) -> Iterator[RoundMetrics]:
    """Yield the rounds of a run, those that are done and each new one, until no process is at work.

    The folder may be a simulation's or a server's. Between two rounds it looks at the file's length
    alone, once in `pause_s` seconds; `on_phase` is told each time which phase goes on.

    Raises:
        RunFolderError: no run's folder, or a damaged one.
    """
    read_config(path)
    file, at, last = path / METRICS, 0, 0
    while True:
        working = is_at_work(path) is not False and not is_finished(path)
        length = file.stat().st_size if file.is_file() else 0
        if length < at:  # resumed: the lines of a round that did not count are gone
            at = 0
        if length > at:
            with read_soundly(file):
                for line in read_lines(file, start=at):
                    at += len(line) + 1
                    metrics = parsed(_ROUND, line, RunFolderError)
                    if metrics.round > last:
                        last = metrics.round
                        yield metrics
        if not working:
            return
        if on_phase:
            on_phase(read_phase(path))
        time.sleep(pause_s)
