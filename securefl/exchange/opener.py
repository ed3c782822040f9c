"""The capabilities to open totals, and to add up keys, without naming a secret key."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from securefl.crypto.one_time import KeySum
from securefl.exchange.base import Channel, MessageId, OpenedSum
from securefl.exchange.card_keys import CardKeys

Answer = Mapping[int, KeySum]
"""An officer's sum of keys, by group."""


class CardHolder(Channel, Protocol):
    """Whoever takes clients' cards."""

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


@runtime_checkable
class Opener(CardHolder, Protocol):
    """Reads totals of messages whose clients have given their cards."""

    def open(
        self, total: bytes, about: MessageId, nonces: Mapping[str, str], precision_bits: int
    ) -> OpenedSum:
        """The total, each value rounded to so many bits after its leading one.

        `nonces` are those in the signed headers of its messages, by client.

        Raises:
            OpeningRefused: it cannot be opened now.
            MessageRefused: `total` is not the sum of just these messages.
        """


class KeyAdder(CardHolder, Protocol):
    """Adds up keys of messages whose clients have given their cards."""

    def key_sums(self, about: MessageId, nonces: Mapping[str, str]) -> Answer:
        """Return the sum of keys of one message, for each of the officer's groups.

        Raises:
            PeerError: it has no card of a client, or has answered for another list.
        """
