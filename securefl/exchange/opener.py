"""The capability to open totals, without naming a secret key."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from securefl.exchange.base import Channel, MessageId, OpenedSum
from securefl.exchange.blind import BlindTotal
from securefl.exchange.card_keys import CardKeys


class Opener(Channel, Protocol):
    """Reads totals of messages whose clients have given their cards."""

    @property
    def keys(self) -> CardKeys:
        """The public keys that cards are for."""

    def take_cards(self, run: str, sender: str, cards: bytes) -> None:
        """Take a client's cards of a session.

        Raises:
            MessageRefused: they do not open, or the client had others in this session.
        """

    def without_card(self, run: str, senders: Collection[str]) -> list[str]:
        """Return the clients of whom there is no card."""

    def open(
        self, total: bytes, about: MessageId, nonces: Mapping[str, str], precision_bits: int
    ) -> OpenedSum:
        """The total, each value rounded to so many bits after its leading one.

        `nonces` are those in the signed headers of its messages, by client.

        Raises:
            OpeningRefused: it cannot be opened now.
            MessageRefused: `total` is not the sum of just these messages.
        """

    def sealed_for(self, content: bytes, about: MessageId, names: Sequence[str]) -> BlindTotal:
        """Seal what was opened for clients that have given their cards.

        Raises:
            OpeningRefused: there are several officers.
            PeerError: the card of a client is not here.
        """
