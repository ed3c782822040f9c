"""End of a connection by whoever listens: with the reason."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from securefl.errors import PeerError
from securefl.network import bodies
from securefl.network.frames import Frame, Link
from securefl.network.stream import FINISH_S


class SentHome(PeerError):
    """A caller that may know why it is refused: the consortium's CA vouches for it."""

    def __init__(self, reason: str, frame: Frame = Frame.GOODBYE) -> None:
        super().__init__(reason)
        self.frame = frame
        """The one in which it is told: GOODBYE, or LEAVE where it may come again."""


async def part(link: Link, reason: str, frame: Frame = Frame.GOODBYE) -> None:
    """Say why this is the end, empty where all is well, and hang up."""
    with suppress(PeerError, TimeoutError):
        async with asyncio.timeout(FINISH_S):
            await link.send(frame, bodies.reason(reason))
    link.close()
