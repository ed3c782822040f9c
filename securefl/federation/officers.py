"""k of n officers in the authority's place: all are asked, and their answers opened here."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from securefl.errors import (
    MessageRefused,
    PeerError,
    SecureFLError,
    TotalRefused,
)
from securefl.exchange.answers import Combiner, numbered
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.decode_total import UNROUNDED_BITS
from securefl.exchange.one_time_match import without_constant
from securefl.exchange.opener import Answer, ScorePart
from securefl.exchange.sums import OpenedSum
from securefl.federation.incidents import Incident
from securefl.federation.opening import Opening, logged
from securefl.federation.server import SumRequest
from securefl.federation.survey import ScoreRequest
from securefl.types import MessageSpec

Said = TypeVar("Said")
OFFICERS = "officers"
"""Name, in an incident, of what officers have not done."""


class AnsweringOfficer(Protocol):
    """An officer in this process."""

    def take_cards(self, run: str, cards: Mapping[str, bytes]) -> Mapping[str, str]:
        """Take clients' signed cards; returns the reason for each that is refused."""

    def key_sums(self, request: SumRequest) -> Answer:
        """Return its sums of keys, by group; raises SecureFLError where it gives none."""

    def score_parts(self, request: ScoreRequest) -> Sequence[ScorePart]:
        """Return its parts of scores; raises SecureFLError where it gives none."""


class Panel(Protocol):
    """The officers, wherever they are; all are asked at once. Numbers begin at 0."""

    def who(self, number: int) -> str:
        """Return the word for an officer: by its name, where it has one."""

    def take_cards(
        self, run: str, cards: Mapping[str, bytes]
    ) -> Mapping[int, Mapping[str, str] | SecureFLError]:
        """Give them clients' signed cards; returns, by officer, a reason for each it refuses.

        An error stands for an officer that is away; it has the cards once it is back.
        """

    def key_sums(
        self, request: SumRequest, officers: Collection[int]
    ) -> Mapping[int, Answer | SecureFLError]:
        """Ask these officers for sums of keys; returns answers, and reasons why there are none."""

    def score_parts(
        self, request: ScoreRequest, officers: Collection[int]
    ) -> Mapping[int, Sequence[ScorePart] | SecureFLError]:
        """Ask these officers for parts of scores, one for each; returns as `key_sums`."""


@dataclass(frozen=True, slots=True)
class OfficersHere:
    """A `Panel` of officers in this process: a simulation's."""

    officers: Sequence[AnsweringOfficer]

    def who(self, number: int) -> str:
        """Return the word for an officer, by its number from 1."""
        return numbered(number)

    def take_cards(self, run: str, cards: Mapping[str, bytes]) -> dict[int, Mapping[str, str]]:
        """Take clients' signed cards: see `Panel.take_cards`."""
        return {n: officer.take_cards(run, cards) for n, officer in enumerate(self.officers)}

    def key_sums(
        self, request: SumRequest, officers: Collection[int]
    ) -> dict[int, Answer | SecureFLError]:
        """Ask for sums of keys: see `Panel.key_sums`."""
        return self._heard(lambda officer: officer.key_sums(request), officers)

    def score_parts(
        self, request: ScoreRequest, officers: Collection[int]
    ) -> dict[int, Sequence[ScorePart] | SecureFLError]:
        """Ask for parts of scores: see `Panel.score_parts`."""
        return self._heard(lambda officer: officer.score_parts(request), officers)

    def _heard(
        self, ask: Callable[[AnsweringOfficer], Said], officers: Collection[int]
    ) -> dict[int, Said | SecureFLError]:
        heard: dict[int, Said | SecureFLError] = {}
        for number in officers:
            try:
                heard[number] = ask(self.officers[number])
            except SecureFLError as error:
                heard[number] = error
        return heard


@dataclass(slots=True)
class Officers:
    """Opener of totals by the answers of k of n officers, who check each request.

    Whoever asks them combines their answers, and so reads totals at full precision: over separate
    processes that is the server. The rounding of the policy's rules is not enforced.
    """

    keys: CardKeys
    panel: Panel
    log: Callable[[Opening], None]
    """Log that an opening is written to, before its total is given on."""
    report: Callable[[Incident], None]
    """Recipient, once a round, of each officer that is away, refuses, or has lied."""
    _round: int = 0
    _named: set[int] = field(default_factory=set)
    """Officers of this round's incidents."""
    _combiner: Combiner = field(init=False)

    def __post_init__(self) -> None:
        self.take_up(self.keys)

    def take_up(self, keys: CardKeys) -> None:
        """Go on under these keys; officers that have refused cards for others begin anew."""
        self.keys, self._combiner = keys, Combiner(keys, self.name, self._who)

    @property
    def card_keys(self) -> CardKeys:
        """Card keys in force: see `engine.Opener.card_keys`."""
        return self.keys

    def be_ready_for(self, round_number: int, specs: Sequence[MessageSpec]) -> None:
        """Take up the round, see `engine.Opener.be_ready_for`; name officers that are away anew."""
        del specs  # officers count what they are asked
        self._round, self._named = round_number, set()

    def take_cards(self, run: str, cards: Mapping[str, bytes]) -> dict[str, str]:
        """Give the officers clients' signed cards; returns the reason for each that is refused.

        From then on those that can use all cards open sums. An officer that refuses a card is
        named, and answers no more in this session; where too few would be left, the client is out.
        """
        heard, refused = dict[int, Mapping[str, str]](), dict[str, str]()
        away = list[int]()
        for number, said in self.panel.take_cards(run, cards).items():
            if isinstance(said, SecureFLError):
                away.append(number)
                self.name(number, str(said))
            else:
                heard[number] = said
        for client in cards:
            by = {n: MessageRefused(said[client]) for n, said in heard.items() if client in said}
            try:
                self._combiner.note_refusals(run, client, by, away)
            except MessageRefused as error:
                refused[client] = str(error)
        return refused

    def open(self, request: SumRequest) -> OpenedSum:
        """Return the total, as precise as its noise leaves it.

        Raises:
            TooFewContributions, OpeningRefused: too few officers answer (`Combiner.open`).
            TotalRefused: the ciphertext is malformed, or does not count the clients that have
                signed.
        """
        signers = tuple(request.signers)

        def opened() -> OpenedSum:
            return self._opened(request, len(signers))

        return logged(self.log, request.expected, signers, opened, lambda total: total.n_clients)

    def _opened(self, request: SumRequest, n_clients: int) -> OpenedSum:
        about = request.expected.about
        heard = self.panel.key_sums(request, self._combiner.able(about.run))
        try:
            return self._combiner.open(request.total, about, n_clients, UNROUNDED_BITS, heard)
        except TotalRefused:
            raise
        except MessageRefused as error:
            raise TotalRefused(str(error)) from error

    def open_scores(self, request: ScoreRequest) -> list[float | None]:
        """Return scores of profiles in the request's order; None for what is none.

        Officers are not sent what would tell them a score. Nobody adds noise to it.

        Raises:
            OpeningRefused: too few officers answer, or they do not agree.
        """
        signers = tuple(signed.header.sender for signed in request.signed)
        about = replace(request.expected, name=request.name, n_values=len(signers))

        def opened() -> list[float | None]:
            return self._opened_scores(request, signers)

        return logged(self.log, about, signers, opened, lambda _scores: len(signers))

    def _opened_scores(self, request: ScoreRequest, signers: tuple[str, ...]) -> list[float | None]:
        asked = replace(request, scores=tuple(map(without_constant, request.scores)))
        heard = self.panel.score_parts(asked, self._combiner.able(request.expected.run))
        return [
            self._combiner.score(content, name, _of_one(heard, i, len(signers)))
            for i, (name, content) in enumerate(zip(signers, request.scores, strict=True))
        ]

    def name(self, number: int, why: str) -> None:
        """Report an officer, by its number from 0, unless it is among this round's incidents."""
        if number not in self._named:
            self._named.add(number)
            self.report(Incident(self._round, OFFICERS, "", f"{self._who(number)}: {why}"))

    def _who(self, number: int) -> str:
        return self.panel.who(number)  # through the panel, which alone reaches an officer


def _of_one(
    heard: Mapping[int, Sequence[ScorePart] | SecureFLError], index: int, n_scores: int
) -> dict[int, ScorePart | SecureFLError]:
    """Return what officers have said of one score; another number of parts is no answer."""
    found: dict[int, ScorePart | SecureFLError] = {}
    for number, said in heard.items():
        if isinstance(said, SecureFLError):
            found[number] = said
        elif len(said) == n_scores:
            found[number] = said[index]
        else:
            found[number] = PeerError(f"has answered for {len(said)} scores of {n_scores}")
    return found
