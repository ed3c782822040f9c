"""SEAL's arithmetic modulo one prime, on numpy's words: encoding, transform, encryption.

None of it is our own. What looks like a detour is the way through what TenSEAL exposes: decrypting
(c_0, c_1) under s is c_0 + c_1 s, for any c_0, c_1 and s.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import tenseal as ts
from numpy.typing import NDArray
from tenseal import sealapi

from securefl.crypto import sealwire
from securefl.crypto.derived import Coefficients, Words, common_polynomial
from securefl.crypto.params import RingParameters
from securefl.crypto.ring import words_of

Reals = NDArray[np.float64]
"""Shape (N,): real parts of the slots, then imaginary ones."""

_NOTHING_BY_ITSELF = b"\x10\x00"
"""TenSEAL is neither to relinearise nor to rescale nor to switch moduli."""
_MOST_SAVED_BYTES = 2**20
_COMMONS = 256
"""Common polynomials that are kept, 32 kB each: those of a whole ResNet-20."""


class SealRing:
    """Polynomials modulo X^N + 1 and one prime. It holds no key."""

    def __init__(self, parameters: RingParameters) -> None:
        self.parameters = parameters
        degree, bits = parameters.poly_degree, parameters.modulus_bits
        self.modulus: int = sealapi.CoeffModulus.Create(degree, [bits])[0].value()
        self._scale = 2.0**parameters.scale_bits
        self._message = sealwire.field(1, sealwire.parameters(degree, self.modulus))
        self._message += sealwire.field(
            2, _NOTHING_BY_ITSELF + sealwire.double_field(3, self._scale)
        )
        self._context = ts.context_from(self._message)
        self._seal = self._context.seal_context().data
        self._parms_id = tuple(self._seal.first_context_data().parms_id())
        self._encoder = sealapi.CKKSEncoder(self._seal)
        self._evaluator = sealapi.Evaluator(self._seal)
        ones = np.ones((1, degree), np.uint64)
        self._one = self._secret_key(sealwire.secret_key(self._parms_id, ones))
        """Under which (c_0, c_1) decrypts to c_0 + c_1."""
        self.common = lru_cache(_COMMONS)(self._common)
        """Returns the common polynomial a_j of a message as (0, a_j); all its clients have it."""

    def _common(self, about: bytes, index: int) -> sealapi.Ciphertext:
        degree = self.parameters.poly_degree
        words = common_polynomial(about, index, degree, self.modulus)
        return self._ciphertext(np.zeros_like(words), words)

    def key(self, coefficients: Coefficients) -> sealapi.SecretKey:
        """Return SEAL's form of a key of small signed coefficients."""
        words = (coefficients % self.modulus).astype(np.uint64)
        both = self._ciphertext(np.zeros_like(words), words, transformed=False)
        self._evaluator.transform_to_ntt_inplace(both)
        plain = sealapi.Plaintext()
        sealapi.Decryptor(self._seal, self._one).decrypt(both, plain)
        if not _HAS_MEMORY_FILES:
            return self._secret_key(sealwire.secret_key(self._parms_id, _words(plain)[None]))
        key = sealapi.SecretKey()
        with _memory_file() as (_, path):  # SEAL writes both alike
            plain.save(path)
            key.load(self._seal, path)
        return key

    def encrypted(self, key: sealapi.SecretKey, common: sealapi.Ciphertext, reals: Reals) -> Words:
        """Return -(a s) + e + m with an error e that SEAL draws anew at every call.

        SEAL encrypts symmetrically to (c', a') with an a' of its own, and decrypts (c', a' - a).
        """
        plain, fresh = self._encoded(reals, self._scale), sealapi.Ciphertext()
        sealapi.Encryptor(self._seal, key).encrypt_symmetric(plain, fresh)
        self._evaluator.sub_inplace(fresh, common)
        sealapi.Decryptor(self._seal, key).decrypt(fresh, plain)
        return _words(plain)

    def weighed(
        self,
        common: sealapi.Ciphertext,
        words: Words,
        baseline: Reals,
        weights: Reals,
        scale: float,
    ) -> Words:
        """Return the coefficients of w (c - b) and of w a, shape (2, N)."""
        product = self._ciphertext(words, np.zeros_like(words))
        self._evaluator.add_inplace(product, common)
        self._evaluator.sub_plain_inplace(product, self._encoded(baseline, self._scale))
        half = len(weights) // 2  # the real part of a product subtracts imaginary parts
        conjugate = np.concatenate([weights[:half], -weights[half:]])
        self._evaluator.multiply_plain_inplace(product, self._encoded(conjugate, scale))
        self._evaluator.transform_from_ntt_inplace(product)
        shape = 2, 1, self.parameters.poly_degree
        if not _HAS_MEMORY_FILES:
            return words_of(product, int(np.prod(shape))).reshape(shape)[:, 0]
        with _memory_file() as (descriptor, path):
            product.save(path)
            saved = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        return sealwire.residues(saved, shape)[:, 0]

    def _encoded(self, reals: Reals, scale: float) -> sealapi.Plaintext:
        plain, half = sealapi.Plaintext(), len(reals) // 2
        self._encoder.encode((reals[:half] + 1j * reals[half:]).tolist(), scale, plain)
        return plain

    def decrypted(self, key: sealapi.SecretKey, common: sealapi.Ciphertext, total: Words) -> Reals:
        """Return the values of a total under the sum of its keys."""
        plain, whole = sealapi.Plaintext(), self._ciphertext(total, np.zeros_like(total))
        self._evaluator.add_inplace(whole, common)
        sealapi.Decryptor(self._seal, key).decrypt(whole, plain)
        slots = np.asarray(self._encoder.decode_complex(plain))
        return np.concatenate([slots.real, slots.imag])

    def _ciphertext(
        self, first: Words, second: Words, *, transformed: bool = True
    ) -> sealapi.Ciphertext:
        residues = np.stack([first, second])[:, None]
        written = sealwire.ciphertext(
            self._parms_id, residues, self._scale, transformed=transformed
        )
        vector = (
            sealwire.field(1, sealwire.varint(self.parameters.poly_degree // 2))
            + sealwire.field(2, written)
            + sealwire.double_field(3, self._scale)
        )
        return ts.ckks_vector_from(self._context, vector).ciphertext()[0]

    def _secret_key(self, written: bytes) -> sealapi.SecretKey:
        if not _HAS_MEMORY_FILES:  # 3 ms more: TenSEAL computes tables anew
            whole = ts.context_from(self._message + sealwire.field(3, sealwire.field(1, written)))
            return whole.secret_key().data
        key = sealapi.SecretKey()
        with _memory_file() as (descriptor, path):
            os.write(descriptor, written)
            key.load(self._seal, path)
        return key


_HAS_MEMORY_FILES = hasattr(os, "memfd_create")


@contextmanager
def _memory_file() -> Iterator[tuple[int, str]]:
    """Give SEAL, which reads and writes paths alone, one that is on no disk."""
    descriptor = os.memfd_create("securefl")
    try:
        yield descriptor, f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _words(plain: sealapi.Plaintext) -> Words:
    """Return the words of a polynomial."""
    n_words = plain.coeff_count()
    if not _HAS_MEMORY_FILES:  # word by word: 0.2 ms
        return words_of(plain, n_words)
    with _memory_file() as (descriptor, path):
        plain.save(path)
        saved = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    content = sealwire.unpacked(saved, _MOST_SAVED_BYTES)
    return np.frombuffer(content[-8 * n_words :], "<u8")
