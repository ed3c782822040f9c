"""The authority's side of sums under one-time keys: add up the keys, decrypt, count, divide.

The sum of keys opens the sum of just these clients' messages, each once, and nothing else: what a
server has added in another way decrypts to noise, which counts no clients.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from securefl.crypto.cards import CardSecret
from securefl.crypto.one_time import KeySum, OneTimeKey
from securefl.crypto.one_time_params import ONE_TIME
from securefl.errors import MessageRefused
from securefl.exchange.base import MessageId, OpenedSum
from securefl.exchange.decode_total import TotalDecoder
from securefl.exchange.one_time import FORM


def card_about(run: str, sender: str) -> bytes:
    """Return what a card is bound to, beside its key: the session and its client."""
    return b"SecureFL card 1\0" + json.dumps([run, sender]).encode()


@dataclass(frozen=True, slots=True)
class OneTimeOpener:
    """Opens totals of at most `max_clients`."""

    secret: CardSecret = field(repr=False)
    max_clients: int
    _secrets: dict[tuple[str, str], bytes] = field(default_factory=dict, repr=False)
    """What the cards held, by session and client."""

    @property
    def form(self) -> str:
        """The only encoding that it opens."""
        return FORM

    @property
    def key_id(self) -> str:
        """The key that cards are for."""
        return self.secret.key_id

    @property
    def epoch(self) -> int:
        """The key's."""
        return self.secret.origin.epoch

    def take_card(self, run: str, sender: str, card: bytes) -> None:
        """Keep what a client's card holds.

        Raises:
            MessageRefused: it does not open, or the client had another in this session.
        """
        secret = self.secret.secret_in(card, card_about(run, sender))
        if self._secrets.setdefault((run, sender), secret) != secret:
            raise MessageRefused(f"{sender}: a second card, with another secret")

    def without_card(self, run: str, senders: Collection[str]) -> list[str]:
        """Return the clients of whom there is no card."""
        return [sender for sender in senders if (run, sender) not in self._secrets]

    def open(
        self, total: bytes, about: MessageId, nonces: Mapping[str, str], precision_bits: int
    ) -> OpenedSum:
        """Σ p_i x_i with the weight and the count that the ciphertexts themselves carry.

        Raises:
            MessageRefused: wrong length, or `TotalDecoder.decode` refuses it: it is not the sum of
                just these messages, or one of them is rubbish.
        """
        digest = about.digest()
        keys = KeySum.of(
            OneTimeKey.of([self._secrets[about.run, name]], digest, name, bytes.fromhex(nonce))
            for name, nonce in nonces.items()
        )
        slots = keys.open(total, digest, ONE_TIME.n_ciphertexts(about.n_values))
        decoder = TotalDecoder(ONE_TIME, self.max_clients, ONE_TIME.noise(len(nonces)))
        return decoder.decode(np.asarray(slots), about.n_values, precision_bits)
