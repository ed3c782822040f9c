"""Sums under one-time keys: clients weigh and encrypt, the server adds. Neither can open.

Each ciphertext holds up to N - 2 digits of weighted values, then the weight, then a one. So the
total carries Σ weight_i (a client that drops out costs no round) and the number of clients in it
(no label can claim more of them).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securefl.crypto.one_time import CipherSum, OneTimeKey
from securefl.crypto.params import BOOKKEEPING_SLOTS, SUMS
from securefl.errors import BlindTotalRefused
from securefl.exchange import blind
from securefl.exchange.blind import BlindTotal
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.digits import Digits
from securefl.exchange.layout import gains_of
from securefl.exchange.sums import ONE_TIME, MessageId, Sealed, Sender, Values, fresh_nonce
from securefl.types import MessageSpec


@dataclass(frozen=True, slots=True)
class UnderCards:
    """A `Channel` of messages whose keys follow from what cards for these keys hold."""

    keys: CardKeys

    @property
    def form(self) -> str:
        """See `Channel.form`."""
        return ONE_TIME

    @property
    def key_id(self) -> str:
        """See `Keyed.key_id`."""
        return self.keys.key_id

    @property
    def epoch(self) -> int:
        """See `Keyed.epoch`."""
        return self.keys.epoch


@dataclass(frozen=True, slots=True)
class OneTimeSealer(UnderCards):
    """A client's side of the encrypted sum; `Sender` has the secret that its keys follow from."""

    def max_value(self, n_values: int) -> float:
        """Weights sum to at most one, so no total exceeds the largest single value."""
        return Digits.of(SUMS, n_values).max_value

    def gains(self, spec: MessageSpec) -> Values | float:
        """The plan's."""
        return gains_of(spec)

    def opened(self, total: BlindTotal, about: MessageId, sender: Sender) -> tuple[bytes, int]:
        """Return what a total holds that is sealed for this client, and the length of its list.

        Raises:
            BlindTotalRefused: see `blind.opened`; or several officers, who seal no totals.
        """
        secrets = self.keys.secrets(sender)
        if len(secrets) > 1:
            raise BlindTotalRefused("is of several officers, who seal none")
        return blind.opened(total, about, sender.name, secrets[0])

    def seal(
        self, values: NDArray[np.floating], weight: float, about: MessageId, sender: Sender
    ) -> Sealed:
        """Weigh, pack and encrypt; always whole ciphertexts, so the length says nothing."""
        size = SUMS.values_per_ciphertext
        slots = np.zeros((SUMS.n_ciphertexts(len(values)), size + BOOKKEEPING_SLOTS))
        padded = np.zeros(len(slots) * size)
        weighted = np.multiply(values, weight, dtype=np.float64)
        digits = Digits.of(SUMS, len(values)).split(weighted)
        padded[: len(digits)] = digits
        slots[:, :size] = padded.reshape(-1, size)
        slots[:, size:] = weight, 1.0
        nonce, digest = fresh_nonce(slots.tobytes()), about.digest()
        key = OneTimeKey.of(self.keys.secrets(sender), digest, sender.name, nonce)
        return Sealed(key.seal(slots, digest), nonce.hex())


@dataclass(frozen=True, slots=True)
class OneTimeAdder(UnderCards):
    """The server's side: additions modulo q, and no key."""

    def n_bytes(self, n_values: int) -> int:
        """Exact payload length."""
        return SUMS.message_bytes(n_values)

    def start(self, n_values: int) -> OneTimeSum:
        """An empty sum."""
        return OneTimeSum(CipherSum(SUMS.n_ciphertexts(n_values)))


@dataclass(frozen=True, slots=True)
class OneTimeSum:
    """The running sum of messages."""

    added: CipherSum

    def plus(self, payload: bytes | memoryview, most: float = 1.0) -> OneTimeSum:
        """The sum with one contribution more, all of its ciphertexts."""
        del most  # a sealed weight shows in the total alone
        return OneTimeSum(self.added.plus(payload))

    def total(self) -> bytes:
        """The ciphertexts of the sum."""
        return self.added.total()
