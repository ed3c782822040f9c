"""Ciphertexts as bytes whose shape no sender can choose.

TenSEAL's own serialisation says how large it is, and its parser believes it: mutated sizes have
crashed it and leaked heap memory. So coefficients alone travel. The receiver checks their count and
range, and `SealRing` writes everything else itself.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from securefl.errors import MessageRefused

Residues = NDArray[np.uint64]
"""Residues of shape (..., primes, N), each below its prime, in the transform's order."""

_WORD = 8


def word_bytes(moduli: Sequence[int]) -> int:
    """Return the number of bytes that a coefficient needs on the wire."""
    return (max(moduli).bit_length() + 7) // 8


def packed(residues: Residues, moduli: Sequence[int]) -> bytes:
    """Pack each coefficient in `word_bytes` bytes, little-endian; axes as in `unpacked`."""
    words, first = np.ascontiguousarray(residues, "<u8"), f"V{word_bytes(moduli)}"
    # The first bytes of each word as one item: as rows of bytes they are too short for numpy.
    return np.ndarray(words.size, first, words.data, strides=(_WORD,)).tobytes()


def unpacked(
    content: bytes | memoryview, shape: tuple[int, ...], moduli: Sequence[int], what: str
) -> Residues:
    """Return the checked coefficients, of shape (..., primes, N).

    Raises:
        MessageRefused: wrong length, or a coefficient outside the ring; it names `what`.
    """
    size, n_words = word_bytes(moduli), int(np.prod(shape))
    if len(content) != n_words * size:
        raise MessageRefused(f"{what} of {len(content)} bytes, expected exactly {n_words * size}")
    # Words of eight bytes that overlap: each ends in the beginning of the next, which is masked.
    padded = b"".join((content, bytes(_WORD - size)))
    overlapping = np.ndarray(n_words, "<u8", padded, strides=(size,))
    residues: Residues = (overlapping & np.uint64(2 ** (8 * size) - 1)).reshape(shape)
    if (residues >= np.array(moduli, np.uint64)[:, None]).any():
        raise MessageRefused(f"{what} with a coefficient outside the ring")
    return residues


def split_payload(payload: bytes | memoryview, n_bytes: int, count: int) -> list[bytes]:
    """Split into `count` parts of `n_bytes` each; raises MessageRefused for another length."""
    if len(payload) != count * n_bytes:
        raise MessageRefused(f"payload of {len(payload)} bytes, expected {count} x {n_bytes}")
    return [bytes(payload[i : i + n_bytes]) for i in range(0, len(payload), n_bytes)]
