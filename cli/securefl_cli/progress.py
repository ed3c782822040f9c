"""Progress bars over a run's rounds, and Ctrl-C, which Python may drop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from securefl.recipes.reproduce import PlannedRun
    from securefl.runs.progress import RunProgress
    from securefl.runs.round_metrics import RoundMetrics


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


@dataclass(frozen=True, slots=True)
class _Interruptible:
    """Bar, and Ctrl-C between two rounds."""

    bar: RunProgress

    def on_phase(self, name: str) -> None:
        self.bar.on_phase(name)

    def on_round(self, metrics: RoundMetrics) -> None:
        raise_if_interrupted()
        self.bar.on_round(metrics)


@contextmanager
def progress_bar(
    label: str, rounds: int, done: int = 0, *, private: bool = False
) -> Iterator[RunProgress]:
    """Show a bar on stderr, ten lines without a terminal: `securefl.runs.progress.progress_bar`.

    It ends the run, between two rounds, once Ctrl-C has been pressed.
    """
    from securefl.runs.progress import progress_bar as shown

    with shown(label, rounds, done, private=private) as bar:
        yield _Interruptible(bar)


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
    console = _stderr()
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
    console = _stderr()
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


def _stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def _progress(console: Console) -> Progress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description:<28}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
