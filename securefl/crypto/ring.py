"""Ciphertexts as bytes whose shape no sender can choose.

TenSEAL's own serialisation says how large it is, and its parser believes it: mutated sizes have
crashed it and leaked heap memory. So coefficients alone travel. The receiver checks their count and
range and writes everything else itself (`sealwire`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tenseal as ts
from numpy.typing import NDArray

from securefl.crypto import sealwire
from securefl.errors import MessageRefused

Residues = NDArray[np.uint64]
"""Shape (polynomials, primes, N), each below its prime, in the transform's order."""

_WORD = 8


@dataclass(frozen=True, slots=True)
class RingFrame:
    """The shape of one kind of ciphertext, and its form on the wire."""

    parms_id: tuple[int, ...]
    """SEAL's name of the parameters, four words."""
    poly_degree: int
    moduli: tuple[int, ...]
    n_polynomials: int
    scale_bits: int

    @classmethod
    def of_fresh(cls, context: ts.Context, scale_bits: int) -> RingFrame:
        """Of what is encrypted in a context, as SEAL itself has it."""
        data = context.seal_context().data.first_context_data()
        parms = data.parms()
        return cls(
            tuple(data.parms_id()),
            parms.poly_modulus_degree(),
            tuple(prime.value() for prime in parms.coeff_modulus()),
            n_polynomials=2,
            scale_bits=scale_bits,
        )

    @property
    def word_bytes(self) -> int:
        """Bytes that a coefficient needs on the wire."""
        return word_bytes(self.moduli)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the residues."""
        return self.n_polynomials, len(self.moduli), self.poly_degree

    @property
    def n_bytes(self) -> int:
        """Of one ciphertext on the wire."""
        return int(np.prod(self.shape)) * self.word_bytes

    def encrypted(self, vector: ts.CKKSVector) -> bytes:
        """A vector of this process's own making, as it travels.

        Raises:
            RuntimeError: it is of another shape.
        """
        return self.to_wire(sealwire.residues(vector.serialize(), self.shape))

    def residues(self, ciphertext: ts.sealapi.Ciphertext) -> Residues:
        """The coefficients of a ciphertext of this process's own making, word by word.

        Raises:
            RuntimeError: it is of another shape.
        """
        found = ciphertext.size(), ciphertext.coeff_modulus_size(), ciphertext.poly_modulus_degree()
        if found != self.shape:
            raise RuntimeError(f"ciphertext of shape {found}, expected {self.shape}")
        n_words = int(np.prod(self.shape))
        return words_of(ciphertext, n_words).reshape(self.shape)

    def to_wire(self, residues: Residues) -> bytes:
        """The coefficients of one ciphertext."""
        return packed(residues, self.moduli)

    def from_wire(self, coefficients: bytes) -> Residues:
        """The checked coefficients.

        Raises:
            MessageRefused: wrong length, a coefficient outside the ring, or a ciphertext that
                hides nothing (all but its first polynomial are zero).
        """
        residues = unpacked(coefficients, self.shape, self.moduli, "ciphertext")
        if not residues[1:].any():
            raise MessageRefused("ciphertext that encrypts nothing: only one polynomial in it")
        return residues

    def parsed(self, context: ts.Context, coefficients: bytes) -> ts.sealapi.Ciphertext:
        """SEAL's ciphertext, from bytes that are checked before its parser sees them.

        Raises:
            MessageRefused: not a ciphertext of this shape.
        """
        return self.loaded(context, self.from_wire(coefficients)).ciphertext()[0]

    def loaded(self, context: ts.Context, residues: Residues) -> ts.CKKSVector:
        """TenSEAL's ciphertext of these residues, each below its prime.

        Raises:
            MessageRefused: TenSEAL takes them for none.
        """
        scale = 2.0**self.scale_bits
        serialised = (
            sealwire.field(1, sealwire.varint(self.poly_degree // 2))
            + sealwire.field(2, sealwire.ciphertext(self.parms_id, residues, scale))
            + sealwire.double_field(3, scale)
        )
        try:
            return ts.ckks_vector_from(context, serialised)
        except (RuntimeError, ValueError) as error:
            raise MessageRefused(f"ciphertext refused by TenSEAL: {error}") from error

    def chunks(self, payload: bytes | memoryview, count: int) -> list[bytes]:
        """The coefficients of each of `count` ciphertexts.

        Raises:
            MessageRefused: `payload` is not exactly that long.
        """
        return split_payload(payload, self.n_bytes, count)


def word_bytes(moduli: Sequence[int]) -> int:
    """Bytes that a coefficient needs on the wire."""
    return (max(moduli).bit_length() + 7) // 8


def packed(residues: Residues, moduli: Sequence[int]) -> bytes:
    """Each coefficient in `word_bytes` bytes, little-endian; axes as in `unpacked`."""
    words = np.ascontiguousarray(residues, "<u8").view(np.uint8).reshape(-1, _WORD)
    content = np.empty((len(words), word_bytes(moduli)), np.uint8)
    for byte in range(content.shape[1]):  # a column at a time: rows are too short for numpy
        content[:, byte] = words[:, byte]
    return content.tobytes()


def unpacked(
    content: bytes | memoryview, shape: tuple[int, ...], moduli: Sequence[int], what: str
) -> Residues:
    """The checked coefficients, of shape (..., primes, N).

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
    """`count` parts of `n_bytes` each; MessageRefused where it is not exactly that long."""
    if len(payload) != count * n_bytes:
        raise MessageRefused(f"payload of {len(payload)} bytes, expected {count} x {n_bytes}")
    return [bytes(payload[i : i + n_bytes]) for i in range(0, len(payload), n_bytes)]


def words_of(polynomials: ts.sealapi.Ciphertext | ts.sealapi.Plaintext, n_words: int) -> Residues:
    """The first words of a ciphertext or plaintext."""
    return np.fromiter(map(polynomials.__getitem__, range(n_words)), np.uint64, n_words)
