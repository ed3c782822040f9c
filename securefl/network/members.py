"""Members: the clients that are connected to the server."""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from securefl.errors import PeerError
from securefl.federation.transport import Lost
from securefl.network import bodies
from securefl.network.frames import Frame, Link
from securefl.network.refusals import SentHome, part
from securefl.settings.digests import Digests, differing

HELLO_S = 10.0
JOIN_S = 0.5
"""Seconds between two times that a client joins: a storm of them costs nobody anything."""


@dataclass(slots=True)
class Members:
    """Clients that have joined: each has one connection, and a second is refused while it lives."""

    run: str
    job: str
    """Id of the job: see `bodies.Welcome`."""
    settings: str
    """Digest of the server's settings."""
    by_setting: Digests
    """Short digest of each of them."""
    names: Collection[str]
    """Names of the roster, in the order in which clients are added up."""
    timeout_s: float
    """Seconds that a client has for its next message."""
    say: Callable[[str], None]
    code: str = ""
    """Digest of the files of the model, where the settings name code."""
    links: dict[str, Link] = field(default_factory=dict)
    ages: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Age of each client's bundle."""
    over: str | None = None
    """Reason why the run is over, empty where all rounds are done; None before."""
    _arriving: set[Link] = field(default_factory=set)
    """Connections of which no hello has come yet."""
    _joined_at: dict[str, float] = field(default_factory=dict)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def welcome(self, link: Link) -> None:
        """Greet a client, and hold its connection until it ends; raises PeerError."""
        self._arriving.add(link)
        try:
            async with asyncio.timeout(HELLO_S):
                received = await link.receive({Frame.HELLO: bodies.MAX_HELLO})
        except TimeoutError:
            raise PeerError(f"{link.name}: no hello within {HELLO_S:g} s") from None
        finally:
            self._arriving.discard(link)
        hello = bodies.parsed(bodies.Hello, received.body, link.name)
        if reason := self._against(link.name, hello):
            raise SentHome(reason, final=True)
        if reason := self._not_now(link.name):
            raise SentHome(reason, Frame.LEAVE)
        self._joined_at[link.name] = time.monotonic()
        try:
            async with asyncio.timeout(HELLO_S):
                welcome = bodies.Welcome(run=self.run, job=self.job)
                await link.send(Frame.WELCOME, welcome.to_bytes())
        except TimeoutError:
            raise PeerError(f"{link.name}: takes nothing for {HELLO_S:g} s") from None
        if self.over is not None:  # it was not here yet when all were told
            raise SentHome(self.over)
        async with self._changed:  # in here nobody is waited for: others join meanwhile
            if lost := self.links.get(link.name):
                lost.close()
            self.links[link.name], self.ages[link.name] = link, hello.age
            self._changed.notify_all()
        self.say(f"{link.name} has joined, {len(self.links)} of {len(self.names)}")
        await link.ended()

    def _not_now(self, name: str) -> str:
        """Return why a client that may join has to wait; empty where it has not."""
        old = self.links.get(name)
        if old and not old.lost:
            return "another process of this name is connected: stop one of the two"
        if time.monotonic() - self._joined_at.get(name, -math.inf) < JOIN_S:
            return f"it has joined within the last {JOIN_S:g} s: come again"
        return ""

    def _against(self, name: str, hello: bodies.Hello) -> str:
        if hello.version != bodies.VERSION:
            return (
                f"its frames are of version {hello.version}, the server's of {bodies.VERSION}: "
                "install one release for all parties"
            )
        if name not in self.names:
            return f"{name!r} is no client of these settings: see data.names"
        if hello.settings != self.settings:
            where = differing(hello.by_setting, self.by_setting)
            return (
                f"it has other settings than the server, in {where:.300}: give all "
                "processes the same file"
            )
        if hello.code != self.code:
            return (
                "the code that the settings name is another than the server's: install one "
                "everywhere"
            )
        return ""

    async def bring_up_to(
        self, links: Mapping[str, Link], age: tuple[int, int], files: str
    ) -> dict[str, Lost]:
        """Send the clients whose bundle is older these files; who could not be reached is lost."""
        behind = {name: link for name, link in links.items() if self.ages[name] < age}
        self.ages |= dict.fromkeys(behind, age)
        return await self.send(behind, Frame.BUNDLE, files.encode())

    def are_here(self, awaited: Collection[str], at_least: int) -> bool:
        """Return whether so many of those are connected at once."""
        links = [self.links[name] for name in awaited if name in self.links]
        return sum(not link.lost for link in links) >= at_least

    async def all_here(
        self, awaited: Collection[str], within_s: float, at_least: int | None = None
    ) -> bool:
        """Wait for those, or so many of them; return whether they are here at once.

        Where `within_s` is infinite, as long as it takes.
        """
        wanted = len(awaited) if at_least is None else min(at_least, len(awaited))

        def here() -> bool:
            return self.are_here(awaited, wanted)

        try:
            limit_s = within_s if math.isfinite(within_s) else None
            async with asyncio.timeout(limit_s), self._changed:
                await self._changed.wait_for(here)
        except TimeoutError:
            return False
        return True

    def here(self) -> dict[str, Link]:
        """Return the clients that are connected now, in the roster's order."""
        known = {name: self.links[name] for name in self.names if name in self.links}
        return {name: link for name, link in known.items() if not link.lost}

    def drop(self, name: str, link: Link) -> None:
        """Hang up on a client, which may join again for a later round."""
        link.close()
        if self.links.get(name) is link:
            del self.links[name]

    async def send(
        self, links: Mapping[str, Link], frame: Frame, *body: bytes | memoryview
    ) -> dict[str, Lost]:
        """Send all of them a frame (`Link.send`); who could not be reached is dropped."""

        async def one(name: str, link: Link) -> Lost | None:
            try:
                async with asyncio.timeout(self.timeout_s):
                    await link.send(frame, *body)
            except (PeerError, TimeoutError) as error:
                self.drop(name, link)
                return Lost(str(error) or f"{name}: takes nothing for {self.timeout_s:g} s")
            return None

        sent = await asyncio.gather(*(one(*item) for item in links.items()))
        return {name: lost for name, lost in zip(links, sent, strict=True) if lost}

    async def end(self, reason: str) -> None:
        """Tell all, and whoever is arriving, that the run is over; empty where it is done."""
        self.over = reason
        await asyncio.gather(
            self.send_home(self.here(), reason),
            *(part(link, reason) for link in self._arriving),
        )

    async def send_home(self, links: Mapping[str, Link], reason: str) -> None:
        """Tell them why they are out for good; empty where all rounds are done."""
        await asyncio.gather(*(part(link, reason) for link in links.values()))
        for name, link in links.items():
            self.drop(name, link)
