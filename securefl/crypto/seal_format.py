"""Serialised forms of SEAL and TenSEAL: written for what they only let one load, and read.

Written uncompressed, in the layout of SEAL 4.3 and TenSEAL 0.3.18, whose parsers check what is
written. What is read is of this process's own making.
"""

import struct
from collections.abc import Sequence

import numpy as np
import zstandard
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_HEADER = struct.Struct("<HBBBBHQ")
_MAGIC, _MAJOR, _MINOR, _UNCOMPRESSED, _ZSTANDARD = 0xA15E, 4, 3, 0, 2
_COMPRESSION = 5
"""Place of a header's byte that says how the rest is packed."""
_CIPHERTEXT = struct.Struct("<32sBQQQdQ")
_PLAINTEXT = struct.Struct("<32sQd")
_COUNT = struct.Struct("<Q")
_PARAMETERS = struct.Struct("<BQQ")
_CKKS = 2
_PARMS_ID = struct.Struct("<4Q")


def ciphertext(
    parms_id: Sequence[int], residues: Words, scale: float, *, transformed: bool = True
) -> bytes:
    """Write SEAL's ciphertext, (polynomials, primes, N), most often in the transform's form."""
    n_polynomials, n_primes, poly_degree = residues.shape
    members = _CIPHERTEXT.pack(
        _PARMS_ID.pack(*parms_id),
        transformed,
        n_polynomials,
        poly_degree,
        n_primes,
        scale,
        1,  # BGV's correction factor
    )
    return _sealed(members + _array(residues))


def own_content(sealed: bytes) -> bytes:
    """Return what this process's own SEAL has written, without its header and its packing."""
    compression, content = sealed[_COMPRESSION], sealed[_HEADER.size :]
    if compression == _ZSTANDARD:
        # SEAL writes the frame as a stream, which does not say how large it is.
        content = zstandard.ZstdDecompressor().decompressobj().decompress(content)
    return content


def parameters(poly_degree: int, primes: Sequence[int]) -> bytes:
    """Write SEAL's parameters of CKKS."""
    members = _PARAMETERS.pack(_CKKS, poly_degree, len(primes))
    no_plain_modulus = 0
    moduli = (*primes, no_plain_modulus)
    return _sealed(members + b"".join(_sealed(_COUNT.pack(modulus)) for modulus in moduli))


def secret_key(parms_id: Sequence[int], residues: Words) -> bytes:
    """Write what SEAL takes for a secret key: shape (primes, N), in the transform's form."""
    return _sealed(
        _PLAINTEXT.pack(_PARMS_ID.pack(*parms_id), residues.size, 1.0) + _array(residues)
    )


def field(number: int, content: bytes) -> bytes:
    """Write a field of a TenSEAL message.

    Appended to a message, it adds to what is there: so its format, protobuf, rules.
    """
    # Protobuf's tag: the field's number, and wire type 2, bytes with their length before them.
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def double_field(number: int, value: float) -> bytes:
    """Write a field of a message that is a number."""
    # Wire type 1: eight bytes.
    return bytes([number << 3 | 1]) + struct.pack("<d", value)


def varint(number: int) -> bytes:
    """Write a whole number from 0, seven bits to the byte."""
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def _array(residues: Words) -> bytes:
    words = np.ascontiguousarray(residues, "<u8").tobytes()
    return _sealed(_COUNT.pack(residues.size) + words)


def _sealed(content: bytes) -> bytes:
    size = _HEADER.size + len(content)
    return _HEADER.pack(_MAGIC, _HEADER.size, _MAJOR, _MINOR, _UNCOMPRESSED, 0, size) + content
