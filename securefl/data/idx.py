"""IDX files of unsigned bytes, the format of MNIST and its kin, packed (.gz) or not.

Two zero bytes, the type (8: unsigned byte), the number of axes, each axis as a big-endian 32-bit
number, then the values.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from io import BufferedIOBase
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from securefl.data.files import n_bytes_of
from securefl.errors import DataError

_MAX_BYTES = 1 << 30  # the largest of these, EMNIST's training images by class, has half of it
_DEFLATE_RATIO = 1032  # no byte of a .gz file unpacks to more than this
_CHUNK_BYTES = 1 << 20


def read_idx(
    path: Path, sample_shape: tuple[int, ...], sha256: str | None = None
) -> UInt8[np.ndarray, "n ..."]:
    """The samples of one file, unpacked if its name ends in .gz.

    Args:
        path: the file.
        sample_shape: of one sample.
        sha256: of the unpacked file, where it is known.

    Raises:
        DataError: not such a file, samples of another shape, a length other than its header's, or
            another content than the known one.
    """
    n_bytes = n_bytes_of(path, _MAX_BYTES)
    packed = path.suffix == ".gz"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            header, shape = _header(file, sample_shape, path)
            possible = n_bytes * _DEFLATE_RATIO if packed else n_bytes
            values = _values(file, math.prod(shape), min(possible, _MAX_BYTES), path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); get the file again") from error
    if sha256 is not None:
        _check_content(header, values, sha256, path)
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


def _check_content(header: bytes, values: bytes, sha256: str, path: Path) -> None:
    digest = hashlib.sha256(header)
    digest.update(values)
    if digest.hexdigest() != sha256:
        raise DataError(
            f"{path}: SHA-256 of its unpacked content is {digest.hexdigest()}, the official file "
            f"has {sha256}; get the file again"
        )


def _header(
    file: BufferedIOBase, sample_shape: tuple[int, ...], path: Path
) -> tuple[bytes, tuple[int, ...]]:
    """The header's bytes, and the shape that it says."""
    n_axes = 1 + len(sample_shape)
    magic = bytes((0, 0, 8, n_axes))
    header = _at_most(file, 4 + 4 * n_axes)
    if header[:4] != magic:
        raise DataError(
            f"{path}: starts with {header[:4].hex() or 'nothing'}, "
            f"an IDX file of bytes with {n_axes} axes starts with {magic.hex()}"
        )
    if len(header) < 4 + 4 * n_axes:
        raise DataError(f"{path}: ends within its header; get the file again")
    shape = struct.unpack(f">{n_axes}I", header[4:])
    if shape[1:] != sample_shape:
        raise DataError(f"{path}: samples of shape {shape[1:]}, expected {sample_shape}")
    return header, shape


def _values(file: BufferedIOBase, n_values: int, max_bytes: int, path: Path) -> bytes:
    if n_values > max_bytes:
        raise DataError(
            f"{path}: its header speaks of {n_values} values, more than the file can hold; "
            "get the file again"
        )
    values = _at_most(file, n_values + 1)
    if len(values) != n_values:
        relation = "fewer" if len(values) < n_values else "more"
        raise DataError(f"{path}: has {relation} than the {n_values} values that its header says")
    return values


def _at_most(file: BufferedIOBase, n_bytes: int) -> bytes:
    """Up to `n_bytes`, in pieces: memory grows with what comes, not with what was announced."""
    pieces = bytearray()
    while len(pieces) < n_bytes and (piece := file.read(min(_CHUNK_BYTES, n_bytes - len(pieces)))):
        pieces += piece
    return bytes(pieces)
