"""Hidden statistics and images: how close rebuilt ones are, with the statistics and without."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped, unused-ignore]
from scipy.stats import t  # type: ignore[import-untyped, unused-ignore]
from skimage.metrics import structural_similarity

from securefl.audit.statistics import CONFIDENCE, Interval
from securefl.errors import DataError

BEST_PSNR = 60.0
"""PSNR in dB beyond which images count as alike: rounding to 8 bits alone costs 58.9 dB."""
SSIM_WINDOW = 7
"""Pixels on a side, of scikit-image's uniform window; smaller where the image is."""

Images = NDArray[np.float64]
"""Images of shape (n, height, width) or (n, channels, height, width), each pixel in 0..1."""


def psnr(originals: Images, rebuilt: Images) -> NDArray[np.float64]:
    """Return 10 log10(1 / mean squared error) of each image, in dB, at most BEST_PSNR."""
    error_n = np.square(originals - rebuilt).reshape(len(originals), -1).mean(1)
    found: NDArray[np.float64] = -10 * np.log10(np.maximum(error_n, 10 ** (-BEST_PSNR / 10)))
    return found


def ssim(originals: Images, rebuilt: Images) -> NDArray[np.float64]:
    """Return the mean structural similarity of each image (Wang et al. 2004), in -1..1.

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
    """Return `rebuilt` in the order that has the least squared error: a gradient has none."""
    a, b = originals.reshape(len(originals), -1), rebuilt.reshape(len(rebuilt), -1)
    cost = np.square(a[:, None] - b[None]).mean(2)
    found: Images = rebuilt[linear_sum_assignment(cost)[1]]
    return found


def mean_interval(values: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Return the mean with Student's t interval.

    Raises:
        DataError: fewer than two values, or one that is not finite.
    """
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or len(found) < 2 or not np.isfinite(found).all():
        raise DataError(f"values of shape {found.shape}: must be two or more finite numbers")
    k, mean = len(found), float(found.mean())
    margin = float(t.ppf((1 + confidence) / 2, k - 1)) * float(found.std(ddof=1)) / k**0.5
    return Interval(mean, mean - margin, mean + margin)


class Attacker(StrEnum):
    """Attackers by what they know of BN's statistics. All have all else in common."""

    EXACT = "exact"
    """Those that normalised the mini-batch, which are known."""
    POPULATION = "population"
    """The model's running statistics."""
    NONE = "none"
    """μ = 0 and σ² = 1, as in a fresh layer."""
    PUBLIC = "public"
    """Those that public images have in this model."""
    JOINT = "joint"
    """Variables beside the pixels (or a function of these: BATCH)."""
    DERIVED = "derived"
    """Those that the gradient tells (`recovered_statistics`); the rest is left free."""
    FIRST_LAYER = "first layer"
    """None: the inputs are read off the first linear layer (`inputs_of`)."""


class Hidden(StrEnum):
    """Part of the messages that a run's encryption keeps from who reads them."""

    NOTHING = "nothing"
    STATISTICS = "BN statistics"
    UPDATES = "the updates of single clients"


@final
@dataclass(frozen=True, slots=True)
class HiddenStatistics:
    """Comparison of attackers' PSNR, in dB, on one target at one size of mini-batches."""

    best: Attacker
    """Attacker of the highest mean among those who do not know the statistics."""
    exact_gain: Interval
    """Gain of who knows them over the mean public image of the class."""
    adaptive_gain: Interval
    """Gain of the surest of the others: the one whose interval begins highest."""
    difference: Interval
    """Difference of exact and `best`."""
    least: Interval
    """Difference of exact and the attacker from whom it differs least for certain."""

    @property
    def protects(self) -> bool:
        """True where hiding the statistics costs every other attacker something for certain."""
        return self.least.low > 0

    @property
    def rebuilt(self) -> bool:
        """True where somebody rebuilds images for certain better than a guess from the label."""
        return max(self.exact_gain.low, self.adaptive_gain.low) > 0


def compared(
    baseline_NB: NDArray[np.float64], by: Mapping[Attacker, NDArray[np.float64]]
) -> HiddenStatistics:
    """Compare attackers' PSNR; `by` has EXACT and one other at least."""
    others = [name for name in by if name is not Attacker.EXACT]
    best = max(others, key=lambda name: float(by[name].mean()))
    gains = {name: mean_interval(units(one - baseline_NB)) for name, one in by.items()}
    behind = {name: mean_interval(units(by[Attacker.EXACT] - by[name])) for name in others}
    return HiddenStatistics(
        best,
        gains[Attacker.EXACT],
        max((gains[name] for name in others), key=lambda found: found.low),
        behind[best],
        min(behind.values(), key=lambda found: found.low),
    )


def units(values_NB: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what an interval is over: mini-batches, since images of one share its gradient.

    Of a single mini-batch, its images.
    """
    found: NDArray[np.float64] = values_NB.mean(1) if len(values_NB) > 1 else values_NB[0]
    return found
