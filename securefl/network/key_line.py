"""The server's line to whoever has a card key: the authority, or one of several officers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from securefl.errors import PeerError
from securefl.network import bodies
from securefl.network.frames import Frame, Link
from securefl.network.opening import Line, ask_what_holds, give_cards
from securefl.network.saying import Warned


@dataclass(slots=True)
class Given:
    """Clients' cards for the keys in force, which whoever calls anew is given again."""

    key_id: str = ""
    cards: dict[str, bytes] = field(default_factory=dict)

    def under(self, key_id: str) -> Given:
        """Return the same object; cards for other keys are forgotten."""
        if key_id != self.key_id:
            self.key_id, self.cards = key_id, {}
        return self


@dataclass(slots=True)
class KeyLine:
    """A line on which each round is announced, and cards given again, before anything is asked."""

    line: Line
    given: Callable[[], Given]
    """Returns the cards that it is to have."""
    take_up: Callable[[bodies.Bundles, str], None]
    """Given what is news, and its sender; raises PeerError where it is refused."""
    say: Callable[[str], None]
    files: Callable[[], str] = lambda: ""
    """Returns the newest bundle for an officer; empty where there is none."""
    _ready: bodies.Ready | None = None
    """Announcement of this round."""
    _announced_on: Link | None = None
    """The connection on which it was."""
    _given_on: tuple[Link | None, str] = (None, "")
    """The connection on which cards were given, and the id of their keys."""
    _files_on: tuple[Link | None, str] = (None, "")
    """The connection on which a bundle was sent, and that bundle."""

    def announce(self, ready: bodies.Ready) -> None:
        """Have a round announced on the next connection that is asked for."""
        self._ready, self._announced_on = ready, None

    async def link(self, within_s: float) -> Link:
        """Return a connection on which this round was announced; a lost one is waited for.

        Raises:
            OpeningRefused: its keys cannot be used, or this server is none any more.
            PeerError: it does not call, or its answer is none.
        """
        assert self._ready is not None  # noqa: S101 -- for mypy
        while True:
            link = await self.line.link(within_s)
            if link is self._announced_on:
                return link
            try:
                if (files := self.files()) and self._files_on != (link, files):
                    await link.send(Frame.BUNDLE, files.encode())
                    self._files_on = link, files
                news = await ask_what_holds(link, self._ready)
                self.take_up(news.bundles, link.name)
                await self._given_again(link)
            except PeerError:
                if not link.lost:
                    raise
                continue
            self._announced_on = link

    async def _given_again(self, link: Link) -> None:
        """Give all cards of the session where it has called anew."""
        given = self.given()
        if self._given_on == (link, given.key_id):
            return
        refused = await give_cards(link, self._run, given.cards) if given.cards else {}
        for reason in refused.values():
            self.say(Warned(f"{link.name}: refuses a card that it had: {reason}"))
        self._given_on = link, given.key_id

    @property
    def _run(self) -> str:
        assert self._ready is not None  # noqa: S101 -- for mypy
        return self._ready.run
