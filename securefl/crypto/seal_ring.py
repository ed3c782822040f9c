"""Arithmetic of SEAL modulo primes, on numpy's words: encoding, transform, sums, products.

None of it is our own. What looks like a detour is the way through what TenSEAL exposes: words are
read and written as files, a polynomial is half a ciphertext, and decrypting (x, y) under the common
polynomial a, which is no secret, is x + a y. So a message is what (e + m, -s) decrypts to, and a
total's values what (C, S) does.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from pathlib import Path

import numpy as np
import tenseal as ts
from numpy.typing import NDArray
from tenseal import sealapi

from securefl.crypto import seal_format
from securefl.crypto.derived import Coefficients, SecretArray, Words, common_polynomial
from securefl.crypto.params import RingParameters
from securefl.io.uncopyable import SecretBytes

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
        self._around = {of: self._around_words(transformed=of) for of in (False, True)}
        self.common = lru_cache(_COMMONS)(self._common)
        """Cached function for what decrypts under the common polynomial a_j of a message; all its
        clients have it."""

    def _common(self, about: bytes, index: int) -> sealapi.Decryptor:
        return self.decryptor(self.common_words(about, index))

    def decryptor(self, words: Words) -> sealapi.Decryptor:
        """Return what makes x + y p of (x, y), for a public polynomial p."""
        all_words = np.zeros((len(self.parameters.all_prime_bits), words.shape[1]), np.uint64)
        all_words[: len(words)] = words  # what is modulo SEAL's own prime, nothing decrypts with
        written = seal_format.secret_key(self._seal.key_parms_id(), all_words)
        public = sealapi.SecretKey()
        with _file(written) as (path, _):
            public.load(self._seal, path)
        return sealapi.Decryptor(self._seal, public)

    def common_words(self, about: bytes, index: int) -> Words:
        """Return the words of a common polynomial, transformed."""
        n_primes, degree = self.shape
        of = [(n_primes * index + i, degree, prime) for i, prime in enumerate(self.primes)]
        return np.stack([common_polynomial(about, *one) for one in of])

    def encrypted(
        self, key: Coefficients, error: Coefficients, common: sealapi.Decryptor, reals: Reals
    ) -> Words:
        """Return -(a s) + e + m: (e + m, -s), decrypted under the public polynomial a."""
        both = self._small(error, -key)
        self._evaluator.add_plain_inplace(both, self._encoded(reals, self._scale))
        return _words(self._decrypted(common, both), self.shape)

    def key(self, coefficients: Coefficients) -> sealapi.Ciphertext:
        """Return a sum of keys as (0, S), transformed."""
        return self._small(np.zeros_like(coefficients), coefficients)

    def decrypted(self, key: sealapi.Ciphertext, common: sealapi.Decryptor, total: Words) -> Reals:
        """Return the values of a total: (C, S), decrypted under the public polynomial a."""
        both = self._ciphertext(np.array([total, np.zeros_like(total)]))
        self._evaluator.add_inplace(both, key)
        slots = np.asarray(self._encoder.decode_complex(self._decrypted(common, both)))
        return np.concatenate([slots.real, slots.imag])

    def weighed(self, both: Words, baseline: Reals, weights: Reals, scale: float) -> Words:
        """Return coefficients of w (c - b) and w a, shape (2, primes, N), from words of c and a."""
        product = self._ciphertext(both)
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

    def _decrypted(self, common: sealapi.Decryptor, both: sealapi.Ciphertext) -> sealapi.Plaintext:
        plain = sealapi.Plaintext()
        common.decrypt(both, plain)
        return plain

    def _encoded(self, reals: Reals, scale: float) -> sealapi.Plaintext:
        plain, half = sealapi.Plaintext(), len(reals) // 2
        slots = reals[:half] + 1j * reals[half:]
        self._encoder.encode(slots.tolist(), scale, plain)
        return plain

    def _small(self, *polynomials: Coefficients) -> sealapi.Ciphertext:
        """Return two polynomials of small signed coefficients, transformed."""
        words = np.array(polynomials, np.int64)[:, None].view(np.uint64).view(SecretArray)
        # A negative one is a huge word: with the prime added, it is the lesser of the two.
        both = self._ciphertext(np.minimum(words, words + self.column), transformed=False)
        self._evaluator.transform_to_ntt_inplace(both)
        return both

    def _ciphertext(self, both: Words, *, transformed: bool = True) -> sealapi.Ciphertext:
        before, after = self._around[transformed]
        words = both.astype("<u8", order="C", copy=False)
        vector = SecretBytes(b"".join((before, words.data, after)))  # of a key, perhaps
        return ts.ckks_vector_from(self._context, vector).ciphertext()[0]

    def _around_words(self, *, transformed: bool) -> tuple[bytes, bytes]:
        """Return what is before and after a ciphertext's words in TenSEAL's form of it."""
        nothing = np.zeros((2, *self.shape), np.uint64)
        written = seal_format.ciphertext(
            self._parms_id, nothing, self._scale, transformed=transformed
        )
        vector = seal_format.field(
            1, seal_format.varint(self.parameters.poly_degree // 2)
        ) + seal_format.field(2, written)
        return vector[: -nothing.nbytes], seal_format.double_field(3, self._scale)


_HAS_MEMORY_FILES = hasattr(os, "memfd_create")


def _words(polynomials: sealapi.Plaintext | sealapi.Ciphertext, shape: tuple[int, ...]) -> Words:
    """Return the words of a polynomial, or of a ciphertext's two."""
    with _file() as (path, descriptor):
        polynomials.save(path)
        saved = os.read(descriptor, os.fstat(descriptor).st_size)
    return np.frombuffer(seal_format.own_content(saved)[-8 * prod(shape) :], "<u8").reshape(shape)


@contextmanager
def _file(content: bytes = b"") -> Iterator[tuple[str, int]]:
    """Yield path and descriptor of a file, since SEAL reads paths alone: on no disk if may be.

    No key, error or value is ever in it.
    """
    if _HAS_MEMORY_FILES:
        descriptor = os.memfd_create("securefl")
        path = f"/proc/self/fd/{descriptor}"
    else:
        descriptor, path = tempfile.mkstemp(prefix="securefl")
    try:
        os.write(descriptor, content)
        yield path, descriptor
    finally:
        os.close(descriptor)
        if not _HAS_MEMORY_FILES:
            Path(path).unlink()
