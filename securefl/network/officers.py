"""Lines of the server to several officers, of whom each is a process; all are asked at once.

The server combines their answers, and so reads totals at full precision. It cannot spell a secret.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from securefl.errors import PeerError, RunFolderError, SecureFLError
from securefl.exchange.card_keys import CardKeys, Quorum
from securefl.exchange.opener import Answer, ScorePart
from securefl.exchange.sums import OpenedSum
from securefl.federation.officers import Officers
from securefl.federation.server import SumRequest
from securefl.federation.survey import ScoreRequest
from securefl.network import bodies
from securefl.network.authority_line import (
    Given,
    KeyLine,
    Line,
    ask_for_key_sums,
    ask_for_score_parts,
    give_cards,
)
from securefl.network.fetched_openings import FetchedOpenings
from securefl.network.frames import Link
from securefl.types import MessageSpec

Result = TypeVar("Result")
OTHERS_S = 5.0
"""Seconds for the other officers to call, once enough have; before the first round."""
PAUSE_S = 0.1
"""Seconds between two looks at who has called."""
AWAY = "is away"


async def gathered(lines: Sequence[Line], needed: int, within_s: float) -> None:
    """Wait for the officers before the first round: for those that are needed, and others a while.

    Raises:
        PeerError: fewer than are needed have called.
    """
    loop = asyncio.get_running_loop()
    until, enough = loop.time() + within_s, False
    while (here := sum(line.is_here for line in lines)) < len(lines):
        if here >= needed and not enough:
            until, enough = min(until, loop.time() + OTHERS_S), True
        if loop.time() >= until:
            break
        await asyncio.sleep(PAUSE_S)
    if here < needed:
        away = ", ".join(line.who for line in lines if not line.is_here)
        raise PeerError(
            f"{here} of {len(lines)} officers have called within {within_s:g} s, and {needed} are "
            f"needed: {away} are away; are they running, with this server's address?"
        )


@dataclass(slots=True)
class OfficerLines:
    """`Panel` of officers that call the server, for the thread of the loop of rounds."""

    lines: Sequence[KeyLine]
    """Lines, officer by officer; the first one is the authority's."""
    quorum: Quorum
    loop: asyncio.AbstractEventLoop
    limit_s: float
    """Seconds for each of them to answer, and for as many as are needed to be there."""
    _benched: dict[int, str] = field(default_factory=dict)
    """Reason why an officer is asked nothing more in this round."""

    def who(self, number: int) -> str:
        """Return the words for an officer, by the name in its certificate."""
        return self.lines[number].line.who

    def announce(self, ready: bodies.Ready) -> dict[int, SecureFLError]:
        """Announce a round; returns the officers that are not ready for it, and why.

        Raises:
            PeerError: fewer are ready than are needed.
        """
        self._benched.clear()
        for line in self.lines:
            line.announce(ready)
        links = self._waited(self._ready_ones())
        away = {n: self._why_not(n) for n in range(len(self.lines)) if n not in links}
        if len(links) < self.quorum.needed:
            raise PeerError(
                f"round {ready.round}: {len(links)} of {len(self.lines)} officers are ready, and "
                f"{self.quorum.needed} are needed: "
                + "; ".join(f"{self.who(number)}: {why}" for number, why in away.items())
            )
        return away

    def take_cards(
        self, run: str, cards: Mapping[str, bytes]
    ) -> dict[int, Mapping[str, str] | SecureFLError]:
        """Give cards: see `Panel.take_cards`."""

        def give(_number: int, link: Link) -> Awaitable[Mapping[str, str]]:
            return give_cards(link, run, cards)

        return self.asked(range(len(self.lines)), give)

    def key_sums(
        self, request: SumRequest, officers: Collection[int]
    ) -> dict[int, Answer | SecureFLError]:
        """Ask for sums of keys: see `Panel.key_sums`."""

        def ask(number: int, link: Link) -> Awaitable[Answer]:
            return ask_for_key_sums(link, request, self.quorum, number)

        return self.asked(officers, ask)

    def score_parts(
        self, request: ScoreRequest, officers: Collection[int]
    ) -> dict[int, Sequence[ScorePart] | SecureFLError]:
        """Ask for parts of scores: see `Panel.score_parts`."""

        def ask(number: int, link: Link) -> Awaitable[Sequence[ScorePart]]:
            return ask_for_score_parts(link, request, self.quorum, number)

        return self.asked(officers, ask)

    def fetch(self, logs: Sequence[FetchedOpenings]) -> None:
        """Fetch the log of each officer that is here, also of one that is not ready for the round.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        self._waited(self._fetched(logs))

    async def _fetched(self, logs: Sequence[FetchedOpenings]) -> None:
        async def one(number: int, log: FetchedOpenings) -> None:
            await log.fetch(await self.lines[number].line.link(0))

        here = [n for n, line in enumerate(self.lines) if line.line.is_here]
        await asyncio.gather(*(self._within_limit(n, one(n, logs[n])) for n in here))

    def asked(
        self, officers: Collection[int], ask: Callable[[int, Link], Awaitable[Result]]
    ) -> dict[int, Result | SecureFLError]:
        """Ask these officers at once; returns answers, and reasons why there are none."""
        return self._waited(self._asked(officers, ask))

    async def _asked(
        self, officers: Collection[int], ask: Callable[[int, Link], Awaitable[Result]]
    ) -> dict[int, Result | SecureFLError]:
        links = await self._ready_ones()

        async def one(number: int) -> Result | SecureFLError:
            if number not in links:
                return self._why_not(number)
            return await self._within_limit(number, ask(number, links[number]))

        said = await asyncio.gather(*(one(number) for number in officers))
        return dict(zip(officers, said, strict=True))

    async def _ready_ones(self) -> dict[int, Link]:
        """Return the connections on which the round was announced.

        A lost one may come back as long as fewer are there than are needed.
        """
        until = self.loop.time() + self.limit_s
        while True:
            links = await self._announced()
            away = [n for n in range(len(self.lines)) if n not in {*links, *self._benched}]
            may_come = [n for n in away if not self.lines[n].line.is_over]
            enough = len(links) >= self.quorum.needed
            hopeless = len(links) + len(may_come) < self.quorum.needed
            if enough or hopeless or self.loop.time() >= until:
                return links
            await asyncio.sleep(PAUSE_S)

    async def _announced(self) -> dict[int, Link]:
        """Return the connections of the officers that are here, with this round announced."""
        here = [
            number
            for number, line in enumerate(self.lines)
            if line.line.is_here and number not in self._benched
        ]
        found = dict[int, Link | SecureFLError]()
        for numbers in ([n for n in here if n == 0], [n for n in here if n > 0]):
            # The authority has the others' bundles, where they are news.
            links = (self._within_limit(n, self.lines[n].link(0)) for n in numbers)
            found |= dict(zip(numbers, await asyncio.gather(*links), strict=True))
        for number, said in found.items():
            if isinstance(said, SecureFLError) and self.lines[number].line.is_here:
                self._benched[number] = str(said)
        return {n: link for n, link in found.items() if isinstance(link, Link)}

    async def _within_limit(self, number: int, answer: Awaitable[Result]) -> Result | SecureFLError:
        """Return an answer, or the reason why there is none.

        Who does not answer in time, or answers what is none, is asked nothing more in this round.
        """
        line = self.lines[number].line
        try:
            async with asyncio.timeout(self.limit_s):
                return await answer
        except TimeoutError:
            self._benched[number] = f"no answer within {self.limit_s:g} s"
        except PeerError as error:
            if not line.is_here:
                return error
            self._benched[number] = str(error)
        except RunFolderError:
            raise
        except SecureFLError as error:
            return error
        line.hang_up()
        return self._why_not(number)

    def _why_not(self, number: int) -> SecureFLError:
        return PeerError(self._benched.get(number, AWAY))

    def _waited(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


@dataclass(slots=True)
class RemoteOfficers:
    """Officers over their connections, for the thread of the loop of rounds; an `engine.Opener`."""

    officers: Officers
    panel: OfficerLines
    given: Given
    ready_for: Callable[[int, Sequence[MessageSpec]], bodies.Ready]
    """Function that returns the announcement of a round."""
    in_force: Callable[[], CardKeys]
    """Takes up the newest keys and members, and returns the keys."""
    timed: Callable[[], AbstractContextManager[None]]
    """Counts, within, the time of an opening."""
    logs: Sequence[FetchedOpenings]
    """Log of each officer."""

    def be_ready_for(self, round_number: int, specs: Sequence[MessageSpec]) -> None:
        """Take up a round, see `engine.Opener.be_ready_for`: officers that are not ready are named.

        Raises:
            PeerError: fewer are ready than are needed.
        """
        away = self.panel.announce(self.ready_for(round_number, specs))
        self.officers.be_ready_for(round_number, specs)
        if (keys := self.in_force()).key_id != self.officers.keys.key_id:
            self.officers.take_up(keys)
        for number, why in away.items():
            self.officers.name(number, str(why))
        self.fetch()

    @property
    def card_keys(self) -> CardKeys:
        """Card keys in force: see `engine.Opener.card_keys`."""
        return self.officers.keys

    def take_cards(self, run: str, cards: Mapping[str, bytes]) -> dict[str, str]:
        """Give cards, see `Officers.take_cards`; who calls anew is given them all again."""
        refused = self.officers.take_cards(run, cards)
        given = self.given.under(self.officers.keys.key_id)
        given.cards |= {name: card for name, card in cards.items() if name not in refused}
        return refused

    def open(self, request: SumRequest) -> OpenedSum:
        """See `Officers.open`."""
        with self.timed():
            return self.officers.open(request)

    def open_scores(self, request: ScoreRequest) -> list[float | None]:
        """Open scores: see `Officers.open_scores`."""
        return self.officers.open_scores(request)

    def fetch(self) -> None:
        """Fetch what the run's folder lacks of the officers' logs, of those that are here.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        self.panel.fetch(self.logs)
