"""The server's line to the authority."""

from __future__ import annotations

import asyncio

from securefl.errors import OpeningRefused, PeerError, TooFewContributions
from securefl.exchange.base import OpenedSum
from securefl.net import bodies
from securefl.net.frames import SMALL, Frame, Link
from securefl.roles.server import SumRequest

ANSWER_S = 120.0
RELEASED = "float64"
"""The authority rounds what it releases; in doubles these digits are exact."""


async def ask_to_open(authority: Link, request: SumRequest) -> OpenedSum:
    """The total, as the authority releases it.

    Raises:
        OpeningRefused: it does not open this sum.
        PeerError: it is gone, or its answer is none.
    """
    n_values = request.expected.n_values
    await authority.send(Frame.OPEN, bodies.open_request(request))
    await authority.send(Frame.CIPHERTEXT, request.total)
    size = bodies.n_total_bytes(n_values, RELEASED)
    try:
        async with asyncio.timeout(ANSWER_S):
            received = await authority.receive({Frame.OPENED: size, Frame.REFUSED: SMALL})
    except TimeoutError:
        raise PeerError(f"{authority.name}: no answer within {ANSWER_S:g} s") from None
    if received.frame is Frame.OPENED:
        return bodies.read_total(received.body, n_values, RELEASED, authority.name)
    refusal = bodies.parsed(bodies.Refusal, received.body, authority.name)
    raise (TooFewContributions if refusal.too_few else OpeningRefused)(refusal.reason)
