"""Totals under one-time keys: ask the officers for sums of keys, decrypt, count, divide.

The sum of keys opens the sum of just these clients' messages, each once, and nothing else: what a
server has added in another way decrypts to noise, which counts no clients.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from securefl.crypto.blind import ContentKey
from securefl.errors import MessageRefused, OpeningRefused, PeerError, SecureFLError
from securefl.exchange.answers import Combiner
from securefl.exchange.base import MessageId, OpenedSum
from securefl.exchange.blind import BlindTotal, listed
from securefl.exchange.officer import Officer
from securefl.exchange.one_time import UnderCards
from securefl.exchange.one_time_match import split_score
from securefl.exchange.opener import Answer, KeyAdder, ScorePart
from securefl.held import Held


@dataclass(frozen=True, slots=True)
class OneTimeOpener(UnderCards, Held):
    """Opens totals by the answers of officers, all of them in this process; an `Opener`."""

    combiner: Combiner
    officers: Sequence[Officer]

    def take_cards(self, run: str, sender: str, cards: bytes) -> None:
        """Give each officer its card; from then on those that can use all cards open sums.

        Raises:
            MessageRefused: too few officers would be left that can use theirs and those of all
                clients before (`Officer.take_cards`).
        """
        refused: dict[int, MessageRefused] = {}
        for number, officer in enumerate(self.officers):
            try:
                officer.take_cards(run, sender, cards)
            except MessageRefused as error:
                refused[number] = error
        self.combiner.note_refusals(run, sender, refused)

    def without_card(self, run: str, senders: Collection[str]) -> list[str]:
        """Return the clients of whom an officer has no card that has all others'."""
        able = [self.officers[number] for number in self.combiner.able(run)]
        without = {name for officer in able for name in officer.without_card(run, senders)}
        return [name for name in senders if name in without]

    def open(
        self, total: bytes, about: MessageId, nonces: Mapping[str, str], precision_bits: int
    ) -> OpenedSum:
        """See `Opener.open`; raises as `Combiner.open`."""
        heard: dict[int, Answer | SecureFLError] = {}
        for number in self.combiner.able(about.run):
            officer: KeyAdder = self.officers[number]
            try:
                heard[number] = officer.key_sums(about, nonces)
            except PeerError as error:
                heard[number] = error
        return self.combiner.open(total, about, len(nonces), precision_bits, heard)

    def sealed_for(self, content: bytes, about: MessageId, names: Sequence[str]) -> BlindTotal:
        """See `Opener.sealed_for`."""
        if len(self.officers) > 1:
            raise OpeningRefused("several officers seal no total for clients: none of them has one")
        key = ContentKey.sealing(content, about.digest(), listed(names))
        return BlindTotal.of(key, self.officers[0].wraps(about.run, names, key))

    def score(self, content: bytes, about: MessageId, sender: str, nonce: str) -> float | None:
        """See `Opener.score`; raises as `Combiner.score`."""
        heard: dict[int, ScorePart | SecureFLError] = {}
        _, _, polynomial = split_score(content)
        for number in self.combiner.able(about.run):
            officer: KeyAdder = self.officers[number]
            try:
                heard[number] = officer.score_parts(about, sender, nonce, polynomial)
            except PeerError as error:
                heard[number] = error
        return self.combiner.score(content, sender, heard)
