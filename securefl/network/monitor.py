"""Counts of a running process for its operators, and whether it goes on and can do its work.

Names of clients, numbers and seconds: nothing that a client has computed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, ParamSpec, Protocol, TypeVar

from securefl.errors import SecureFLError
from securefl.federation.incidents import PASSED, SITS_OUT, Incident
from securefl.network.frames import Traffic

if TYPE_CHECKING:
    from securefl.runs.round_metrics import RoundMetrics


WAIT, TRAIN, OPEN, EVALUATE, ADD = "wait", "train", "open", "evaluate", "add"
LATE = ": late, "
"""Words of an incident's reason where a client's message has not come in time."""
_NO_AUTHORITY = "the authority is not connected"
ALIVE_S = 5.0
"""Seconds for the event loop to do a step, before it counts as stuck."""
Given = ParamSpec("Given")
Made = TypeVar("Made")
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MetricValue:
    """One measured quantity, by its labels."""

    name: str
    help: str
    kind: Literal["counter", "gauge"]
    values: Mapping[Labels, float]
    labels: Labels = ()


class Watched(Protocol):
    """Process that an operator looks at."""

    def numbers(self) -> Iterator[MetricValue]:
        """Yield its counts."""

    def not_ready(self) -> str:
        """Return why it cannot do its work now; empty where it can."""

    def is_alive(self) -> bool:
        """Return whether its event loop goes on."""


@dataclass(slots=True)
class _Loop:
    """Event loop of the process; None before it runs."""

    loop: asyncio.AbstractEventLoop | None = None

    def is_alive(self) -> bool:
        """Return whether the loop goes on: see `Watched.is_alive`."""
        if self.loop is None:
            return True  # it still loads what it needs
        step = threading.Event()
        with suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(step.set)
        return step.wait(ALIVE_S)


@dataclass(slots=True)
class ServerMonitor(_Loop):
    """Counts of one session of a server."""

    rounds: int = 0
    """Rounds that the settings ask for."""
    done: int = 0
    """Rounds that are done, those of earlier sessions included."""
    quorum: int = 1
    connected: Callable[[], int] = lambda: 0
    """Function that returns the number of clients that are connected."""
    authority: Callable[[], bool] | None = None
    """Function that returns whether the authority, or as many officers as are needed, is
    connected; None where nothing is encrypted."""
    officers: Callable[[], int] | None = None
    """Function that returns the number of connected officers; None where there is one authority."""
    opened: int = 0
    """Totals and lists of scores that the authority has opened."""
    missed: Counter[Labels] = field(default_factory=Counter)
    """Incidents by client, and by reason: `late`, `dropped`, `sits out`, or the round's `pass`."""
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Time by phase, of rounds that are done."""
    traffic: Traffic = field(default_factory=Traffic)
    _now: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _within: bool = False

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of a block; where one lies in another, the outer one counts."""
        if self._within:
            yield
            return
        self._within, started = True, time.perf_counter()
        try:
            yield
        finally:
            self._within = False
            self._now[name] += time.perf_counter() - started

    def timed(self, name: str, work: Callable[Given, Made]) -> Callable[Given, Made]:
        """Return a function whose time counts as this phase's."""

        def counted(*args: Given.args, **kwargs: Given.kwargs) -> Made:
            with self.phase(name):
                return work(*args, **kwargs)

        return counted

    def note(self, incident: Incident) -> None:
        """Count a client, or officers, that are missed in a round."""
        why = "late" if LATE in incident.reason else "dropped"
        if incident.name in {PASSED, SITS_OUT}:  # as the server decides
            why = incident.name
        self.missed[incident.client or incident.name, why] += 1

    def round_done(self, metrics: RoundMetrics) -> None:
        """Count a round; time of no other phase is the server's own, for adding up."""
        self.done = metrics.round
        self._now[ADD] = max(0.0, metrics.seconds - sum(self._now.values()))
        for name, seconds in self._now.items():
            self.seconds[name] += seconds
        self._now.clear()

    def numbers(self) -> Iterator[MetricValue]:
        """Yield the counts: see `Watched.numbers`."""
        yield gauge("rounds_done", "Rounds that are done", self.done)
        yield gauge("rounds", "Rounds that the settings ask for", self.rounds)
        yield gauge("clients_connected", "Clients that are connected now", self.connected())
        yield gauge("clients_needed", "Clients without whom no round begins", self.quorum)
        if self.authority:
            here = float(self.authority())
            yield gauge("authority_connected", "1 where the authority is here", here)
            yield counter("openings", "Totals, and lists of scores, that were opened", self.opened)
        if self.officers:
            n_here = self.officers()
            yield gauge("officers_connected", "Officers that are connected now", n_here)
        missed = "Rounds and scores that a client has no part in, and why"
        yield MetricValue("client_missed", missed, "counter", dict(self.missed), ("client", "why"))
        by_phase: dict[Labels, float] = {(name,): s for name, s in self.seconds.items()}
        phases = "Time of rounds that are done, by phase"
        yield MetricValue("phase_seconds", phases, "counter", by_phase, ("phase",))
        yield from _bytes(self.traffic)

    def not_ready(self) -> str:
        """Return why not: see `Watched.not_ready`."""
        if self.authority and not self.authority():
            return "too few officers are connected" if self.officers else _NO_AUTHORITY
        if (here := self.connected()) < self.quorum:
            return f"{here} clients are connected, and a round needs {self.quorum}"
        return ""


@dataclass(slots=True)
class AuthorityMonitor(_Loop):
    """Counts of an authority process."""

    server: str = ""
    """Name of the server that is connected."""
    opened: int = 0
    refused: int = 0
    openings_left: Callable[[], int] = lambda: 0
    """Function that returns the number of totals that the policy still opens in this session."""
    epoch: Callable[[], int] = lambda: 0
    traffic: Traffic = field(default_factory=Traffic)

    def numbers(self) -> Iterator[MetricValue]:
        """Yield the counts: see `Watched.numbers`."""
        yield gauge("server_connected", "1 where a server is connected", float(bool(self.server)))
        yield counter("openings", "Totals, and lists of scores, that were opened", self.opened)
        yield counter("refusals", "Totals, and lists of scores, that were refused", self.refused)
        with suppress(SecureFLError):  # a damaged folder: the log says it
            left = self.openings_left()
            yield gauge("openings_left", "Totals that the policy still opens in this session", left)
            yield gauge("epoch", "Epoch of the keys", self.epoch())
        yield from _bytes(self.traffic)

    def not_ready(self) -> str:
        """Return why not: see `Watched.not_ready`."""
        return "" if self.server else "no server is connected"


@dataclass(slots=True)
class ClientMonitor(_Loop):
    """Counts of a client's process."""

    server: str = ""
    """Name of the server that has welcomed it."""
    asked: int = 0
    """Last round that a server has asked it for anything of."""
    counted: int = 0
    traffic: Traffic = field(default_factory=Traffic)

    def numbers(self) -> Iterator[MetricValue]:
        """Yield the counts: see `Watched.numbers`."""
        yield gauge(
            "server_connected", "1 where a server has welcomed it", float(bool(self.server))
        )
        yield gauge("round", "Last round that it was asked for anything of", self.asked)
        yield counter("rounds_counted", "Rounds in which it counted", self.counted)
        yield from _bytes(self.traffic)

    def not_ready(self) -> str:
        """Return why not: see `Watched.not_ready`."""
        return "" if self.server else "no server has welcomed it"


def gauge(name: str, help_text: str, value: float) -> MetricValue:
    """Return a number that may fall, without labels."""
    return MetricValue(name, help_text, "gauge", {(): value})


def counter(name: str, help_text: str, value: float) -> MetricValue:
    """Return a number that only rises, without labels."""
    return MetricValue(name, help_text, "counter", {(): value})


def _bytes(traffic: Traffic) -> Iterator[MetricValue]:
    yield counter("sent_bytes", "Bytes of frames that were sent", traffic.sent_bytes)
    yield counter("received_bytes", "Bytes of frames that have come", traffic.received_bytes)
