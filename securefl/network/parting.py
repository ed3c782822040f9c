"""End of a connection by whoever listens: with the reason, and so that the reason arrives."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from securefl.errors import PeerError
from securefl.network import bodies
from securefl.network.frames import Frame, Link

PARTING_S = 2.0


async def part(link: Link, reason: str) -> None:
    """Say why this is the end, empty where all is well, and hang up once the peer has.

    Closed with something unread, the connection would be reset, and the reason lost under way.
    """
    with suppress(PeerError, TimeoutError):
        async with asyncio.timeout(PARTING_S):
            await link.send(Frame.GOODBYE, bodies.reason(reason))
            await link.hung_up()
    link.close()
