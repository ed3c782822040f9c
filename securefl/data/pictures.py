"""JPEG, PNG and BMP files as squares of three channels."""

import struct
import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from securefl.data.files import as_pixels, read
from securefl.errors import ConfigError, DataError

Box: TypeAlias = tuple[int, int, int, int]
"""Left, top, right and bottom side of a part of a picture, in pixels."""

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp"})
_WIDE = frozenset({"I;16", "I;16B", "I;16L", "I"})
"""Modes of grey pictures of 16 bits a pixel."""
_FORMATS = ("JPEG", "PNG", "BMP")
_MAX_BYTES = 1 << 26
_MAX_PIXELS = 1 << 25  # 33 megapixels, which decode to 100 MB
_MAX_SIDE = 1024

# What pillow's parsers raise on bytes that are no picture.
_DAMAGED = (
    OSError,
    SyntaxError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    struct.error,
    Image.DecompressionBombError,
)


def read_pictures(paths: Sequence[Path], side: int) -> Float[Tensor, "n 3 side side"]:
    """Read pictures in this order, each stretched to side × side, in [0, 1], 8 bits a pixel.

    Raises:
        DataError: a file is no picture, is damaged, or has more than 33 megapixels.
    """
    return _read_parts(paths, side, lambda width, height: (0, 0, width, height))


def read_centres(paths: Sequence[Path], side: int) -> Float[Tensor, "n 3 side side"]:
    """Read the largest central square of pictures, resized as `read_pictures`; raises as it."""
    return _read_parts(paths, side, _central_square)


def _read_parts(
    paths: Sequence[Path], side: int, part_of: Callable[[int, int], Box]
) -> Float[Tensor, "n 3 side side"]:
    pictures = np.empty((len(paths), side, side, 3), dtype=np.uint8)
    for path, picture in zip(paths, pictures, strict=True):
        picture[:] = _read(path, lambda content: _decoded(content, side, part_of))
    return as_pixels(pictures.transpose(0, 3, 1, 2))


def _central_square(width: int, height: int) -> Box:
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def read_grey(path: Path, width: int, height: int) -> UInt8[np.ndarray, "height width"]:
    """Read a picture of just this size in pixels as grey values, 8 bits a pixel.

    Raises:
        DataError: the file is no picture, is damaged, or has another size.
    """
    return _read(path, lambda content: _grey(content, width, height))


def check_side(side: int) -> None:
    """Refuse a size that no picture can be given.

    Raises:
        ConfigError: not a whole number in 1..1024.
    """
    if side not in range(1, _MAX_SIDE + 1):
        raise ConfigError(f"side = {side}: must be a whole number of pixels in 1..{_MAX_SIDE}")


def _read(
    path: Path, decode: Callable[[bytes], UInt8[np.ndarray, "..."]]
) -> UInt8[np.ndarray, "..."]:
    content = read(path, _MAX_BYTES)
    try:
        # Pillow warns of sizes that are checked here, and of metadata that are not used.
        with warnings.catch_warnings(action="ignore"):
            return decode(content)
    except UnidentifiedImageError as error:
        raise DataError(f"{path}: is no picture that can be used (no JPEG, PNG or BMP)") from error
    except _DAMAGED as error:
        raise DataError(f"{path}: is no picture that can be used ({error})") from error


def _decoded(
    content: bytes, side: int, part_of: Callable[[int, int], Box]
) -> UInt8[np.ndarray, "side side 3"]:
    # Opening reads only the header; pixels are decoded, and memory taken, by convert().
    with Image.open(BytesIO(content), formats=_FORMATS) as image:
        if image.width * image.height > _MAX_PIXELS:
            raise ValueError(f"{image.width} × {image.height} pixels, at most {_MAX_PIXELS}")
        part = image.crop(part_of(image.width, image.height))
        if part.mode in _WIDE:  # of which convert("RGB") makes white
            grey = part.convert("F").resize((side, side), Image.Resampling.BILINEAR)
            pixels = np.rint(np.asarray(grey) * (255 / 65535)).astype(np.uint8)
            return np.stack([pixels] * 3, axis=-1)
        return np.asarray(part.convert("RGB").resize((side, side), Image.Resampling.BILINEAR))


def _grey(content: bytes, width: int, height: int) -> UInt8[np.ndarray, "height width"]:
    with Image.open(BytesIO(content), formats=_FORMATS) as image:
        if image.size != (width, height):
            raise ValueError(f"{image.width} × {image.height} pixels; expected {width} × {height}")
        return np.asarray(image.convert("L"))
