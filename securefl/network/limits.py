"""Limits on what others send: what a round announces, and room for what comes too early.

Contributions are added in the order of the clients. A sender for whom there is no room is not read
from, so that it waits (`Resumable.write`); time that it waits so is not counted against it.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from securefl.errors import OpeningRefused
from securefl.network import bodies
from securefl.network.frames import Link


@dataclass(slots=True)
class Announced:
    """Last READY of a connection; of no other round is anything opened."""

    ready: bodies.Ready | None = None
    n_scores: int = 0
    """Number of scores that were asked for since."""
    n_values: int = 0
    """Number of values of sums that were asked for since."""

    def require_session(self, run: str, server: str) -> None:
        """Raise OpeningRefused for cards of another session than the announced one."""
        if self.ready is None or run != self.ready.run:
            raise OpeningRefused(f"{server} has not asked READY for this session")

    def require_values(self, asked: bodies.OpenRequest, server: str) -> None:
        """Count values of sums; raise OpeningRefused where they are too many."""
        announced = self._ready_for(asked, server).needed
        if self.n_values + asked.n_values > announced:
            raise OpeningRefused(
                f"{asked.n_values} values after {self.n_values}, and READY has announced "
                f"{announced}"
            )
        self.n_values += asked.n_values

    def require_scores(self, asked: bodies.OpenRequest, server: str) -> None:
        """Count scores; raise OpeningRefused where they are too many."""
        announced, n_scores = self._ready_for(asked, server).scores, len(asked.signed)
        if self.n_scores + n_scores > announced:
            raise OpeningRefused(
                f"{n_scores} scores after {self.n_scores}, and READY has announced {announced}"
            )
        self.n_scores += n_scores

    def _ready_for(self, asked: bodies.OpenRequest, server: str) -> bodies.Ready:
        # Who asks for no new round is not looked at anew, and might be a server no longer.
        if self.ready is None or (asked.run, asked.round) != (self.ready.run, self.ready.round):
            raise OpeningRefused(f"{server} has not asked READY for it")
        return self.ready


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
        self.most_bytes = 0
        """Most bytes that were held at once."""
        self._held: dict[str, int] = {}
        """Bytes of each client whose contribution is awaited, in the order of their turns."""
        self._held_bytes = 0
        self._awaited: list[str] = []
        """Clients whose turn has not come, as the loop of rounds has said last."""
        self._seen = self._awaited
        """Clients as they were when `_held` was last brought up to them."""
        self._n_waiting = 0
        self._changed = asyncio.Event()

    @property
    def held_bytes(self) -> int:
        """Number of bytes that are held now."""
        self._bring_up()
        return self._held_bytes

    def begin(self, clients: Iterable[str]) -> None:
        """Begin an exchange with these clients, in the order of their turns."""
        self._held, self._held_bytes = dict.fromkeys(clients, 0), 0
        self._seen = self._awaited
        self.wake()

    def keep_for(self, awaited: Iterable[str]) -> bool:
        """Let go of what is held of all clients but those whose turn has not come.

        Any thread may call it. Returns True where somebody waits: then `wake` is to be called in
        the event loop. Who begins to wait meanwhile sees `awaited` by itself.
        """
        self._awaited = list(awaited)
        return self._n_waiting > 0

    def let_go(self, client: str) -> None:
        """Let go of what is held of a client, which was added or is lost; the next have room."""
        self._held_bytes -= self._held.pop(client, 0)
        self.wake()

    def fits(self, client: str, n_bytes: int) -> bool:
        """Return whether so many bytes more of a client have room now."""
        self._bring_up()
        its_turn = client not in self._held or client == next(iter(self._held))
        return its_turn or self._held_bytes + n_bytes <= self.budget_bytes

    def hold(self, client: str, n_bytes: int) -> None:
        """Count so many bytes more of a client."""
        if client in self._held:
            self._held[client] += n_bytes
            self._held_bytes += n_bytes
            self.most_bytes = max(self.most_bytes, self._held_bytes)

    async def wait(self, client: str, n_bytes: int, link: Link) -> None:
        """Wait until so many bytes more of a client have room, or its connection has ended."""
        ended = asyncio.ensure_future(link.ended())
        ended.add_done_callback(lambda _: self.wake())
        self._n_waiting += 1  # before `fits` looks at what `keep_for` has said
        try:
            while not (self.fits(client, n_bytes) or ended.done()):
                await self._changed.wait()
        finally:
            self._n_waiting -= 1
            ended.cancel()

    def wake(self) -> None:
        """Have all who wait look again whether they have room."""
        # A new event each time: whoever waits holds the old one, and looks again.
        self._changed.set()
        self._changed = asyncio.Event()

    def _bring_up(self) -> None:
        awaited = self._awaited
        if awaited is not self._seen:
            self._seen = awaited
            for client in self._held.keys() - set(awaited):
                self.let_go(client)


@dataclass(slots=True)
class Place:
    """Place of a client in the room, while a message of its own arrives on a connection."""

    room: Room
    client: str
    link: Link

    async def keep(self, limit: asyncio.Timeout, chunk: bytes) -> None:
        """Return once a chunk has room; the time limit stands still meanwhile."""
        if not self.room.fits(self.client, len(chunk)):
            now, end = asyncio.get_running_loop().time, limit.when()
            left_s = None if end is None else end - now()
            limit.reschedule(None)
            await self.room.wait(self.client, len(chunk), self.link)
            limit.reschedule(None if left_s is None else now() + left_s)
        self.room.hold(self.client, len(chunk))
