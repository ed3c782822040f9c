"""Whether bytes that travel as a ciphertext look like one: uniform, in two ways of looking.

Without the key, a ciphertext's polynomial is uniform over the ring (RLWE). So are its residues as
they travel, transformed, and so are its coefficients. An encoded plaintext, or an encryption with
too little randomness, is not: it has small coefficients, which the transform hides.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np

from securefl.audit.statistics import too_far
from securefl.crypto.ciphertext_codec import Residues, unpacked
from securefl.crypto.one_time import ring
from securefl.crypto.params import RingParameters

UNEVEN = 1e-9
"""The probability that a uniform polynomial looks as uneven as is called readable here."""
_ROOTS_TRIED = 1000


def uneven(polynomials: Iterable[bytes], parameters: RingParameters) -> str:
    """Return the reason why one of them is no ciphertext; empty where all may be.

    Raises:
        MessageRefused: another length, or a word that is not below the prime.
    """
    of = ring(parameters)
    for one in polynomials:
        for words, prime in zip(
            unpacked(one, of.shape, of.primes, "ciphertext"), of.primes, strict=True
        ):
            if too_far(words / prime, UNEVEN):
                return "its payload is no ciphertext: residues are not uniform"
            if too_far(coefficients(words, prime) / prime, UNEVEN):
                return "its payload is no ciphertext: coefficients are not uniform"
    return ""


def coefficients(row: Residues, modulus: int) -> Residues:
    """a_j modulo a prime, from A(ψ^(2k + 1)) in bit-reversed order of k, as SEAL has it."""
    n = len(row)
    values, twiddles = row, _powers(pow(_smallest_root(2 * n, modulus), -1, modulus), modulus, n)
    size = 2
    while size <= n:  # Cooley and Tukey; ω = ψ²
        halves = values.reshape(-1, 2, size // 2)
        turned = _times(halves[:, 1], twiddles[:: 2 * n // size][: size // 2], modulus)
        low, high = halves[:, 0] + turned, halves[:, 0] + np.uint64(modulus) - turned
        values = np.stack([low, high], 1).reshape(-1) % np.uint64(modulus)
        size *= 2
    scaled = _times(values, np.uint64(pow(n, -1, modulus)), modulus)
    return _times(scaled, twiddles, modulus)


def _times(left: Residues, right: Residues | np.uint64, modulus: int) -> Residues:
    """Products modulo a prime below 2^60: the quotient from floats, the rest modulo 2^64."""
    quotient = (left.astype(np.longdouble) * right / modulus).astype(np.uint64)
    with np.errstate(over="ignore"):
        rest = (left * right - quotient * np.uint64(modulus)).astype(np.int64)
    return (rest % modulus).astype(np.uint64)


@cache
def _powers(root: int, modulus: int, n: int) -> Residues:
    return np.array([pow(root, k, modulus) for k in range(n)], np.uint64)


@cache
def _smallest_root(order: int, modulus: int) -> int:
    """The smallest primitive root of unity of one this order, a power of two."""
    candidates = (pow(g, (modulus - 1) // order, modulus) for g in range(2, _ROOTS_TRIED))
    root = next(r for r in candidates if pow(r, order // 2, modulus) == modulus - 1)
    return min(pow(root, k, modulus) for k in range(1, order, 2))
