"""SEAL's arithmetic modulo one prime, on numpy's words: encoding, transform, encryption.

None of it is our own. What looks like a detour is the way through what TenSEAL exposes: decrypting
(c_0, c_1) under s is c_0 + c_1 s, for any c_0, c_1 and s.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import tenseal as ts
from numpy.typing import NDArray
from tenseal import sealapi

from securefl.crypto import sealwire
from securefl.crypto.derived import Coefficients, Words, common_polynomial
from securefl.crypto.params import SumParameters
from securefl.crypto.ring import words_of

Reals = NDArray[np.float64]
"""Shape (N,): real parts of the slots, then imaginary ones."""

_NOTHING_BY_ITSELF = b"\x10\x00"
"""TenSEAL is neither to relinearise nor to rescale nor to switch moduli."""
_MOST_SAVED_BYTES = 2**20


class SealRing:
    """Polynomials modulo X^N + 1 and one prime. It holds no key."""

    def __init__(self, parameters: SumParameters) -> None:
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

    def common(self, about: bytes, index: int) -> Words:
        """Return the common polynomial a_j of a message, in the transform's order."""
        return common_polynomial(about, index, self.parameters.poly_degree, self.modulus)

    def key(self, coefficients: Coefficients) -> sealapi.SecretKey:
        """Return SEAL's form of a key of small signed coefficients."""
        words = (coefficients % self.modulus).astype(np.uint64)
        both = self._ciphertext(np.zeros_like(words), words, transformed=False)
        self._evaluator.transform_to_ntt_inplace(both)
        transformed = _last_words(both, n_words=2 * len(words), n_last=len(words))
        return self._secret_key(sealwire.secret_key(self._parms_id, transformed[None]))

    def encrypted(self, key: sealapi.SecretKey, common: Words, reals: Reals) -> Words:
        """Return -(a s) + e + m with an error e that SEAL draws anew at every call.

        SEAL encrypts symmetrically to (c', a') with an a' of its own, and decrypts (c', a' - a).
        """
        plain, fresh = sealapi.Plaintext(), sealapi.Ciphertext()
        half = len(reals) // 2
        self._encoder.encode((reals[:half] + 1j * reals[half:]).tolist(), self._scale, plain)
        sealapi.Encryptor(self._seal, key).encrypt_symmetric(plain, fresh)
        self._evaluator.sub_inplace(fresh, self._ciphertext(np.zeros_like(common), common))
        sealapi.Decryptor(self._seal, key).decrypt(fresh, plain)
        return _last_words(plain, n_words=len(common), n_last=len(common))

    def decrypted(self, key: sealapi.SecretKey, common: Words, total: Words) -> Reals:
        """Return the values of a total under the sum of its keys."""
        plain = sealapi.Plaintext()
        sealapi.Decryptor(self._seal, key).decrypt(self._ciphertext(total, common), plain)
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


def _last_words(
    polynomials: sealapi.Ciphertext | sealapi.Plaintext, n_words: int, n_last: int
) -> Words:
    """Return the last words of SEAL's object of so many words."""
    if not _HAS_MEMORY_FILES:  # word by word, 0.3 ms a polynomial
        return words_of(polynomials, n_words)[-n_last:]
    with _memory_file() as (descriptor, path):
        polynomials.save(path)
        saved = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    content = sealwire.unpacked(saved, _MOST_SAVED_BYTES)
    return np.frombuffer(content[-8 * n_last :], "<u8")
