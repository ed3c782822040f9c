"""Sums on ciphertext: clients weigh and encrypt, the server adds. Neither can open.

Each ciphertext holds up to N/2 - 2 digits of weighted values, then the weight, then a one. So the
total carries Σ weight_i (a client that drops out costs no round) and the
number of clients in it (no label can claim more of them).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securefl.crypto.artefact import CODEC
from securefl.crypto.params import BOOKKEEPING_SLOTS
from securefl.crypto.public import AddingContext, CiphertextSum, PublicKey
from securefl.errors import MessageRefused
from securefl.exchange.base import Values
from securefl.exchange.digits import Digits
from securefl.exchange.layout import gains_of
from securefl.types import MessageSpec

FORM = f"ckks/digits/{CODEC}"


@dataclass(frozen=True, slots=True)
class CkksSealer:
    """A client's side of the encrypted sum."""

    public_key: PublicKey

    @property
    def form(self) -> str:
        """Names how values lie in slots, and TenSEAL's version, whose wire format changes."""
        return FORM

    @property
    def key_id(self) -> str:
        """The key that opens the total."""
        return self.public_key.key_id

    @property
    def epoch(self) -> int:
        """The key's."""
        return self.public_key.epoch

    def max_value(self, n_values: int) -> float:
        """Weights sum to at most one, so no total exceeds the largest single value."""
        return Digits.of(self.public_key.parameters, n_values).max_value

    def gains(self, spec: MessageSpec) -> Values | float:
        """The plan's."""
        return gains_of(spec)

    def seal(self, values: NDArray[np.floating], weight: float) -> bytes:
        """Weigh, pack and encrypt; always whole ciphertexts, so the length says nothing."""
        parameters = self.public_key.parameters
        size = parameters.values_per_ciphertext
        slots = np.zeros((parameters.n_ciphertexts(len(values)), size + BOOKKEEPING_SLOTS))
        padded = np.zeros(len(slots) * size)
        weighted = np.multiply(values, weight, dtype=np.float64)
        digits = Digits.of(parameters, len(values)).split(weighted)
        padded[: len(digits)] = digits
        slots[:, :size] = padded.reshape(-1, size)
        slots[:, size:] = weight, 1.0
        return b"".join(self.public_key.encrypt(row) for row in slots)


@dataclass(frozen=True, slots=True)
class CkksAdder:
    """The server's side: additions, no multiplication, no evaluation key."""

    context: AddingContext

    @property
    def form(self) -> str:
        """The only encoding that it adds."""
        return FORM

    @property
    def key_id(self) -> str:
        """The only key id that it accepts."""
        return self.context.key_id

    @property
    def epoch(self) -> int:
        """The key's."""
        return self.context.epoch

    def n_bytes(self, n_values: int) -> int:
        """Exact payload length."""
        return self.context.parameters.message_bytes(n_values)

    def start(self, n_values: int) -> CkksSum:
        """An empty sum."""
        count = self.context.parameters.n_ciphertexts(n_values)
        return CkksSum([self.context.sum() for _ in range(count)])


@dataclass(frozen=True, slots=True)
class CkksSum:
    """One running sum per ciphertext of the message."""

    parts: list[CiphertextSum]

    def plus(self, payload: bytes | memoryview, most: float = 1.0) -> CkksSum:
        """The sum with one contribution more, all of its ciphertexts."""
        del most  # a sealed weight shows in the total alone
        chunks = self.parts[0].frame.chunks(payload, len(self.parts))
        return CkksSum([part.plus(chunk) for part, chunk in zip(self.parts, chunks, strict=True)])

    def total(self) -> bytes:
        """The ciphertexts of the sum."""
        try:
            return b"".join(part.coefficients() for part in self.parts)
        except RuntimeError as error:
            raise MessageRefused(f"the sum is no ciphertext: {error}") from error
