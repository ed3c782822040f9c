"""End of a connection by whoever listens: with the reason."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from securefl.errors import PeerError
from securefl.network import bodies
from securefl.network.frames import Frame, Link
from securefl.network.stream import FINISH_S


async def part(link: Link, reason: str) -> None:
    """Say why this is the end, empty where all is well, and hang up."""
    with suppress(PeerError, TimeoutError):
        async with asyncio.timeout(FINISH_S):
            await link.send(Frame.GOODBYE, bodies.reason(reason))
    link.close()
