"""Refusals of callers: each is told why, and the log has a few lines of each."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from securefl.errors import PeerError
from securefl.network import bodies
from securefl.network.frames import Frame, Link
from securefl.network.saying import Warned
from securefl.network.stream import FINISH_S

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
    """Log of refused callers; those beyond a few are counted, and told with the next line."""

    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _of: dict[str, _OfOne] = field(default_factory=dict)
    """Lines on each caller: as many as there are certificates, and strangers as one."""

    def refuse(self, caller: str, why: str) -> None:
        """Say that a caller is refused, or count it."""
        self.note(caller, f"Refused: {why}")

    def note(self, caller: str, line: str) -> None:
        """Say a line on a caller, or count it."""
        now = self.clock()
        of = self._of.get(caller)
        unsaid = 0
        if of is None or now - of.since >= WITHIN_S:
            unsaid = max(0, of.n - MOST_LINES) if of else 0
            self._of[caller] = of = _OfOne(now)
        of.n += 1
        if of.n > MOST_LINES:
            return
        if unsaid:
            line += f" (and {unsaid} times more before)"
        if of.n == MOST_LINES:
            line += f" (more from there within {WITHIN_S:g} s is counted alone)"
        self.say(Warned(line))


class SentHome(PeerError):
    """Refusal of a caller that may know why: the consortium's CA vouches for it."""

    def __init__(self, reason: str, frame: Frame = Frame.GOODBYE, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final
        """True where no restart of the caller's mends it."""
        self.frame = frame
        """Frame in which it is told: GOODBYE, or LEAVE where it may come again."""


async def part(
    link: Link, reason: str, frame: Frame = Frame.GOODBYE, *, final: bool = False
) -> None:
    """Say why this is the end, empty where all is well, and hang up."""
    with suppress(PeerError, TimeoutError):
        async with asyncio.timeout(FINISH_S):
            await link.send(frame, bodies.reason(reason, final=final))
    link.close()
