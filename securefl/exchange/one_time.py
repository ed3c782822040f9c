"""Sums under one-time keys: clients weigh and encrypt, the server adds. Neither can open.

Each ciphertext holds up to N - 2 digits of weighted values, then the weight, then a one. So the
total carries Σ weight_i (a client that drops out costs no round) and the number of clients in it
(no label can claim more of them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from securefl.crypto.one_time import CipherSum, OneTimeKey
from securefl.crypto.params import BOOKKEEPING_SLOTS, SUMS
from securefl.errors import BlindTotalRefused, ValueRefused
from securefl.exchange import blind
from securefl.exchange.blind import BlindTotal
from securefl.exchange.digits import Digits
from securefl.exchange.layout import gains_of
from securefl.exchange.sums import ONE_TIME, MessageId, Sealed, Sender, Values, fresh_nonce
from securefl.types import MessageSpec

if TYPE_CHECKING:
    from securefl.exchange.card_keys import CardKeys


@dataclass(frozen=True, slots=True)
class UnderCards:
    """A `Channel` of messages whose keys follow from the secrets in cards for these keys."""

    keys: CardKeys

    @property
    def form(self) -> str:
        """Form of the payload: see `Channel.form`."""
        return ONE_TIME

    @property
    def key_id(self) -> str:
        """Id of the key: see `Keyed.key_id`."""
        return self.keys.key_id

    @property
    def epoch(self) -> int:
        """Epoch of the key: see `Keyed.epoch`."""
        return self.keys.epoch


@dataclass(frozen=True, slots=True)
class OneTimeSealer(UnderCards):
    """Client's side of the encrypted sum; `Sender` has the secret that its keys follow from."""

    def max_value(self, n_values: int) -> float:
        """Return a message's largest value: weights sum to one at most, so no total is larger."""
        return Digits.of(SUMS, n_values).max_value

    def gains(self, spec: MessageSpec) -> Values | float:
        """Return the plan's gains."""
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
        """Weigh, pack and encrypt; always whole ciphertexts, so the length says nothing.

        Raises:
            ValueRefused: values that are in range are too large together.
        """
        size, n = SUMS.values_per_ciphertext, SUMS.n_ciphertexts(len(values))
        weighted = np.multiply(values, weight, dtype=np.float64)
        digits = Digits.of(SUMS, len(values)).split(weighted)
        slots = np.zeros((n, size + BOOKKEEPING_SLOTS))
        whole, rest = divmod(len(digits), size)
        slots[:whole, :size] = digits[: whole * size].reshape(whole, size)
        slots[whole:, :rest] = digits[whole * size :]
        slots[:, size:] = weight, 1.0
        nonce = fresh_nonce(digits.tobytes() + float(weight).hex().encode())
        digest = about.digest()
        key = OneTimeKey.of(self.keys.secrets(sender), digest, sender.name, nonce)
        try:
            return Sealed(key.seal(slots, digest), nonce.hex())
        except ValueError as error:  # SEAL encodes no coefficient of more than one range
            raise ValueRefused(
                f"{about.name}: its values, times the client's weight {weight:g}, are together too "
                "large to be sealed"
            ) from error


@dataclass(frozen=True, slots=True)
class OneTimeAdder(UnderCards):
    """Server's side of the encrypted sum: additions modulo q, and no key."""

    def n_bytes(self, n_values: int) -> int:
        """Return the exact payload length."""
        return SUMS.message_bytes(n_values)

    def start(self, n_values: int) -> OneTimeSum:
        """Return an empty sum."""
        return OneTimeSum(CipherSum(SUMS.n_ciphertexts(n_values)))


@dataclass(frozen=True, slots=True)
class OneTimeSum:
    """Running sum of messages."""

    added: CipherSum

    def plus(self, payload: bytes | memoryview, most: float = 1.0) -> OneTimeSum:
        """Return the sum with one contribution more, all of its ciphertexts."""
        del most  # a sealed weight shows in the total alone
        return OneTimeSum(self.added.plus(payload))

    def total(self) -> bytes:
        """Return the ciphertexts of the sum."""
        return self.added.total()
