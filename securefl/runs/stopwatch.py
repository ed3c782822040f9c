"""Stopwatch of a round's phases."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds by phase; a phase within another counts for itself alone."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._within: list[float] = []
        """Seconds that phases inside each of the phases that go on have taken."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block for this phase."""
        began = time.perf_counter()
        self._within.append(0.0)
        try:
            yield
        finally:
            took, within = time.perf_counter() - began, self._within.pop()
            self._seconds[name] += took - within
            if self._within:
                self._within[-1] += took

    def take(self) -> dict[str, float]:
        """Return the seconds by phase since the last call."""
        found, self._seconds = dict(self._seconds), defaultdict(float)
        return found
