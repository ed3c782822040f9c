"""NIfTI files, in which medical volumes come: .nii, or .nii.gz, with header and voxels in one."""

import gzip
import math
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from logging import Logger
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from securefl.data.files import read
from securefl.errors import ConfigError, DataError

_MAX_BYTES = 1 << 27
"""Most bytes of a file, also of what it unpacks to: an MRI of 256 × 256 × 256 floats has half."""
_AT_ONCE = 1 << 20
_GZIP = b"\x1f\x8b"
_FORMS = {348: ("Nifti1Image", 344, b"n+1\x00"), 540: ("Nifti2Image", 4, b"n+2\x00\r\n\x1a\n")}
"""Class of nibabel, place and mark of a single file, for each length of a header."""

# What gzip and nibabel raise on bytes that are no such file, besides nibabel's own three.
_DAMAGED = (
    OSError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    AttributeError,
    MemoryError,
    struct.error,
    zlib.error,
)


def read_nifti(path: Path) -> Float32[np.ndarray, "x y z"]:
    """Return the voxels of a volume, scaled as its header says, in the file's order of axes.

    Raises:
        ConfigError: nibabel is not installed.
        DataError: the file cannot be read, is no single NIfTI file of one volume of real numbers,
            is damaged, or has more than 128 MiB, packed or unpacked.
    """
    try:
        import nibabel
        from nibabel.filebasedimages import ImageFileError
        from nibabel.spatialimages import HeaderDataError
        from nibabel.wrapstruct import WrapStructError
    except ImportError as error:
        raise ConfigError(
            f'{path}: NIfTI files need nibabel: pip install nibabel, or "securefl[nifti]"'
        ) from error
    content = read(path, _MAX_BYTES)
    try:
        # nibabel warns of headers that are mended, which is no matter of ours.
        with warnings.catch_warnings(action="ignore"), _silent(nibabel.imageglobals.logger):
            return _voxels(nibabel, _unpacked(content))
    except (*_DAMAGED, ImageFileError, HeaderDataError, WrapStructError) as error:
        raise DataError(f"{path}: is no NIfTI volume that can be used ({error})") from error


@contextmanager
def _silent(logger: Logger) -> Iterator[None]:
    """Let a logger, which writes to stderr itself, say nothing meanwhile."""
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _unpacked(content: bytes) -> bytes:
    if not content.startswith(_GZIP):
        return content
    with gzip.open(BytesIO(content)) as file:
        unpacked = file.read(_MAX_BYTES + 1)  # no further, whatever comes
    if len(unpacked) > _MAX_BYTES:
        raise ValueError(f"unpacks to more than {_MAX_BYTES} bytes")
    return unpacked


def _voxels(nibabel: Any, content: bytes) -> Float32[np.ndarray, "x y z"]:
    image = getattr(nibabel, _kind(content)).from_bytes(content)
    header, shape = image.header, image.shape
    kind = header.get_data_dtype()
    if kind.kind not in "iuf":
        raise ValueError(f"its voxels are {kind}, and must be real numbers")
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"{' × '.join(map(str, shape))} voxels; expected three axes")
    # The reader takes as much memory as the header says, so it is held against what there is.
    if image.dataobj.offset + math.prod(shape) * kind.itemsize > len(content):
        raise ValueError(f"{' × '.join(map(str, shape))} voxels of {kind}, more than it holds")
    voxels = _scaled(image.dataobj).reshape(shape, order="F")
    if not np.isfinite(voxels).all():
        raise ValueError("a voxel is not finite")
    return voxels


def _scaled(stored: Any) -> Float32[np.ndarray, " n"]:
    """Return a file's voxels scaled, the first axis fastest; in 64 bits there are but a few."""
    raw = stored.get_unscaled().reshape(-1, order="F")
    voxels = np.empty(raw.shape, np.float32)
    for start in range(0, len(raw), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        voxels[part] = raw[part].astype(np.float64) * stored.slope + stored.inter
    return voxels


def _kind(content: bytes) -> str:
    """Return the name of nibabel's class for this file."""
    for order in ("<i", ">i"):
        (n_header,) = struct.unpack_from(order, content)
        if n_header in _FORMS:
            name, place, mark = _FORMS[n_header]
            if content[place : place + len(mark)] == mark:
                return name
            raise ValueError("its header is of NIfTI, but not of a single file (n+1 or n+2)")
    raise ValueError("it does not begin as NIfTI does")
