"""Sums under one-time keys: each message has a key of its own, and a sum of keys opens a sum.

    a_j  = SHAKE-256(about; j)                   public; nobody chooses or sends it
    s_i  = CBD_42(SHAKE-256(HKDF(k_i; about, sender, nonce)))    client i's key of this one message
    c_ij = -a_j s_i + e_ij + m_ij                all that travels
    C_j  = Σ_{i in L} c_ij                       the server adds modulo q
    S    = Σ_{i in L} s_i                        the authority adds, or several officers do in parts
    C_j + a_j S = Σ m_ij + Σ e_ij                (C_j, a_j) is a CKKS ciphertext under S

S opens the sum over L and nothing else, so whoever reads the total may know it.

A message that is weighed instead of added (`weighed`) is opened by what its key makes of the
weighed polynomial: w c_i + (w a) s_i = w m_i + w e_i, of which the constant coefficient is told.
"""

from collections.abc import Iterable
from functools import cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from securefl.crypto.ciphertext_codec import packed, unpacked
from securefl.crypto.derived import (
    KEY_BOUND,
    Coefficients,
    SecretArray,
    Words,
    error_polynomial,
    error_seed,
    key_polynomial,
    key_seed,
)
from securefl.crypto.params import (
    MATCHES,
    SUMS,
    MatchParameters,
    RingParameters,
    SumParameters,
)
from securefl.crypto.seal_ring import SealRing
from securefl.errors import MessageRefused
from securefl.io.uncopyable import Held

Rows = NDArray[np.float64]
"""Values of shape (ciphertexts, N)."""

_ADDITIONS = 2**11
"""Number of additions after which sums of words below 2^53 have not overflowed 64 bits."""
_COEFFICIENT = np.dtype("<i4")
_HALF_WORD = np.uint64(30)
KEY_SUM_BYTES = SUMS.poly_degree * _COEFFICIENT.itemsize
"""Length of a sum of keys as it travels."""


@cache
def ring(parameters: RingParameters = SUMS) -> SealRing:
    """Return the ring of these parameters, made once a process."""
    return SealRing(parameters)


@final
class OneTimeKey(Held):
    """Key s_i of one message. It can be added to others of the same message, and tells nothing."""

    def __init__(self, coefficients: Coefficients, parameters: RingParameters) -> None:
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
        parameters: RingParameters = SUMS,
    ) -> "OneTimeKey":
        """Return the key of a message: one polynomial for each of the client's secrets, added up.

        Args:
            secrets: k_i, 32 bytes each; one for the authority, or one for each group of officers.
            about: run, round, name and size of the message.
            sender: the client.
            nonce: fresh bytes, which the signed header names.
            parameters: of the ring.
        """
        coefficients = np.zeros(parameters.poly_degree, np.int64).view(SecretArray)
        for secret in secrets:
            seed = key_seed(secret, about, sender, nonce)
            coefficients += key_polynomial(seed, parameters.poly_degree)
        return cls(coefficients, parameters)

    def seal(self, rows: Rows, about: bytes) -> bytes:
        """Return the message, `ciphertext_bytes` a row, under the common polynomials of `about`.

        Each value of a sum is within ±`max_value`.
        """
        of, key = ring(self._parameters), self._coefficients
        seed, degree = error_seed(key), self._parameters.poly_degree
        return b"".join(
            packed(
                of.encrypted(key, error_polynomial(seed, j, degree), of.common(about, j), row),
                of.primes,
            )
            for j, row in enumerate(rows)
        )

    def applied(self, polynomial: Words) -> int:
        """Return the constant coefficient of this key times a polynomial, modulo all primes."""
        # Modulo X^N + 1, the constant coefficient of s p is s_0 p_0 - Σ s_i p_(N-i) over i > 0.
        reversed_key = np.concatenate([self._coefficients[:1], -self._coefficients[:0:-1]])
        high, low = polynomial >> _HALF_WORD, polynomial & (2**_HALF_WORD - 1)  # no overflow
        parts = ((part.astype(np.int64) @ reversed_key).tolist() for part in (high, low))
        of, wholes = ring(self._parameters), zip(*parts, strict=True)
        residues = ((high << int(_HALF_WORD)) + low for high, low in wholes)
        return of.composed(residues)

    def __repr__(self) -> str:
        return "OneTimeKey()"

    @property
    def coefficients(self) -> Coefficients:
        """Coefficients of the key itself, IN CLEAR, for `KeySum.of` alone."""
        return self._coefficients


def weighed(
    message: bytes | memoryview,
    about: bytes,
    baseline: Rows,
    weights: Rows,
    parameters: MatchParameters = MATCHES,
) -> tuple[int, Words]:
    """Return a score's constant coefficient w (c - b), and the polynomial w a that opens it.

    The score is the sum over rows of the mean over slots of w (x - b), complex slots of two values
    each. Taking the difference first makes the error of encoding vanish where x is the baseline.

    Args:
        message: `OneTimeKey.seal` of rows x.
        about: of its common polynomials.
        baseline: b, shape (ciphertexts, N).
        weights: w, of the same shape, not all zero, scaled as `MatchParameters` says.
        parameters: of the ring.

    Raises:
        MessageRefused: another length, or a word that is not below the prime.
    """
    of, n_rows = ring(parameters), len(weights)
    words = unpacked(message, (n_rows, *of.shape), of.primes, "ciphertext")
    scale = 2.0**parameters.weight_bits
    total = np.zeros((2, *of.shape), np.uint64)
    for j in np.flatnonzero(weights.any(axis=1)):  # SEAL refuses to multiply by zero
        both = np.stack([words[j], of.common_words(about, int(j))])
        total = (total + of.weighed(both, baseline[j], weights[j], scale)) % of.column
    return of.composed(total[0, :, 0].tolist()), total[1]


def score_of(constants: Iterable[int], parameters: MatchParameters = MATCHES) -> float | None:
    """Return the score that a constant and the keys' parts add up to; None where it is none.

    Args:
        constants: the server's, and what `OneTimeKey.applied` makes of the polynomial.
        parameters: of the ring.
    """
    modulus = ring(parameters).modulus
    total = sum(constants) % modulus
    # Residues above half of the modulus stand for negative numbers.
    score = (total if total < modulus / 2 else total - modulus) / 2.0**parameters.score_scale_bits
    return score if abs(score) <= 2**parameters.range_bits else None


def released(part: int, parameters: MatchParameters = MATCHES) -> int:
    """Return a key's part of a score as it is told: its lowest `weight_bits` bits, noise, are zero.

    Whoever chooses the polynomial reads so many bits of a profile, and not those of two
    coefficients whole. Rounding errs by 2^-(scale_bits + 1) of a score, a sixth of its noise.
    """
    step = 2**parameters.weight_bits
    rounded: int = (part + step // 2) // step * step % ring(parameters).modulus
    return rounded


def constant_bytes(constant: int, parameters: MatchParameters = MATCHES) -> bytes:
    """Return a constant coefficient as it travels, `MatchParameters.constant_bytes` of it."""
    return constant.to_bytes(parameters.constant_bytes, "little")


def constant_in(content: bytes) -> int:
    """Parse what `constant_bytes` wrote; the score is taken modulo all primes."""
    return int.from_bytes(content, "little")


def polynomial_bytes(polynomial: Words, parameters: MatchParameters = MATCHES) -> bytes:
    """Return a polynomial as it travels, `ciphertext_bytes` of it."""
    return packed(polynomial, ring(parameters).primes)


def polynomial_in(content: bytes, parameters: MatchParameters = MATCHES) -> Words:
    """Parse what `polynomial_bytes` wrote.

    Raises:
        MessageRefused: another length, or a word that is not below the prime.
    """
    of = ring(parameters)
    return unpacked(content, of.shape, of.primes, "polynomial")


class CipherSum:
    """Sum of messages as they arrive: memory does not grow with their number."""

    def __init__(
        self,
        n_ciphertexts: int,
        parameters: SumParameters = SUMS,
        words: Words | None = None,
        n_added: int = 0,
    ) -> None:
        self._parameters = parameters
        self._shape = n_ciphertexts, *ring(parameters).shape
        self._words = np.zeros(self._shape, np.uint64) if words is None else words
        self._n_added = n_added

    def plus(self, message: bytes | memoryview) -> "CipherSum":
        """Return the sum with one message more.

        Raises:
            MessageRefused: another length, or a word that is not below the prime.
        """
        of = ring(self._parameters)  # not kept: the server has what this object has
        words: Words = unpacked(message, self._shape, of.primes, "ciphertext")
        words += self._words
        if (self._n_added + 1) % _ADDITIONS == 0:
            words %= of.column
        return CipherSum(self._shape[0], self._parameters, words, self._n_added + 1)

    def total(self) -> bytes:
        """Return the sum as it travels."""
        of = ring(self._parameters)
        return packed(self._words % of.column, of.primes)


@final
class KeySum(Held):
    """Sum of the keys of one message over clients, or over a group of officers' part of it."""

    def __init__(self, coefficients: Coefficients, parameters: RingParameters) -> None:
        self.coefficients = coefficients
        self._parameters = parameters

    @classmethod
    def of(cls, keys: Iterable[OneTimeKey], parameters: RingParameters = SUMS) -> "KeySum":
        """Add the keys of one message, each once."""
        total = np.zeros(parameters.poly_degree, np.int64).view(SecretArray)
        for key in keys:
            total += key.coefficients
        return cls(total, parameters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeySum) and np.array_equal(self.coefficients, other.coefficients)

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def plus(self, other: "KeySum") -> "KeySum":
        """Return the sum with another group's part."""
        return KeySum(self.coefficients + other.coefficients, self._parameters)

    def to_bytes(self) -> bytes:
        """Return the coefficients as they travel, four bytes each."""
        return self.coefficients.astype(_COEFFICIENT).tobytes()

    @classmethod
    def from_bytes(cls, content: bytes, n_keys: int, parameters: RingParameters = SUMS) -> "KeySum":
        """Parse what `to_bytes` wrote.

        Raises:
            MessageRefused: another length, or more than `n_keys` keys can add up to.
        """
        n_bytes = parameters.poly_degree * _COEFFICIENT.itemsize
        if len(content) != n_bytes:
            raise MessageRefused(f"sum of keys of {len(content)} bytes, expected {n_bytes}")
        coefficients = np.frombuffer(content, _COEFFICIENT).astype(np.int64).view(SecretArray)
        if np.abs(coefficients).max() > n_keys * KEY_BOUND:
            raise MessageRefused(f"no sum of {n_keys} keys has so large a coefficient")
        return cls(coefficients, parameters)

    def open(self, total: bytes, about: bytes, n_ciphertexts: int) -> Rows:
        """Return the values of a total, shape (ciphertexts, N), with the noise of its messages.

        Raises:
            MessageRefused: another length, a word that is not below the prime, or keys that add up
                to zero, as no clients' do.
        """
        if not self.coefficients.any():
            raise MessageRefused("the keys add up to zero")
        of = ring(self._parameters)
        words = unpacked(total, (n_ciphertexts, *of.shape), of.primes, "total")
        key = of.key(self.coefficients)
        opened = [of.decrypted(key, of.common(about, j), row) for j, row in enumerate(words)]
        return np.stack(opened)
