"""Progress bars over a run's rounds, and Ctrl-C, which Python may drop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from securefl_cli.compare import scored

if TYPE_CHECKING:
    from securefl.recipes.reproduce import PlannedRun
    from securefl.runs.folder_reader import RoundMetrics


_asked = threading.Event()


@contextmanager
def remembered_interrupts() -> Iterator[None]:
    """Remember a Ctrl-C within the block, where it got lost, for `raise_if_interrupted`."""
    _asked.clear()
    here = threading.current_thread() is threading.main_thread()
    # A shell's background job ignores SIGINT, and so does this.
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt, between two rounds, where Ctrl-C has been pressed."""
    if _asked.is_set():
        raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    _asked.set()
    # Noted before it is raised: Python may drop what is raised in a callback of C code.
    signal.default_int_handler(number, frame)


MEGABYTE = 1e6


@contextmanager
def progress_bar(
    label: str, rounds: int, done: int = 0, *, private: bool = False
) -> Iterator[Callable[[RoundMetrics], None]]:
    """Show a bar on stderr and yield the function that moves it; ten lines without a terminal.

    Of a run with differential privacy it also says what that has cost.
    """
    console = Console(stderr=True)
    with _progress(console) as progress:
        bar = progress.add_task(label, total=rounds, completed=done, note="")
        sent_bytes = 0

        def advance(metrics: RoundMetrics) -> None:
            nonlocal sent_bytes
            raise_if_interrupted()
            sent_bytes += metrics.upload_bytes
            note = f"{scored(metrics):>7} {sent_bytes / MEGABYTE:7.1f} MB up"
            if private:
                spent = metrics.epsilon
                note += "  ε infinite" if spent is None else f"  ε ≤ {spent:.3g}"
            progress.update(bar, completed=metrics.round, note=note)
            if not console.is_terminal and metrics.round % max(1, rounds // 10) == 0:
                click.echo(f"{label}: round {metrics.round}/{rounds} {note}", err=True)

        yield advance


def say_engine(words: str) -> None:
    """Say on stderr which engine trains the clients."""
    click.echo(f"Engine: {words}", err=True)


def say_rate(words: str) -> None:
    """Say on stderr how the learning rate changes."""
    click.echo(f"Learning rate: {words}", err=True)


@contextmanager
def table_bar(rounds: int) -> Iterator[Callable[[PlannedRun, int], None]]:
    """Show a bar of all runs' rounds together, and yield the function that moves it.

    A line for each run where stderr is no terminal.
    """
    console = Console(stderr=True)
    with _progress(console) as progress:
        bar = progress.add_task("", total=rounds, note="")
        done: dict[Path, int] = {}

        def advance(run: PlannedRun, rounds_done: int) -> None:
            raise_if_interrupted()
            new = run.folder not in done
            done[run.folder] = rounds_done
            total, label = run.config.run.rounds, f"{run.config.name}, seed {run.config.run.seed}"
            progress.update(
                bar,
                description=label,
                completed=sum(done.values()),
                note=f"round {rounds_done} of {total}",
            )
            if new and not console.is_terminal:
                click.echo(f"{label}: {_state(rounds_done, total)}", err=True)

        yield advance


@contextmanager
def steps_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar for each step that the yielded function is told of; a line without a terminal.

    It is told a step's name, how much of it is done, and of how much.
    """
    console = Console(stderr=True)
    with _progress(console) as progress:
        bars: dict[str, TaskID] = {}

        def advance(what: str, done: int, total: int) -> None:
            raise_if_interrupted()
            if what not in bars:
                bars[what] = progress.add_task(what, total=total, note="")
                if not console.is_terminal:
                    click.echo(f"{what} …", err=True)
            progress.update(bars[what], completed=done, total=total)

        yield advance


def _state(rounds_done: int, rounds: int) -> str:
    if rounds_done == rounds:
        return "complete"
    return f"goes on from round {rounds_done} of {rounds}" if rounds_done else "begins"


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<28}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
