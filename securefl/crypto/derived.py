"""Polynomials that follow from bytes: common ones that all know, and a client's secret ones.

SHAKE-256 is read as little-endian words. A common polynomial is uniform modulo q. Coefficients of a
key and of an error are counts of random bits, as in ML-KEM: 21 bits up, 21 bits down.
"""

import hashlib
import os
from typing import NoReturn, SupportsIndex, final

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from securefl.crypto import KEY_BITS
from securefl.io.uncopyable import Held, SecretBytes

Coefficients = NDArray[np.int64]
"""Coefficients of shape (N,), small and signed."""
Words = NDArray[np.uint64]

KEY_BOUND = KEY_BITS // 2
"""Largest absolute coefficient of a key."""
SEED_BYTES = 32
_COMMON, _KEY = b"SecureFL common 1\0", b"SecureFL one-time key 1\0"
_ERROR = b"SecureFL error 1\0"
_WORD_BYTES = 8
_KEY_BYTES = -(-KEY_BITS // 8)
_BITS = np.uint64(2**KEY_BITS - 1)
_DOWN = np.uint64(2**KEY_BITS - 2**KEY_BOUND)
"""The half of a coefficient's bits that counts down."""
_SPARE = 64
"""Number of words beyond N, for those that are q or more: one in 2^45 is."""


@final
class SecretArray(Held, np.ndarray):
    """Array of a key or an error, which a `repr` does not show.

    So are views of it, its copies, and what arithmetic makes of it; `np.array`, `np.where` and
    functions that are given a place for their result make plain arrays.
    """

    __slots__ = ()
    __array_priority__ = 1.0  # so that numpy joins several to one of this class

    def __reduce_ex__(self, _protocol: SupportsIndex) -> NoReturn:
        self.__reduce__()

    def __deepcopy__(self, _memo: object) -> NoReturn:
        self.__reduce__()

    def __repr__(self) -> str:
        return f"SecretArray({self.shape})"

    __str__, __copy__ = __repr__, Held.__reduce__


def common_polynomial(about: bytes, index: int, poly_degree: int, modulus: int) -> Words:
    """Return the polynomial a_j of a message, shape (N,), in the transform's order.

    Nobody chooses or sends it: it follows from what the message is about, and its index.
    """
    seed = _COMMON + index.to_bytes(8, "little") + about
    n_words = poly_degree + _SPARE
    drawn = np.frombuffer(hashlib.shake_256(seed).digest(_WORD_BYTES * n_words), "<u8")
    words = drawn & np.uint64(2 ** modulus.bit_length() - 1)
    # Rejected and not reduced: so words are uniform below the modulus.
    fitting: Words = words[words < modulus][:poly_degree]
    if len(fitting) < poly_degree:
        raise RuntimeError(f"more than {_SPARE} of {n_words} words are beyond the modulus")
    return fitting


def group_secret(secret: bytes, group: int) -> SecretBytes:
    """Return a group's part of a client's secret, 32 bytes."""
    found = hashlib.sha256(b"SecureFL group 1\0" + group.to_bytes(4, "little") + secret)
    return SecretBytes(found.digest())


def commitment(secret: bytes) -> bytes:
    """Return what a client signs of a group's secret, 32 bytes; it tells nothing of it."""
    return hashlib.sha256(b"SecureFL commitment 1\0" + secret).digest()


def key_seed(secret: bytes, about: bytes, sender: str, nonce: bytes) -> SecretBytes:
    """Return the seed of the key of one message, 32 bytes, by HKDF with SHA-256."""
    name = sender.encode()
    info = b"".join(len(part).to_bytes(4, "little") + part for part in (_KEY, about, name, nonce))
    return SecretBytes(HKDF(SHA256(), SEED_BYTES, salt=None, info=info).derive(secret))


def key_polynomial(seed: bytes, poly_degree: int) -> Coefficients:
    """Return the key's coefficients, shape (N,), each within ±`KEY_BOUND`."""
    return _counted(SecretBytes(_KEY + seed), poly_degree)


def error_seed(key: Coefficients) -> SecretBytes:
    """Return a seed of the errors of one message, 32 bytes: fresh, and of its key besides.

    So a copied machine with the same random bytes does not use errors under two keys.
    """
    fresh = hashlib.sha256(_ERROR + os.urandom(SEED_BYTES) + key.astype(np.int8).tobytes())
    return SecretBytes(fresh.digest())


def error_polynomial(seed: bytes, index: int, poly_degree: int) -> Coefficients:
    """Return the error e_j of a message's ciphertext, of coefficients as a key's."""
    return _counted(SecretBytes(_ERROR + index.to_bytes(8, "little") + seed), poly_degree)


def _counted(seed: bytes, poly_degree: int) -> Coefficients:
    n_bytes = _KEY_BYTES * (poly_degree - 1) + _WORD_BYTES
    drawn = SecretBytes(hashlib.shake_256(seed).digest(n_bytes))
    bits = SecretArray(poly_degree, "<u8", drawn, strides=(_KEY_BYTES,))  # words that overlap
    # The half that counts down is flipped: where d of its bits are set, `KEY_BOUND` - d are then.
    counted: Coefficients = np.bitwise_count(bits & _BITS ^ _DOWN).astype(np.int64) - KEY_BOUND
    return counted
