"""Totals and scores under one-time keys: ask the officers for sums of keys, decrypt, divide.

The sum of keys opens the sum of just these clients' messages, each once, and nothing else: what a
server has added in another way decrypts to noise, which counts no clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations
from math import ldexp
from typing import TypeVar

from securefl.crypto.one_time import KeySum, score_of
from securefl.crypto.params import SUMS
from securefl.errors import MessageRefused, OpeningRefused, PeerError
from securefl.exchange.base import MessageId, OpenedSum
from securefl.exchange.decode_total import TotalDecoder
from securefl.exchange.officer import Answering, Officer
from securefl.exchange.one_time import UnderCards
from securefl.exchange.one_time_match import SCORE_BYTES, split_score

Part = TypeVar("Part")
"""A group's part of an answer."""


@dataclass(frozen=True, slots=True)
class OneTimeOpener(UnderCards):
    """Opens totals by the answers of officers."""

    officers: Sequence[Officer]
    say: Callable[[str], None] = lambda _text: None
    """Told of each officer that is away, refuses a card, or has given a wrong answer."""
    _lacking: dict[str, set[int]] = field(default_factory=dict)
    """Officers that have not all cards of a session's clients; the others have."""

    def take_cards(self, run: str, sender: str, cards: bytes) -> None:
        """Give each officer its card; from then on those that can use all cards open sums.

        Raises:
            MessageRefused: another length, or too few officers would be left that can use theirs
                and those of all clients before (`Officer.take_card`).
        """
        if len(cards) != self.keys.card_bytes:
            raise MessageRefused(
                f"cards of {len(cards)} bytes, expected exactly {self.keys.card_bytes}"
            )
        refused: dict[int, MessageRefused] = {}
        for number, officer in enumerate(self.officers):
            try:
                officer.take_card(run, sender, *self.keys.card_of(cards, number))
            except MessageRefused as error:
                refused[number] = error
        lacking = self._lacking.get(run, set()) | refused.keys()
        if refused and len(self.officers) - len(lacking) < self.keys.quorum.needed:
            raise next(iter(refused.values()))
        self._lacking[run] = lacking
        for number, reason in refused.items():
            self.say(f"officer {number + 1}: refuses the card of {sender}: {reason}")

    def without_card(self, run: str, senders: Collection[str]) -> list[str]:
        """Return the clients of whom an officer has no card that has all others'."""
        without = {name for o in self._able(run).values() for name in o.without_card(run, senders)}
        return [name for name in senders if name in without]

    def _able(self, run: str) -> dict[int, Officer]:
        """Return the officers that have all cards of a session, by number."""
        lacking = self._lacking.get(run, set())
        return {n: officer for n, officer in enumerate(self.officers) if n not in lacking}

    def open(
        self, total: bytes, about: MessageId, nonces: Mapping[str, str], precision_bits: int
    ) -> OpenedSum:
        """Σ p_i x_i with the weight and the count that the ciphertexts themselves carry.

        Raises:
            OpeningRefused: too many officers are away.
            MessageRefused: wrong length, or `TotalDecoder.decode` refuses it: it is not the sum of
                just these messages, or one of them is rubbish, or too many officers lie.
        """
        decoder = TotalDecoder(SUMS, len(nonces))
        n_ciphertexts, digest = SUMS.n_ciphertexts(about.n_values), about.digest()
        refused: MessageRefused | None = None
        answers = self._answers(about.run, lambda officer: officer.key_sums(about, nonces))
        for parts, liars in self._agreed(answers):
            keys = reduce(KeySum.plus, parts)
            try:
                slots = keys.open(total, digest, n_ciphertexts)
                opened = decoder.decode(slots, about.n_values, precision_bits)
            except MessageRefused as error:
                refused = refused or error
                continue
            for number in liars:
                self.say(f"officer {number + 1}: gave a wrong sum of keys for {about.name!r}")
            return opened
        raise refused or MessageRefused("the officers' sums of keys do not agree")

    def score(self, content: bytes, about: MessageId, sender: str, nonce: str) -> float | None:
        """The score that a matcher has made of a client's profile; None where it is none.

        Raises:
            OpeningRefused: too many officers are away, or do not agree.
            MessageRefused: wrong length, or a word that is not below the prime.
        """
        if len(content) != SCORE_BYTES:
            raise MessageRefused(f"score of {len(content)} bytes, expected {SCORE_BYTES}")
        exponent, constant, polynomial = split_score(content)
        asked = about, sender, nonce, polynomial
        answers = self._answers(about.run, lambda officer: officer.score_parts(*asked))
        agreed = list(self._agreed(answers))
        likely = [(p, liars) for p, liars in agreed if len(liars) == len(agreed[0][1])]
        if not likely or any(parts != likely[0][0] for parts, _ in likely):
            raise OpeningRefused(f"the officers' parts of the score of {sender} do not agree")
        parts, liars = likely[0]  # nothing in a score tells a liar from who it contradicts
        for number in liars:
            self.say(f"officer {number + 1}: gave a wrong part of the score of {sender}")
        score = score_of([constant, *parts])
        return None if score is None else ldexp(score, exponent)

    def _answers(
        self, run: str, ask: Callable[[Answering], Mapping[int, Part]]
    ) -> dict[int, Mapping[int, Part]]:
        """Return the answer of each officer that is there and has all cards, by group."""
        answers: dict[int, Mapping[int, Part]] = {}
        away: list[str] = []
        able: Mapping[int, Answering] = self._able(run)
        for number, officer in able.items():
            try:
                answer = ask(officer)
                if {*answer} != {*self.keys.quorum.groups_of[number]}:
                    raise PeerError("has answered for other groups than its own")  # noqa: TRY301
                answers[number] = answer
            except PeerError as error:
                away.append(f"officer {number + 1}: {error}")
        for text in away:
            self.say(text)
        if len(answers) < self.keys.quorum.needed:
            raise OpeningRefused(
                f"{len(answers)} of {len(self.officers)} officers answer, and "
                f"{self.keys.quorum.needed} are needed: {'; '.join(away)}"
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
