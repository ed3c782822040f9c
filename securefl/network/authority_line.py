"""Lines of the server to those who open: the authority, or one of several officers."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from securefl.errors import (
    BlindTotalRefused,
    OpeningRefused,
    OtherSettings,
    PeerError,
    TooFewContributions,
    TotalRefused,
)
from securefl.exchange.blind import BlindTotal, n_answer_bytes
from securefl.exchange.card_keys import Quorum
from securefl.exchange.opener import Answer, ScorePart
from securefl.exchange.sums import OpenedSum
from securefl.federation.server import SumRequest
from securefl.federation.survey import ScoreRequest
from securefl.federation.total import RELEASED, n_total_bytes, read_total
from securefl.network import bodies
from securefl.network.frames import SMALL, Frame, Link
from securefl.network.loop_work import STOPPED
from securefl.network.refusals import SentHome, part
from securefl.network.saying import Warned

ANSWER_S = 120.0
MAX_CARDS_TAKEN = 2**20
AUTHORITY = "the authority"


class Line:
    """Connection of the authority, or an officer, which takes it up again where it was lost."""

    def __init__(
        self, who: Callable[[], str] = lambda: AUTHORITY, command: str = "authority serve"
    ) -> None:
        """Take the words that errors say: who calls, as of now, and by which command."""
        self._who = who
        self._command = command
        self.is_over = False
        """True once it was told that it is over: nobody waits for it to call again."""
        self._link: Link | None = None
        self._changed = asyncio.Condition()

    async def welcome(self, link: Link) -> None:
        """Take up its connection, and hold it until it ends.

        Raises:
            PeerError: another one is connected.
        """
        if self._link and not self._link.lost:
            raise SentHome(f"another process of {self.who} is connected: stop one of the two")
        async with self._changed:
            self._link = link
            self._changed.notify_all()
        await link.ended()

    @property
    def who(self) -> str:
        """Words for whoever calls."""
        return self._who()

    @property
    def is_here(self) -> bool:
        """True while it is connected."""
        return self._link is not None and not self._link.lost

    async def link(self, within_s: float) -> Link:
        """Return its connection, once there is one.

        Raises:
            PeerError: it does not call, or this server is being stopped.
        """
        try:
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(lambda: self.is_here or self.is_over)
        except TimeoutError:
            raise PeerError(
                f"{self.who} has not called for {within_s:g} s: is it running, with this "
                f"server's address (securefl {self._command} --server)?"
            ) from None
        if self.is_over:
            raise PeerError(STOPPED)
        assert self._link is not None  # noqa: S101 -- for mypy
        return self._link

    def hang_up(self) -> None:
        """Lose the connection, whose other end may call again."""
        if self._link:
            self._link.close()

    async def part(self, reason: str) -> None:
        """Tell it, and whoever waits for it, that it is over; and why, if that is a failure."""
        self.is_over = True
        async with self._changed:
            self._changed.notify_all()
        if self._link and not self._link.lost:
            await part(self._link, reason)


async def ask_what_holds(authority: Link, ready: bodies.Ready) -> bodies.News:
    """Ask, before a round, for the bundles that the server does not know yet.

    Raises:
        OpeningRefused: the authority's keys cannot be used, or this server is none any more.
        PeerError: it is gone, or its answer is none.
    """
    await authority.send(Frame.READY, ready.to_bytes())
    body = await _answer(authority, Frame.STANDING, 3 * bodies.MAX_BUNDLE)
    return bodies.parsed(bodies.News, body, authority.name)


async def give_cards(authority: Link, run: str, cards: Mapping[str, bytes]) -> dict[str, str]:
    """Give the authority clients' cards; returns the reason for each that it refuses.

    Raises:
        OpeningRefused: it takes none.
        PeerError: it is gone, or its answer is none.
    """
    refused, names = dict[str, str](), list(cards)
    for start in range(0, len(names), bodies.CARDS_AT_ONCE):
        batch = {name: cards[name] for name in names[start : start + bodies.CARDS_AT_ONCE]}
        await authority.send(Frame.CARDS, bodies.cards_given(run, batch))
        body = await _answer(authority, Frame.CARDS_TAKEN, MAX_CARDS_TAKEN)
        refused |= bodies.parsed(bodies.CardsTaken, body, authority.name).refused
    return refused


async def ask_to_open(authority: Link, request: SumRequest) -> OpenedSum | BlindTotal:
    """Return the total, as the authority releases it, or as it seals it for the signers.

    Raises:
        TotalRefused: it is no total of honest clients.
        OpeningRefused: the authority does not open this sum.
        PeerError: it is gone, or its answer is none.
    """
    n_values, names = request.expected.n_values, [*request.signers]
    await authority.send(Frame.OPEN, bodies.open_request(request))
    await authority.send(Frame.CIPHERTEXT, request.total)
    size = n_total_bytes(n_values, RELEASED)
    if request.blind:
        body = await _answer(authority, Frame.OPENED, n_answer_bytes(names, size))
        try:
            return BlindTotal.from_bytes(body, names)
        except BlindTotalRefused as error:
            raise PeerError(f"{authority.name}: {error}") from error
    body = await _answer(authority, Frame.OPENED, size)
    return read_total(body, n_values, RELEASED, authority.name)


async def ask_for_key_sums(
    officer: Link, request: SumRequest, quorum: Quorum, number: int
) -> Answer:
    """Return an officer's sums of keys for its groups; it is the one of this number from 0.

    Raises:
        OpeningRefused: it does not add up the keys of this list.
        PeerError: it is gone, or its answer is none.
    """
    groups = quorum.groups_of[number]
    await officer.send(Frame.KEY_SUMS, bodies.open_request(request))
    size = bodies.n_key_sums_bytes(len(groups))
    body = await _answer(officer, Frame.KEY_SUMS_ANSWER, size)
    return bodies.read_key_sums(body, groups, len(request.signed), officer.name)


async def ask_for_score_parts(
    officer: Link, request: ScoreRequest, quorum: Quorum, number: int
) -> list[ScorePart]:
    """Return an officer's parts of scores for its groups; it is the one of this number from 0.

    Raises:
        OpeningRefused: it does not answer for these scores.
        PeerError: it is gone, or its answer is none.
    """
    groups, n_scores = quorum.groups_of[number], len(request.scores)
    await officer.send(Frame.SCORES, bodies.open_request(request))
    await officer.send(Frame.SCORE_BYTES, b"".join(request.scores))
    size = bodies.n_score_parts_bytes(len(groups), n_scores)
    body = await _answer(officer, Frame.SCORE_PARTS, size)
    return bodies.read_score_parts(body, groups, n_scores, officer.name)


async def ask_to_open_scores(authority: Link, request: ScoreRequest) -> list[float | None]:
    """Return scores, of one client at least, as the authority releases them; None for rubbish.

    Raises:
        OpeningRefused: the authority does not open these scores.
        PeerError: it is gone, or its answer is none.
    """
    n_scores = len(request.scores)
    await authority.send(Frame.SCORES, bodies.open_request(request))
    await authority.send(Frame.SCORE_BYTES, b"".join(request.scores))
    body = await _answer(authority, Frame.OPENED_SCORES, bodies.n_scores_bytes(n_scores))
    return bodies.read_scores(body, n_scores, authority.name)


async def _answer(authority: Link, frame: Frame, size: int) -> bytes:
    try:
        async with asyncio.timeout(ANSWER_S):
            received = await authority.receive(
                {frame: size, Frame.REFUSED: SMALL, Frame.GOODBYE: SMALL}
            )
    except TimeoutError:
        raise PeerError(f"{authority.name}: no answer within {ANSWER_S:g} s") from None
    if received.frame is frame:
        return received.body
    if received.frame is Frame.GOODBYE:
        why = bodies.parsed(bodies.Reason, received.body, authority.name).reason
        raise PeerError(f"{authority.name}: {why}")
    refusal = bodies.parsed(bodies.Refusal, received.body, authority.name)
    if refusal.rubbish:
        raise TotalRefused(refusal.reason)
    if refusal.final:
        raise OtherSettings(refusal.reason)
    raise (TooFewContributions if refusal.too_few else OpeningRefused)(refusal.reason)


@dataclass(slots=True)
class Given:
    """Cards of clients for the keys in force, which whoever calls anew is given again."""

    key_id: str = ""
    cards: dict[str, bytes] = field(default_factory=dict)

    def under(self, key_id: str) -> "Given":
        """Return the same object; cards for other keys are forgotten."""
        if key_id != self.key_id:
            self.key_id, self.cards = key_id, {}
        return self


@dataclass(slots=True)
class KeyLine:
    """Line on which each round is announced, and cards given again, before anything is asked."""

    line: Line
    given: Callable[[], Given]
    """Function that returns the cards that it is to have."""
    take_up: Callable[[bodies.Bundles, str], None]
    """Function that takes news and its sender; raises PeerError where it is refused."""
    say: Callable[[str], None]
    files: Callable[[], str] = lambda: ""
    """Function that returns the newest bundle for an officer; empty where there is none."""
    _ready: bodies.Ready | None = None
    """Announcement of this round."""
    _announced_on: Link | None = None
    """Connection on which it was."""
    _given_on: tuple[Link | None, str] = (None, "")
    """Connection on which cards were given, and the id of their keys."""
    _files_on: tuple[Link | None, str] = (None, "")
    """Connection on which a bundle was sent, and that bundle."""

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
