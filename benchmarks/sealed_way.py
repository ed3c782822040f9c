"""Ways of a sum over clients through SecureFL's exchange: in the clear, and under one-time keys."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from measure import SumServer

from securefl.crypto.derived import SEED_BYTES
from securefl.crypto.one_time import ring
from securefl.exchange.card_keys import Quorum
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.plain import PlainChannel
from securefl.exchange.policy import Policy
from securefl.exchange.sums import MessageId, Sender, Values

RUN, NAME = "0" * 64, "update"


@dataclass(frozen=True, slots=True)
class PlainWay:
    """A sum in the clear."""

    channel: PlainChannel
    n_values: int

    def seal(self, client: int, values: Values, weight: float) -> list[bytes]:
        """Return one payload."""
        about = MessageId(RUN, 1, NAME, self.n_values)
        sender = Sender(f"client-{client + 1}", bytes(SEED_BYTES))
        return [self.channel.seal(values, weight, about, sender).payload]

    def start(self) -> SumServer:
        """Return an empty sum."""
        return SumServer(self.channel.start(self.n_values))

    def open(self, total: bytes) -> Values:
        """Return the opened values."""
        return self.channel.open(total, self.n_values).values


class SealedWay:
    """A sum under one-time keys, opened as the default policy allows.

    Nothing that clients, server and authority work out for themselves is kept from one to the
    next: each machine derives the common polynomials of a message once.
    """

    def __init__(self, n_values: int, n_clients: int, quorum: Quorum | None = None) -> None:
        keys = KeySet.ephemeral(quorum)
        self.keys, self.opener = keys.public, keys.opener()
        self.about = MessageId(RUN, 0, NAME, n_values)
        self.senders = [Sender(f"client-{k + 1}", os.urandom(SEED_BYTES)) for k in range(n_clients)]
        self.nonces: dict[str, str] = {}
        self.cards = [self.keys.cards(RUN, sender) for sender in self.senders]
        for sender, cards in zip(self.senders, self.cards, strict=True):
            self.opener.take_cards(RUN, sender.name, cards)
        self._bits = Policy().rule_for(NAME).precision_bits

    def seal(self, client: int, values: Values, weight: float) -> list[bytes]:
        """Return one payload."""
        ring().common.cache_clear()
        sender = self.senders[client]
        sealed = OneTimeSealer(self.keys).seal(values, weight, self.about, sender)
        self.nonces[sender.name] = sealed.nonce
        return [sealed.payload]

    def start(self) -> SumServer:
        """Return an empty sum."""
        return SumServer(OneTimeAdder(self.keys).start(self.about.n_values))

    def open(self, total: bytes) -> Values:
        """Return the opened values; the next sum is of another round, as one is answered once."""
        ring().common.cache_clear()
        about, self.about = self.about, replace(self.about, round=self.about.round + 1)
        return self.opener.open(total, about, self.nonces, self._bits).values
