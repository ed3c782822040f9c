"""Capabilities to open totals and scores, and to add up keys, without naming a secret key."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from securefl.crypto.one_time import KeySum
from securefl.exchange.blind import BlindTotal
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.sums import Keyed, MessageId, OpenedSum

Answer = Mapping[int, KeySum]
"""An officer's sum of keys, by group."""
ScorePart = Mapping[int, int]
"""An officer's part of a score, by group."""


class CardHolder(Keyed, Protocol):
    """Party that takes clients' cards."""

    @property
    def keys(self) -> CardKeys:
        """Public keys that cards are for."""

    def take_cards(self, run: str, sender: str, cards: bytes) -> None:
        """Take a client's cards of a session.

        Raises:
            MessageRefused: they do not open, or the client had others in this session.
        """

    def without_card(self, run: str, senders: Collection[str]) -> list[str]:
        """Return the clients of whom there is no card."""


@runtime_checkable
class TotalOpener(CardHolder, Protocol):
    """Reader of totals of messages whose clients have given their cards."""

    def open(
        self, total: bytes, about: MessageId, nonces: Mapping[str, str], precision_bits: int
    ) -> OpenedSum:
        """Open a total, each value rounded to so many bits after its leading one.

        `nonces` are those in the signed headers of its messages, by client.

        Raises:
            OpeningRefused: it cannot be opened now.
            MessageRefused: `total` is not the sum of just these messages.
        """

    def score(self, content: bytes, about: MessageId, sender: str, nonce: str) -> float | None:
        """Open the score that a matcher has made of a client's profile; None where it is none.

        `nonce` is the one in the signed header of the profile.

        Raises:
            OpeningRefused: it cannot be opened now.
            MessageRefused: it is not of a score's form.
        """

    def sealed_for(self, content: bytes, about: MessageId, names: Sequence[str]) -> BlindTotal:
        """Seal what was opened for clients that have given their cards.

        Raises:
            OpeningRefused: there are several officers.
            PeerError: the card of a client is not here.
        """


class KeyAdder(CardHolder, Protocol):
    """Party that adds up keys of messages whose clients have given their cards."""

    def key_sums(self, about: MessageId, nonces: Mapping[str, str]) -> Answer:
        """Return the sum of keys of one message, for each of the officer's groups.

        Raises:
            PeerError: it has no card of a client, or has answered for another list.
        """

    def score_parts(
        self, about: MessageId, sender: str, nonce: str, polynomial: bytes
    ) -> ScorePart:
        """Return what the key of a client's profile makes of a polynomial, by group.

        Raises:
            PeerError: it has no card of the client, or has answered for another polynomial.
            MessageRefused: it is no polynomial.
        """
