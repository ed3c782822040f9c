"""How close rebuilt images are to the originals: PSNR, SSIM, and means with intervals."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

# These have no type information of their own.
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped, unused-ignore]
from scipy.stats import t  # type: ignore[import-untyped, unused-ignore]
from skimage.metrics import structural_similarity

from securefl.audit.statistics import CONFIDENCE, Interval
from securefl.errors import DataError

BEST_PSNR = 60.0
"""dB at which PSNR ends: rounding pixels to 8 bits alone costs 58.9 dB, so all above is one."""
SSIM_WINDOW = 7
"""Pixels on a side, of scikit-image's uniform window; smaller where the image is."""

Images = NDArray[np.float64]
"""Of shape (n, height, width) or (n, channels, height, width), each pixel in 0..1."""


def psnr(originals: Images, rebuilt: Images) -> NDArray[np.float64]:
    """10 log10(1 / mean squared error) of each image, in dB, at most BEST_PSNR."""
    error_n = np.square(originals - rebuilt).reshape(len(originals), -1).mean(1)
    found: NDArray[np.float64] = -10 * np.log10(np.maximum(error_n, 10 ** (-BEST_PSNR / 10)))
    return found


def ssim(originals: Images, rebuilt: Images) -> NDArray[np.float64]:
    """The mean structural similarity of each image (Wang et al. 2004), in -1..1.

    Raises:
        DataError: images of less than 3 × 3 pixels.
    """
    window = min(SSIM_WINDOW, *originals.shape[-2:])
    window -= 1 - window % 2
    if window < 3:
        raise DataError(f"images of {originals.shape[-2:]} pixels: SSIM needs 3 × 3 at least")
    channels = 0 if originals.ndim == 4 else None
    return np.array(
        [
            structural_similarity(a, b, win_size=window, data_range=1.0, channel_axis=channels)
            for a, b in zip(originals, rebuilt, strict=True)
        ]
    )


def matched(originals: Images, rebuilt: Images) -> Images:
    """`rebuilt` in the order that has the least squared error: a batch's gradient has none."""
    a, b = originals.reshape(len(originals), -1), rebuilt.reshape(len(rebuilt), -1)
    cost = np.square(a[:, None] - b[None]).mean(2)
    found: Images = rebuilt[linear_sum_assignment(cost)[1]]
    return found


def mean_interval(values: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """The mean with Student's t interval.

    Raises:
        DataError: fewer than two values, or one that is not finite.
    """
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or len(found) < 2 or not np.isfinite(found).all():
        raise DataError(f"values of shape {found.shape}: must be two or more finite numbers")
    k, mean = len(found), float(found.mean())
    margin = float(t.ppf((1 + confidence) / 2, k - 1)) * float(found.std(ddof=1)) / k**0.5
    return Interval(mean, mean - margin, mean + margin)
