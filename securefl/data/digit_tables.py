"""Tables of digits, as packages have them: a line for each image, its pixels and its class."""

import io
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int64
from torch import Tensor

from securefl.data.files import as_labels, as_pixels, check_content
from securefl.errors import DataError

N_CLASSES = 10


def parse_digits(
    content: bytes,
    path: Path,
    shape: tuple[int, int, int],
    *,
    most: int,
    sha256: str,
    head: int = 0,
) -> tuple[Float[Tensor, "n 1 h w"], Int64[Tensor, " n"]]:
    """Return images in 0..1 and their classes, in the table's order.

    Args:
        content: lines of whole numbers with commas between them.
        path: the file that they are of, for messages.
        shape: number of images, height and width.
        most: a pixel's largest value, which becomes 1.
        sha256: digest of all pixels and labels as 16-bit numbers, line by line.
        head: lines before the first image.

    Raises:
        DataError: it is no such table, or another one.
    """
    n, height, width = shape
    table = b"\n".join(content.split(b"\n")[head:])
    if not table.strip():
        raise DataError(f"{path}: holds nothing; install the package anew")
    try:
        text = io.StringIO(table.decode("ascii"))
        rows = np.loadtxt(text, dtype=np.int64, delimiter=",", ndmin=2, comments=None)
    except ValueError as error:
        raise DataError(f"{path}: is no table of whole numbers ({error})") from error
    if rows.shape != (n, height * width + 1):
        raise DataError(
            f"{path}: {rows.shape[0]} lines of {rows.shape[1]} numbers; expected {n} of "
            f"{height * width + 1}"
        )
    pixels, labels = rows[:, :-1], rows[:, -1]
    if not (pixels.min() >= 0 and pixels.max() <= most):
        raise DataError(f"{path}: pixels from {pixels.min()} to {pixels.max()}; expected 0..{most}")
    check_content(path, rows.astype("<u2").tobytes(), sha256)
    images = pixels.astype(np.uint8).reshape(-1, 1, height, width)
    return as_pixels(images, most), as_labels(labels, N_CLASSES, path)
