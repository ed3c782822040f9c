"""Room at the server for contributions that come before their turn: back-pressure on their senders.

Contributions are added in the order of the clients. A sender for whom there is no room is not read
from, so that gRPC's flow control stops it; time that it waits so is not counted against it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from securefl.network.frames import Frame, Link

ROOM_BYTES = 256 * 2**20
"""Most bytes of contributions that the server holds and has not added yet, beside those of the
client whose turn it is. Two models of 100 MB: more has later senders wait less, as long as one
sender alone does not fill the server's line."""


class Room:
    """Bytes of contributions that have come and are not added yet, by client.

    Those of the client whose turn it is always have room: nobody waits for somebody who waits. So
    at most `budget_bytes` and one contribution are held. Bytes count as they arrive: announcing a
    message takes no room.
    """

    def __init__(self, budget_bytes: int = ROOM_BYTES) -> None:
        self.budget_bytes = budget_bytes
        self.held_bytes = 0
        """Bytes that are held now."""
        self.most_bytes = 0
        """Most bytes that were held at once."""
        self._held: dict[str, int] = {}
        """Bytes of each client whose contribution is awaited, in the order of their turns."""
        self._changed = asyncio.Event()

    def begin(self, clients: Iterable[str]) -> None:
        """Begin an exchange with these clients, in the order of their turns."""
        self._held = dict.fromkeys(clients, 0)
        self.held_bytes = 0
        self._wake()

    def keep_for(self, awaited: Iterable[str]) -> None:
        """Let go of what is held of all clients but those whose turn has not come."""
        for client in self._held.keys() - set(awaited):
            self.let_go(client)

    def let_go(self, client: str) -> None:
        """Let go of what is held of a client, which was added or is lost; the next have room."""
        self.held_bytes -= self._held.pop(client, 0)
        self._wake()

    def fits(self, client: str, n_bytes: int) -> bool:
        """Return whether so many bytes more of a client have room now."""
        is_next = client == next(iter(self._held), client)
        return is_next or self.held_bytes + n_bytes <= self.budget_bytes

    def hold(self, client: str, n_bytes: int) -> None:
        """Count so many bytes more of a client."""
        if client in self._held:
            self._held[client] += n_bytes
            self.held_bytes += n_bytes
            self.most_bytes = max(self.most_bytes, self.held_bytes)

    async def wait(self, client: str, n_bytes: int, link: Link) -> None:
        """Wait until so many bytes more of a client have room, or its connection has ended."""
        ended = asyncio.ensure_future(link.ended())
        ended.add_done_callback(lambda _: self._wake())
        try:
            while not (self.fits(client, n_bytes) or ended.done()):
                await self._changed.wait()
        finally:
            ended.cancel()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass(slots=True)
class Place:
    """A client's place in the room, while its messages arrive on a connection."""

    room: Room
    client: str
    link: Link
    begins: Callable[[bytes, int], None] | None
    """Called with the first message's beginning and the number of bytes to come, before any is
    held; raises PeerError for a message that nobody expects."""

    async def keep(
        self, limit: asyncio.Timeout, frame: Frame, chunk: bytes, to_come_bytes: int
    ) -> None:
        """Return once a chunk has room; the time limit stands still meanwhile."""
        if frame is not Frame.MESSAGE:
            return
        if self.begins:
            begins, self.begins = self.begins, None
            begins(chunk, to_come_bytes)
        if not self.room.fits(self.client, len(chunk)):
            now, end = asyncio.get_running_loop().time, limit.when()
            left_s = None if end is None else end - now()
            limit.reschedule(None)
            await self.room.wait(self.client, len(chunk), self.link)
            limit.reschedule(None if left_s is None else now() + left_s)
        self.room.hold(self.client, len(chunk))
