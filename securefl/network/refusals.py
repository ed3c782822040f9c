"""Lines on callers who are refused: a few of each, so that nobody who calls again fills a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from securefl.network.saying import Warned

MOST_LINES = 3
"""Lines on one caller within `WITHIN_S`."""
WITHIN_S = 60.0


@dataclass(slots=True)
class _OfOne:
    """Refusals of one caller since a moment."""

    since: float
    n: int = 0


@dataclass(slots=True)
class Refusals:
    """Says why callers are refused; those beyond a few are counted, and told with the next line."""

    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _of: dict[str, _OfOne] = field(default_factory=dict)
    """Refusals of each caller: as many as there are certificates, and strangers as one."""

    def refuse(self, caller: str, why: str) -> None:
        """Say that a caller is refused, or count it."""
        now = self.clock()
        of = self._of.get(caller)
        unsaid = 0
        if of is None or now - of.since >= WITHIN_S:
            unsaid = max(0, of.n - MOST_LINES) if of else 0
            self._of[caller] = of = _OfOne(now)
        of.n += 1
        if of.n > MOST_LINES:
            return
        line = f"Refused: {why}"
        if unsaid:
            line += f" (and {unsaid} times more before)"
        if of.n == MOST_LINES:
            line += f" (more from there within {WITHIN_S:g} s is counted alone)"
        self.say(Warned(line))
