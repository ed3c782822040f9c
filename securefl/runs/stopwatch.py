"""Stopwatch of a round's phases."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds by phase; a phase within another counts for itself alone."""

    def __init__(self) -> None:
        self.on_phase: Callable[[str], None] = lambda _name: None
        """Told of the phase that goes on, when one begins, and again when one within it ends."""
        self._names: list[str] = []
        self._seconds: dict[str, float] = defaultdict(float)
        self._within: list[float] = []
        """Seconds that phases inside each of the phases that go on have taken."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block for this phase."""
        began = time.perf_counter()
        self._within.append(0.0)
        self._names.append(name)
        self.on_phase(name)
        try:
            yield
        finally:
            took, within = time.perf_counter() - began, self._within.pop()
            self._seconds[name] += took - within
            self._names.pop()
            if self._within:
                self._within[-1] += took
                self.on_phase(self._names[-1])

    def take(self) -> dict[str, float]:
        """Return the seconds by phase since the last call."""
        found, self._seconds = dict(self._seconds), defaultdict(float)
        return found
