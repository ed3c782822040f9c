"""Images as a corruption takes and gives them: a batch, and the length of a pixel in it."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from securefl.errors import DataError

Images: TypeAlias = Float[np.ndarray, "n c h w"]
# (images, severity 1..5, rng) -> images that may leave [0, 1]; `corrupt` checks and clips.
Distortion: TypeAlias = Callable[[Images, int, np.random.Generator], Images]

MIN_SIDE = 8
REFERENCE_SIDE = 32  # CIFAR-10-C's images, whose lengths the severities are given in


def check_images(images: np.ndarray) -> None:
    """Refuse what is no batch of images.

    Raises:
        DataError: not (n, c, h, w) floats, a side below 8, or values outside [0, 1].
    """
    if images.ndim != 4 or not np.issubdtype(images.dtype, np.floating):
        raise DataError(
            f"{images.dtype} values of shape {images.shape} are no images to corrupt: "
            "pass floats of shape (n, c, h, w)"
        )
    if min(images.shape[2:]) < MIN_SIDE or images.shape[1] < 1:
        raise DataError(
            f"images of shape {images.shape}: need a channel and sides of at least {MIN_SIDE}"
        )
    # NaN compares false, so it is refused with the rest.
    if images.size and not (images.min() >= 0 and images.max() <= 1):
        raise DataError("images hold values outside [0, 1]; divide 8-bit pixels by 255")


def pixels(images: Images, length: float) -> float:
    """Return `length` in pixels of these images, where it is given for images of 32 × 32.

    Larger images stretch it in proportion. Smaller ones do not shrink it: below one pixel a blur
    would leave an image of 8 × 8 as it is.
    """
    shorter_side: int = min(images.shape[2:])
    return length * max(1.0, shorter_side / REFERENCE_SIDE)
