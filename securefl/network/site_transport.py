"""Transport to sites over their connections, by gRPC or through NVIDIA FLARE."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from securefl.errors import PeerError
from securefl.federation.transport import Lost, Meaning, SiteCall
from securefl.network.frames import Frame, Link
from securefl.network.limits import Place, Room
from securefl.network.loop_work import LoopWork
from securefl.network.members import Members
from securefl.network.monitor import TRAIN


@dataclass(slots=True)
class SiteTransport:
    """`Transport` to members; the first part of a message is its frame's kind, one byte.

    Who is late, gone, or breaks the protocol is lost, and dropped.
    """

    members: Members
    work: LoopWork
    room: Room
    """Room for contributions that come before their turn."""
    phase: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()
    """Counts the time of a phase."""

    def call(
        self,
        calls: Mapping[str, SiteCall[Meaning]],
        heard: Callable[[str, Meaning | Lost], None],
        awaited: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        """Call the sites, see `Transport.call`; raises PeerError where the server is stopped."""
        outcomes = SimpleQueue[tuple[str, Meaning | Lost] | None]()

        def hear_next() -> bool:  # the outcome is let go of before the next is waited for
            if (outcome := outcomes.get()) is not None:
                heard(*outcome)
            return outcome is not None

        if awaited:
            self.work.loop.call_soon_threadsafe(self.room.begin, awaited())
        with self.phase(TRAIN):
            called = self.work.submitted(self._called(dict(calls), outcomes))
            del calls  # each call is let go of with its outcome
            called.add_done_callback(lambda _: outcomes.put(None))
            while hear_next():
                if awaited and self.room.keep_for(awaited()):
                    self.work.loop.call_soon_threadsafe(self.room.wake)
            called.result()

    # In the event loop.

    async def _called(
        self,
        calls: dict[str, SiteCall[Meaning]],
        outcomes: SimpleQueue[tuple[str, Meaning | Lost] | None],
    ) -> None:
        async def one(name: str) -> None:
            def said(outcome: Meaning | Lost) -> None:
                outcomes.put((name, outcome))

            if isinstance(outcome := await self._outcome(name, calls.pop(name), said), Lost):
                self.room.let_go(name)
            said(outcome)

        await asyncio.gather(*map(one, tuple(calls)))

    async def _outcome(
        self, name: str, call: SiteCall[Meaning], said: Callable[[Meaning], None]
    ) -> Meaning | Lost:
        link = self.members.links.get(name)
        if link is None:
            return Lost(f"{name}: is not connected")
        outcome: Meaning | Lost | None = await self._sent(name, link, call) or call.unanswered
        while outcome is None:
            outcome = await self._read(name, link, call, said)
        return outcome

    async def _sent(self, name: str, link: Link, call: SiteCall[Meaning]) -> Lost | None:
        kind, *parts = call.request(link)
        return (await self.members.send({name: link}, Frame(kind[0]), *parts)).get(name)

    async def _read(
        self, name: str, link: Link, call: SiteCall[Meaning], said: Callable[[Meaning], None]
    ) -> Meaning | Lost | None:
        """Read a message; return the outcome once it was the last."""
        try:
            async with asyncio.timeout(self.members.timeout_s) as limit:
                begun = await link.begun()
                kind = bytes([begun.kind])
                if (at_once := call.begins((kind, begun.start), 1 + begun.length)) is not None:
                    said(at_once)
                place = Place(self.room, name, link) if begun.kind == Frame.MESSAGE else None
                body = await link.rest(begun, partial(place.keep, limit) if place else None)
            return call.read((kind, body))
        except TimeoutError:
            self.members.drop(name, link)
            return Lost(f"{name}: late, nothing came within {self.members.timeout_s:g} s")
        except PeerError as error:
            self.members.drop(name, link)
            return Lost(str(error))
