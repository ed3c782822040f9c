"""Totals by the answers of k of n officers: those that agree, and the total that they open.

Whoever has the answers reads the total. It holds no key that opens a single message.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations
from math import ldexp
from typing import TypeVar

from securefl.crypto.one_time import KeySum, score_of
from securefl.crypto.params import SUMS
from securefl.errors import (
    MessageRefused,
    OpeningRefused,
    PeerError,
    SecureFLError,
    TooFewContributions,
)
from securefl.exchange.decode_total import TotalDecoder
from securefl.exchange.one_time import UnderCards
from securefl.exchange.one_time_match import split_score
from securefl.exchange.opener import Answer, ScorePart
from securefl.exchange.sums import MessageId, OpenedSum

Part = TypeVar("Part")
"""A group's part of an answer."""


def numbered(number: int) -> str:
    """Return the word for an officer of this number from 0, which people count from 1."""
    return f"officer {number + 1}"


@dataclass(frozen=True, slots=True)
class Combiner(UnderCards):
    """Opener of totals by the answers of officers, which counts those that cannot answer."""

    say: Callable[[int, str], None] = lambda _number, _why: None
    """Function told of each officer that is away, refuses a card, or answers wrongly, and why."""
    who: Callable[[int], str] = numbered
    """Function that gives the word for an officer, by its number from 0."""
    _lacking: dict[str, set[int]] = field(default_factory=dict)
    """Officers that have not all cards of a session's clients; the others have."""

    def note_refusals(
        self,
        run: str,
        sender: str,
        refused: Mapping[int, MessageRefused],
        away: Collection[int] = (),
    ) -> None:
        """Note the officers that refuse a client's card; they answer no more in that session.

        Officers that are `away` are not among those that are left, and may come back.

        Raises:
            MessageRefused: too few officers would be left that have all cards. Then they all stay,
                and the client is out.
        """
        lacking = self._lacking.get(run, set()) | refused.keys()
        n_left = self.keys.quorum.officers - len(lacking | {*away})
        if refused and n_left < self.keys.quorum.needed:
            raise next(iter(refused.values()))
        self._lacking[run] = lacking
        for number, reason in refused.items():
            self.say(number, f"refuses the card of {sender}: {reason}")

    def able(self, run: str) -> list[int]:
        """Return the numbers of the officers that have refused no card of a session."""
        lacking = self._lacking.get(run, set())
        return [n for n in range(self.keys.quorum.officers) if n not in lacking]

    def open(
        self,
        total: bytes,
        about: MessageId,
        n_clients: int,
        precision_bits: int,
        heard: Mapping[int, Answer | SecureFLError],
    ) -> OpenedSum:
        """Open Σ p_i x_i with the weight and the count that the ciphertexts themselves carry.

        `heard` has what each officer that was asked has said, by number: an answer, or the reason
        why there is none.

        Raises:
            TooFewContributions: so say more officers than may be missing, and none answers.
            OpeningRefused: too few officers have answered.
            MessageRefused: wrong length, or `TotalDecoder.decode` refuses it: it is not the sum of
                just these messages, or one of them is rubbish, or too many officers lie.
        """
        decoder = TotalDecoder(SUMS, n_clients)
        n_ciphertexts, digest = SUMS.n_ciphertexts(about.n_values), about.digest()
        refused: MessageRefused | None = None
        for parts, liars in self._agreed(self._answers(heard)):
            keys = reduce(KeySum.plus, parts)
            try:
                slots = keys.open(total, digest, n_ciphertexts)
                opened = decoder.decode(slots, about.n_values, precision_bits)
            except MessageRefused as error:
                refused = refused or error
                continue
            for number in liars:
                self.say(number, f"gave a wrong sum of keys for {about.name!r}")
            return opened
        raise refused or MessageRefused("the officers' sums of keys do not agree")

    def score(
        self, content: bytes, sender: str, heard: Mapping[int, ScorePart | SecureFLError]
    ) -> float | None:
        """Open the score that a matcher has made of a client's profile; None where it is none.

        `heard` is as in `open`. Nothing in a score tells a liar from those whom it contradicts: it
        opens where all sets of officers that may be left out and leave agreement leave the same
        one. So with no more liars than may be left out it is right, and who is named has lied.

        Raises:
            OpeningRefused: too few officers have answered, or they do not agree, or they do in two
                ways. Nobody is named.
            MessageRefused: wrong length.
        """
        exponent, constant, _ = split_score(content)
        answers = self._answers(heard)
        agreed = list(self._agreed(answers))
        if not agreed or any(parts != agreed[0][0] for parts, _ in agreed):
            raise OpeningRefused(
                f"the officers' parts of the score of {sender} do not agree, and nothing tells who "
                f"of {', '.join(map(self.who, _contradicting(answers)))} lies: leave out one that "
                "you do not trust, and go on with the others"
            )
        parts, liars = agreed[0]
        for number in liars:
            self.say(number, f"gave a wrong part of the score of {sender}")
        score = score_of([constant, *parts])
        return None if score is None else ldexp(score, exponent)

    def _answers(
        self, heard: Mapping[int, Mapping[int, Part] | SecureFLError]
    ) -> dict[int, Mapping[int, Part]]:
        """Return the answer of each officer that has given one for its own groups."""
        answers: dict[int, Mapping[int, Part]] = {}
        without = dict[int, SecureFLError]()
        for number, said in heard.items():
            if isinstance(said, SecureFLError):
                without[number] = said
            elif {*said} != {*self.keys.quorum.groups_of[number]}:
                without[number] = PeerError("has answered for other groups than its own")
            else:
                answers[number] = said
        needed, n = self.keys.quorum.needed, self.keys.quorum.officers
        too_few = [error for error in without.values() if isinstance(error, TooFewContributions)]
        if not answers and len(too_few) > n - needed:  # no officer is named for it
            raise too_few[0]
        for number, error in without.items():
            refused = isinstance(error, OpeningRefused)  # and may be right to
            self.say(number, f"refuses: {error}" if refused else str(error))
        if len(answers) < needed:
            raise OpeningRefused(
                f"{len(answers)} of {n} officers answer, and {needed} are needed: "
                + "; ".join(f"{self.who(number)}: {error}" for number, error in without.items())
            )
        return answers

    def _agreed(
        self, answers: Mapping[int, Mapping[int, Part]]
    ) -> Iterator[tuple[list[Part], tuple[int, ...]]]:
        """Yield groups' parts that officers agree on, and those left out as liars: fewest first."""
        groups, needed = self.keys.quorum.groups, self.keys.quorum.needed
        for n_liars in range(len(answers) - needed + 1):
            for liars in combinations(answers, n_liars):
                heard = [answer for number, answer in answers.items() if number not in liars]
                parts = [[a[g] for a in heard if g in a] for g in range(len(groups))]
                if all(part == of[0] for of in parts for part in of):
                    yield [of[0] for of in parts], liars


def _contradicting(answers: Mapping[int, ScorePart]) -> list[int]:
    """Return the officers that have given different parts of some group, both sides of it."""
    parts = defaultdict[int, set[int]](set)
    for answer in answers.values():
        for group, part in answer.items():
            parts[group].add(part)
    return sorted(n for n, of in answers.items() if any(len(parts[group]) > 1 for group in of))
