"""Progress of a run: how it stands in one line, and a bar at a terminal or in a notebook."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from typing import Any, Protocol

from securefl.io.text import printable
from securefl.metrics.by_name import SHARES, shown, title
from securefl.runs.round_metrics import RoundMetrics

MEGABYTE = 1e6
RECENT_ROUNDS = 10
"""Rounds of whose mean the time that is left is guessed."""
PHASE_WIDTH = len("clients, messages")
"""Characters of the longest phase's name, so that what follows stands still."""
UPDATE_S = 1.0
"""Seconds between two updates of a bar: in a notebook each is a message to the browser."""


class RunProgress(Protocol):
    """Follower of a run."""

    def on_phase(self, name: str) -> None:
        """Note the phase of a round that begins, thousands of times a second at most."""

    def on_round(self, metrics: RoundMetrics) -> None:
        """Note a round that is done."""


def scored(metrics: RoundMetrics, *, named: bool = False) -> str:
    """Return what rounds are compared by, with its metric where that is said nowhere else."""
    value = shown(metrics.metric, metrics.compared)
    return f"{title(metrics.metric)} {value}" if named or metrics.metric not in SHARES else value


def duration(seconds: float) -> str:
    """Return a duration as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def left(seconds: Sequence[float], n_rounds: int) -> str:
    """Return the time that so many rounds take, by the mean of the last ten of these."""
    recent = seconds[-RECENT_ROUNDS:]
    return f"{duration(sum(recent) / len(recent) * n_rounds)} left"


@dataclass(slots=True)
class RunSoFar:
    """State of a run as it goes on, in words."""

    label: str
    rounds: int
    """Rounds that the settings ask for."""
    done: int
    """Rounds that are done."""
    private: bool
    """True with differential privacy: it is said what that has cost, as it is where a round is said
    to have cost some."""
    phase: str = ""
    """Phase of the round that goes on; empty where nobody tells."""
    last: RoundMetrics | None = None
    _sent_bytes: int = 0
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_ROUNDS))

    def note(self, metrics: RoundMetrics) -> None:
        """Add a round that is done."""
        self.last, self.done = metrics, metrics.round
        self._sent_bytes += metrics.upload_bytes
        self.private |= metrics.epsilon is not None
        self._seconds.append(metrics.seconds)

    @property
    def figures(self) -> str:
        """Score, bytes that clients have sent, and ε, after the last round."""
        if self.last is None:
            return ""
        said = f"{scored(self.last):>7} {self._sent_bytes / MEGABYTE:7.1f} MB up"
        return f"{said}  {self._epsilon}" if self.private else said

    @property
    def _epsilon(self) -> str:
        spent = self.last.epsilon if self.last else None
        return "ε infinite" if spent is None else f"ε ≤ {spent:.3g}"

    def __str__(self) -> str:
        """Return all that a bar says beside itself, the most wanted first."""
        parts = [f"{self.done:,}/{self.rounds:,}"]
        if self.last is not None:
            n_left, n_clients = self.rounds - self.done, self.last.n_clients
            parts += [left([*self._seconds], n_left)] if n_left > 0 else []
            parts += [scored(self.last)]
            if n_clients is not None:
                parts.append(f"{n_clients:,} client{'s' if n_clients != 1 else ''}")
            parts += [self._epsilon] if self.private else []
        parts += [f"{self.phase:<{PHASE_WIDTH}}"] if self.phase and self.done < self.rounds else []
        parts += [f"{self._sent_bytes / MEGABYTE:.1f} MB up"] if self.last else []
        return "  ".join(parts)


@contextmanager
def progress_bar(
    label: str, rounds: int, done: int = 0, *, private: bool = False
) -> Iterator[RunProgress]:
    """Show a run's progress: a bar in a notebook or at a terminal, else ten lines on stderr.

    Args:
        label: name of the run.
        rounds: rounds that the settings ask for.
        done: rounds of them that are done already.
        private: whether to say what differential privacy has cost.
    """
    so_far = RunSoFar(label, rounds, done, private)
    display = notebook_display()
    if display is not None:
        bar = _NotebookBar(so_far)
        bar.shown_by(display)
        try:
            yield bar
        finally:
            bar.update()
        return
    with terminal_bar(so_far) as at_terminal:
        yield at_terminal or _Lines(so_far)


def notebook_display() -> Callable[..., Any] | None:
    """Return IPython's `display` where this process is a notebook's kernel; else None.

    IPython is not loaded for it: where nobody has, there is no notebook.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if getattr(shell, "kernel", None) is None:
        return None
    display: Callable[..., Any] = import_module("IPython.display").display
    return display


@dataclass(slots=True)
class _Lines:
    """Ten lines on stderr, for logs and pipes."""

    so_far: RunSoFar

    def on_phase(self, name: str) -> None:
        """Say nothing: a log wants no phases."""

    def on_round(self, metrics: RoundMetrics) -> None:
        of = self.so_far
        of.note(metrics)
        if metrics.round % max(1, of.rounds // 10) == 0:
            line = f"{of.label}: round {metrics.round}/{of.rounds} {of.figures}"
            print(line, file=sys.stderr)


@dataclass(slots=True)
class _TerminalBar:
    """Line that rich draws again and again, from how the run stands at that moment."""

    so_far: RunSoFar

    def on_phase(self, name: str) -> None:
        self.so_far.phase = name

    def on_round(self, metrics: RoundMetrics) -> None:
        self.so_far.note(metrics)

    def parts(self, width: int) -> Iterator[tuple[str, str]]:
        """Yield texts and their styles; the bar has what the words leave of so many characters."""
        of = self.so_far
        label, said = printable(of.label), f"  {of}"
        room = max(0, width - len(label) - len(said) - 1)
        full = min(room, room * of.done // of.rounds)
        yield from ((f"{label} ", ""), ("━" * full, "bar.complete"))
        yield from (("─" * (room - full), "bar.back"), (said, ""))


@contextmanager
def terminal_bar(so_far: RunSoFar) -> Iterator[RunProgress | None]:
    """Draw a bar on stderr and yield it; yield None where no terminal can draw it."""
    dumb = os.environ.get("TERM", "").lower() in {"dumb", "unknown"}
    if dumb or not (sys.stderr.isatty() or os.environ.get("FORCE_COLOR")):
        yield None  # as rich has it, which takes long to load
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console, bar = Console(stderr=True), _TerminalBar(so_far)

    def line() -> Text:  # rich's own Progress takes four times as long to draw it
        return Text.assemble(*bar.parts(console.width), no_wrap=True, overflow="ellipsis")

    with Live(get_renderable=line, console=console, refresh_per_second=1 / UPDATE_S):
        yield bar


@dataclass(slots=True, repr=False)
class _NotebookBar:
    """Bar in a notebook's cell, which is updated in its place."""

    so_far: RunSoFar
    _handle: Any = None
    _updated_s: float = 0.0

    def shown_by(self, display: Callable[..., Any]) -> None:
        """Show the bar for the first time."""
        self._handle = display(self, display_id=True)

    def on_phase(self, name: str) -> None:
        self.so_far.phase = name
        self._now_and_then()

    def on_round(self, metrics: RoundMetrics) -> None:
        self.so_far.note(metrics)
        self._now_and_then()

    def _now_and_then(self) -> None:
        if time.monotonic() - self._updated_s >= UPDATE_S:
            self.update()

    def update(self) -> None:
        """Show how the run stands."""
        self._updated_s = time.monotonic()
        self._handle.update(self)

    def __repr__(self) -> str:
        return f"{self.so_far.label}  {self.so_far}"

    def _repr_html_(self) -> str:
        of = self.so_far
        bar = (
            f'<progress max="{of.rounds}" value="{of.done}" style="width: 100%; max-width: 40rem">'
        )
        return f"<div>{bar}</progress><br>{escape(repr(self))}</div>"
