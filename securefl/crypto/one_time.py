"""Sums under one-time keys: each message has a key of its own, and a sum of keys opens a sum.

    a_j  = SHAKE-256(about; j)                   public; nobody chooses or sends it
    s_i  = CBD_42(SHAKE-256(HKDF(k_i; about, sender, nonce)))    client i's key of this one message
    c_ij = -a_j s_i + e_ij + m_ij                all that travels
    C_j  = Σ_{i in L} c_ij                       the server adds modulo q
    S    = Σ_{i in L} s_i                        the authority adds, or several officers do in parts
    C_j + a_j S = Σ m_ij + Σ e_ij                (C_j, a_j) is a CKKS ciphertext under S

S opens the sum over L and nothing else, so whoever reads the total may know it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from securefl.crypto.derived import Coefficients, Words, key_polynomial, key_seed
from securefl.crypto.held import Held
from securefl.crypto.params import KEY_BOUND, SUMS, SumParameters
from securefl.crypto.ring import packed, unpacked
from securefl.crypto.seal_ring import SealRing
from securefl.errors import MessageRefused

Rows = NDArray[np.float64]
"""Shape (ciphertexts, N)."""

_ADDITIONS = 2**11
"""Sums of so many words below 2^53 do not overflow 64 bits."""
_COEFFICIENT = np.dtype("<i4")
KEY_SUM_BYTES = SUMS.poly_degree * _COEFFICIENT.itemsize
"""Length of a sum of keys as it travels."""


@cache
def ring(parameters: SumParameters = SUMS) -> SealRing:
    """Return the ring of these parameters, made once a process."""
    return SealRing(parameters)


@final
class OneTimeKey(Held):
    """Key s_i of one message. It can be added to others of the same message, and says nothing."""

    def __init__(self, coefficients: Coefficients, parameters: SumParameters) -> None:
        """Use `of`."""
        self._coefficients = coefficients
        self._parameters = parameters

    @classmethod
    def of(
        cls,
        secrets: Iterable[bytes],
        about: bytes,
        sender: str,
        nonce: bytes,
        parameters: SumParameters = SUMS,
    ) -> OneTimeKey:
        """Return the key of a message: one polynomial for each of the client's secrets, added up.

        Args:
            secrets: k_i, 32 bytes each; one for the authority, or one for each group of officers.
            about: run, round, name and size of the message.
            sender: the client.
            nonce: fresh bytes, which the signed header names.
            parameters: of the ring.
        """
        coefficients = np.zeros(parameters.poly_degree, np.int64)
        for secret in secrets:
            seed = key_seed(secret, about, sender, nonce)
            coefficients += key_polynomial(seed, parameters.poly_degree)
        return cls(coefficients, parameters)

    def seal(self, rows: Rows, about: bytes) -> bytes:
        """Return the message, `ciphertext_bytes` a row; each value within ±`max_value`."""
        of = ring(self._parameters)
        key = of.key(self._coefficients)
        words = [of.encrypted(key, of.common(about, j), row) for j, row in enumerate(rows)]
        return packed(np.stack(words), [of.modulus])

    def __repr__(self) -> str:
        return "OneTimeKey()"

    @property
    def coefficients(self) -> Coefficients:
        """The key itself, IN CLEAR, for `KeySum.of` alone."""
        return self._coefficients


class CipherSum:
    """Messages added as they arrive: memory does not grow with their number."""

    def __init__(
        self,
        n_ciphertexts: int,
        parameters: SumParameters = SUMS,
        words: Words | None = None,
        n_added: int = 0,
    ) -> None:
        self._parameters = parameters
        self._modulus = ring(parameters).modulus
        self._shape = n_ciphertexts, 1, parameters.poly_degree
        self._words = np.zeros(self._shape, np.uint64) if words is None else words
        self._n_added = n_added

    def plus(self, message: bytes | memoryview) -> CipherSum:
        """Return the sum with one message more.

        Raises:
            MessageRefused: another length, or a word that is not below the prime.
        """
        words: Words = unpacked(message, self._shape, [self._modulus], "ciphertext")
        words += self._words
        if (self._n_added + 1) % _ADDITIONS == 0:
            words %= np.uint64(self._modulus)
        return CipherSum(self._shape[0], self._parameters, words, self._n_added + 1)

    def total(self) -> bytes:
        """Return the sum as it travels."""
        return packed(self._words % np.uint64(self._modulus), [self._modulus])


@final
class KeySum:
    """Sum of the keys of one message over clients, or over a group of officers' part of it."""

    def __init__(self, coefficients: Coefficients, parameters: SumParameters) -> None:
        self.coefficients = coefficients
        self._parameters = parameters

    @classmethod
    def of(cls, keys: Iterable[OneTimeKey], parameters: SumParameters = SUMS) -> KeySum:
        """Add the keys of one message, each once."""
        total = np.zeros(parameters.poly_degree, np.int64)
        for key in keys:
            total += key.coefficients
        return cls(total, parameters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeySum) and np.array_equal(self.coefficients, other.coefficients)

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def plus(self, other: KeySum) -> KeySum:
        """Return the sum with another group's part."""
        return KeySum(self.coefficients + other.coefficients, self._parameters)

    def to_bytes(self) -> bytes:
        """Return the coefficients as they travel, four bytes each."""
        return self.coefficients.astype(_COEFFICIENT).tobytes()

    @classmethod
    def from_bytes(cls, content: bytes, n_keys: int, parameters: SumParameters = SUMS) -> KeySum:
        """Parse what `to_bytes` wrote.

        Raises:
            MessageRefused: another length, or more than `n_keys` keys can add up to.
        """
        n_bytes = parameters.poly_degree * _COEFFICIENT.itemsize
        if len(content) != n_bytes:
            raise MessageRefused(f"sum of keys of {len(content)} bytes, expected {n_bytes}")
        coefficients = np.frombuffer(content, _COEFFICIENT).astype(np.int64)
        if np.abs(coefficients).max() > n_keys * KEY_BOUND:
            raise MessageRefused(f"no sum of {n_keys} keys has so large a coefficient")
        return cls(coefficients, parameters)

    def open(self, total: bytes, about: bytes, n_ciphertexts: int) -> Rows:
        """Return the values of a total, shape (ciphertexts, N), with the noise of its messages.

        Raises:
            MessageRefused: another length, or a word that is not below the prime.
        """
        of = ring(self._parameters)
        shape = n_ciphertexts, 1, self._parameters.poly_degree
        words = unpacked(total, shape, [of.modulus], "total")
        key = of.key(self.coefficients)
        opened = [of.decrypted(key, of.common(about, j), row[0]) for j, row in enumerate(words)]
        return np.stack(opened)
