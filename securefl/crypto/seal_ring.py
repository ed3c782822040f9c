"""Arithmetic of SEAL modulo primes, on numpy's words: encoding, transform, errors, products.

None of it is our own. What looks like a detour is the way through what TenSEAL exposes: words are
read and written as files, a polynomial is half a ciphertext, and decrypting (c_0, c_1) under the
polynomial one, which is no secret, is c_0 + c_1.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import tenseal as ts
from numpy.typing import NDArray
from tenseal import sealapi

from securefl.crypto import seal_format
from securefl.crypto.ciphertext_codec import words_of
from securefl.crypto.derived import Coefficients, Words, common_polynomial

if TYPE_CHECKING:
    from securefl.crypto.params import RingParameters


Reals = NDArray[np.float64]
"""Values of shape (N,): real parts of the slots, then imaginary ones."""

_NOTHING_BY_ITSELF = b"\x10\x00"
"""Flags of a TenSEAL context that neither relinearises, nor rescales, nor switches moduli."""
_COMMONS = 256
"""Number of common polynomials that are kept, 32 kB each: those of a whole ResNet-20."""


class SealRing:
    """Ring of polynomials modulo X^N + 1 and the product of one prime or more. It holds no key.

    Words of a polynomial have shape (primes, N).
    """

    def __init__(self, parameters: RingParameters) -> None:
        self.parameters = parameters
        degree, bits = parameters.poly_degree, parameters.all_prime_bits
        primes = [prime.value() for prime in sealapi.CoeffModulus.Create(degree, [*bits])]
        self.primes: tuple[int, ...] = tuple(primes[: len(parameters.prime_bits)])
        self.modulus = prod(self.primes)
        self.column = np.array(self.primes, np.uint64)[:, None]
        """Primes, shape (primes, 1)."""
        self.shape = len(self.primes), degree
        """Shape of a polynomial's words."""
        self._scale = 2.0**parameters.scale_bits
        self._message = seal_format.field(1, seal_format.parameters(degree, primes))
        self._message += seal_format.field(
            2, _NOTHING_BY_ITSELF + seal_format.double_field(3, self._scale)
        )
        self._context = ts.context_from(self._message)
        self._seal = self._context.seal_context().data
        self._parms_id = tuple(self._seal.first_context_data().parms_id())
        self._encoder = sealapi.CKKSEncoder(self._seal)
        self._evaluator = sealapi.Evaluator(self._seal)
        # In the transform's form, the polynomial one has the word one everywhere: a key that is no
        # secret.
        ones, of_keys = np.ones((len(primes), degree), np.uint64), self._seal.key_parms_id()
        one = ts.context_from(
            self._message
            + seal_format.field(3, seal_format.field(1, seal_format.secret_key(of_keys, ones)))
        )
        self._one = one.secret_key().data  # of the same parameters
        self._encryptor = sealapi.Encryptor(self._seal, self._one)
        self._decryptor = sealapi.Decryptor(self._seal, self._one)
        self.common = lru_cache(_COMMONS)(self._common)
        """Cached function for the common polynomial a_j of a message; all its clients have it."""

    def _common(self, about: bytes, index: int) -> sealapi.Plaintext:
        words = self.common_words(about, index)
        return self._sum(self._ciphertext(words, np.zeros_like(words)))

    def common_words(self, about: bytes, index: int) -> Words:
        """Return the words of a common polynomial, transformed."""
        n_primes, degree = self.shape
        of = [(n_primes * index + i, degree, prime) for i, prime in enumerate(self.primes)]
        return np.stack([common_polynomial(about, *one) for one in of])

    def key(self, coefficients: Coefficients) -> sealapi.Ciphertext:
        """Return a key of small signed coefficients as (0, s), transformed."""
        words = (coefficients % self.column.astype(np.int64)).astype(np.uint64)
        key = self._ciphertext(np.zeros_like(words), words, 1.0, transformed=False)
        self._evaluator.transform_to_ntt_inplace(key)
        return key

    def encrypted(self, key: sealapi.Ciphertext, common: sealapi.Plaintext, reals: Reals) -> Words:
        """Return -(a s) + e + m with an error e that SEAL draws anew at every call.

        SEAL encrypts under the polynomial one to (c', a'), where c' + a' = e + m.
        """
        fresh = sealapi.Ciphertext()
        self._encryptor.encrypt_symmetric(self._encoded(reals, self._scale), fresh)
        self._evaluator.sub_inplace(fresh, self._product(key, common))
        return _words(self._sum(fresh), self.shape)

    def decrypted(self, key: sealapi.Ciphertext, common: sealapi.Plaintext, total: Words) -> Reals:
        """Return the values of a total, (C + a S), under the sum of its keys."""
        whole = self._ciphertext(total, np.zeros_like(total))
        self._evaluator.add_inplace(whole, self._product(key, common))
        slots = np.asarray(self._encoder.decode_complex(self._sum(whole)))
        return np.concatenate([slots.real, slots.imag])

    def weighed(self, both: Words, baseline: Reals, weights: Reals, scale: float) -> Words:
        """Return coefficients of w (c - b) and w a, shape (2, primes, N), from words of c and a."""
        product = self._ciphertext(*both)
        self._evaluator.sub_plain_inplace(product, self._encoded(baseline, self._scale))
        half = len(baseline) // 2  # the real part of a product subtracts imaginary parts
        conjugate = np.concatenate([weights[:half], -weights[half:]])
        scaled = self._encoded(conjugate, scale)
        if scaled.is_zero():  # rounded to nothing: SEAL refuses to multiply by zero
            return np.zeros_like(both)
        self._evaluator.multiply_plain_inplace(product, scaled)
        self._evaluator.transform_from_ntt_inplace(product)
        return _words(product, both.shape)

    def composed(self, residues: Iterable[int]) -> int:
        """Return the number modulo the product of the primes that has these residues."""
        number = 0
        for residue, prime in zip(residues, self.primes, strict=True):
            others = self.modulus // prime
            number += int(residue) * others * pow(others, -1, prime)
        return number % self.modulus

    def _product(self, key: sealapi.Ciphertext, common: sealapi.Plaintext) -> sealapi.Ciphertext:
        """Return (0, a s)."""
        product = sealapi.Ciphertext()
        self._evaluator.multiply_plain(key, common, product)
        return product

    def _sum(self, both: sealapi.Ciphertext) -> sealapi.Plaintext:
        """Return c_0 + c_1."""
        plain = sealapi.Plaintext()
        self._decryptor.decrypt(both, plain)
        return plain

    def _encoded(self, reals: Reals, scale: float) -> sealapi.Plaintext:
        plain, half = sealapi.Plaintext(), len(reals) // 2
        self._encoder.encode((reals[:half] + 1j * reals[half:]).tolist(), scale, plain)
        return plain

    def _ciphertext(
        self, first: Words, second: Words, scale: float = 0.0, *, transformed: bool = True
    ) -> sealapi.Ciphertext:
        residues, scale = np.stack([first, second]), scale or self._scale
        written = seal_format.ciphertext(self._parms_id, residues, scale, transformed=transformed)
        vector = (
            seal_format.field(1, seal_format.varint(self.parameters.poly_degree // 2))
            + seal_format.field(2, written)
            + seal_format.double_field(3, scale)
        )
        return ts.ckks_vector_from(self._context, vector).ciphertext()[0]


_HAS_MEMORY_FILES = hasattr(os, "memfd_create")


def _words(polynomials: sealapi.Plaintext | sealapi.Ciphertext, shape: tuple[int, ...]) -> Words:
    """Return the words of a polynomial, or of a ciphertext's two."""
    if not _HAS_MEMORY_FILES:  # word by word: 0.2 ms
        return words_of(polynomials, prod(shape)).reshape(shape)
    return np.frombuffer(_saved(polynomials)[-8 * prod(shape) :], "<u8").reshape(shape)


def _saved(polynomials: sealapi.Plaintext | sealapi.Ciphertext) -> bytes:
    """Return what SEAL, which writes to paths alone, writes to a file that is on no disk."""
    descriptor = os.memfd_create("securefl")
    try:
        polynomials.save(f"/proc/self/fd/{descriptor}")
        saved = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)
    return seal_format.own_content(saved)
