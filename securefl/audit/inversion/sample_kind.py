"""Kinds of samples: images in 0..1, and rows of readings; how near a rebuilt one is, and in words.

Axes: n samples, D features of one, N mini-batches.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped, unused-ignore]
from scipy.stats import binom, t  # type: ignore[import-untyped, unused-ignore]
from skimage.metrics import structural_similarity
from torch import Tensor

from securefl.audit.statistics import Interval
from securefl.audit.thresholds import CLEAR_ERROR, CLEAR_PSNR, CONFIDENCE, SLIGHT_ERROR, SLIGHT_PSNR
from securefl.errors import DataError

BEST_PSNR = 60.0
"""PSNR in dB beyond which images count as alike: rounding to 8 bits alone costs 58.9 dB."""
SSIM_WINDOW = 7
"""Pixels on a side, of scikit-image's uniform window; smaller where the image is."""
SMALLEST_SIDE = 8
"""Height and width below which flat numbers in 0..1 are taken for readings, not for an image."""
BULK = 4.0
"""Standard deviations that most readings of a column lie within: as long as pixels' 0..1."""
MARGIN = 0.5
"""Share of a column's public range that a search may leave it by, on either side."""

OUTSIDE = 0.1
"""Share of a feature's range by which a sample that is read off may leave it; beyond, it failed."""

Values = NDArray[np.float64]
"""Samples of shape (n, …)."""
Scores = NDArray[np.float64]
"""Nearness of each sample, of any shape."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Range of each feature, which everybody knows, and the unit that a search goes by."""

    low_D: Tensor
    high_D: Tensor
    unit_D: Tensor


def inside(x_BD: Tensor, ranges: Ranges) -> Tensor:
    """Return of each sample whether all its features are in range, or nearly; shape (B,)."""
    room_D = OUTSIDE * (ranges.high_D - ranges.low_D)
    return ((x_BD > ranges.low_D - room_D) & (x_BD < ranges.high_D + room_D)).all(1)


class SampleKind(Protocol):
    """Kind of samples that are attacked."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in which a sample is compared."""

    @property
    def noun(self) -> str:
        """Plural of a sample's name."""

    @property
    def measure(self) -> str:
        """Name of what says how near a rebuilt sample is."""

    @property
    def unit(self) -> Literal["dB", "σ"]:
        """Unit of the measure."""

    @property
    def sign(self) -> Literal[1, -1]:
        """1 where a larger measure is nearer, -1 where a smaller one is."""

    @property
    def clear(self) -> float:
        """Value of the measure from which a sample counts as recovered."""

    @property
    def slight(self) -> float:
        """Gain over the guess up to which, if no sample is recovered, it is next to nothing."""

    @property
    def bound(self) -> str:
        """Words for the bound `clear`."""

    @property
    def middle(self) -> str:
        """Name of the average that intervals are around."""

    @property
    def note(self) -> str:
        """Explanation of the measure and of its intervals."""

    def ranges(self) -> Ranges:
        """Return the range and unit of each feature."""

    def measured(self, originals: Values, rebuilt: Values) -> Scores:
        """Return the measure of each sample, shape (n,)."""

    def alike(self, originals: Values, rebuilt: Values) -> Scores | None:
        """Return the structural similarity of each image; None where samples are no images."""

    def interval(self, values: ArrayLike) -> Interval:
        """Return the average over mini-batches, with its 95 % interval."""

    def shown(self, found: Interval) -> str:
        """Return a value with its interval, for a table."""

    def told(self, value: float) -> str:
        """Return the measure's value as people read it, with its unit."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class ImageKind:
    """Images in 0..1, compared by their peak signal-to-noise ratio."""

    shape: tuple[int, ...]
    """Shape (height, width) or (channels, height, width)."""
    noun: str = "images"
    measure: str = "PSNR"
    unit: Literal["dB"] = "dB"
    sign: Literal[1] = 1
    clear: float = CLEAR_PSNR
    slight: float = SLIGHT_PSNR
    bound: str = f"of {CLEAR_PSNR:.0f} dB or more"
    middle: str = "mean"
    note: str = (
        "PSNR ends at 60 dB, beyond which pixels are the same in 8 bits. Intervals are Student's, "
        "over mini-batches, or over the images of a single one."
    )

    def ranges(self) -> Ranges:
        """Return 0..1 for each pixel."""
        one_D = torch.ones(math.prod(self.shape))
        return Ranges(torch.zeros_like(one_D), one_D, one_D)

    def measured(self, originals: Values, rebuilt: Values) -> Scores:
        """Return the PSNR of each image in dB."""
        return psnr(originals, rebuilt)

    def alike(self, originals: Values, rebuilt: Values) -> Scores:
        """Return the structural similarity of each image."""
        return ssim(originals, rebuilt)

    def interval(self, values: ArrayLike) -> Interval:
        """Return the mean with Student's interval."""
        return mean_interval(values)

    def shown(self, found: Interval) -> str:
        """Return a value with its interval."""
        return f"{found.value:.1f} ({found.low:.1f} to {found.high:.1f})"

    def told(self, value: float) -> str:
        """Return decibels."""
        return f"{value:.1f} dB"


@final
@dataclass(frozen=True, slots=True, eq=False)
class ReadingKind:
    """Rows of readings, compared in standard deviations of each column among public rows."""

    low_D: Tensor
    high_D: Tensor
    deviation_D: Tensor
    """Standard deviations; 0 where all public rows have the same, which tells nothing of a row."""
    noun: str = "rows"
    measure: str = "error"
    unit: Literal["σ"] = "σ"
    sign: Literal[-1] = -1
    clear: float = CLEAR_ERROR
    slight: float = SLIGHT_ERROR
    bound: str = f"of {CLEAR_ERROR:g} σ or less"
    middle: str = "median"
    note: str = (
        "A row is one sample's readings, such as a patient's. Its error is |x̂ - x| in standard "
        "deviations σ of each column among public rows, mean over the columns that vary there; "
        "the mean of public rows has about 0.8 σ. Shown are medians over mini-batches with the "
        "interval of the sign test, or over the rows of a single one; of fewer than six it is the "
        "range."
    )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a flat row; a series in time is one, too."""
        return tuple(self.low_D.shape)

    @classmethod
    def of(cls, public: Tensor) -> "ReadingKind":
        """Take ranges and deviations from public rows.

        Raises:
            DataError: no column of theirs varies.
        """
        x_nD = public.detach().flatten(1).cpu()
        deviation_D = x_nD.double().std(0, correction=0)
        deviation_D = torch.where(deviation_D > 1e-9 * x_nD.abs().amax(0), deviation_D, 0.0)
        if not deviation_D.any():
            raise DataError("all public rows are alike, so there is no unit to tell an error in")
        return cls(x_nD.amin(0), x_nD.amax(0), deviation_D)

    def ranges(self) -> Ranges:
        """Return the public rows' range with a margin, and the bulk of each column as its unit."""
        room_D = MARGIN * (self.high_D - self.low_D)
        bulk_D = torch.where(self.deviation_D > 0, BULK * self.deviation_D, 1.0)
        return Ranges(self.low_D - room_D, self.high_D + room_D, bulk_D.to(self.low_D.dtype))

    def measured(self, originals: Values, rebuilt: Values) -> Scores:
        """Return the mean error of each row over the columns that vary, in their deviations."""
        found: Scores = self.errors(originals, rebuilt).mean(1)
        return found

    def alike(self, _originals: Values, _rebuilt: Values) -> None:
        """Return None: rows are no images."""

    def errors(self, originals: Values, rebuilt: Values) -> Scores:
        """Return |x̂ - x| / σ of each reading of the columns that vary, shape (n, columns)."""
        deviation_D = self.deviation_D.numpy()
        varies_D = deviation_D > 0
        away_nD = np.abs(originals - rebuilt).reshape(len(originals), -1)
        found: Scores = away_nD[:, varies_D] / deviation_D[varies_D]
        return found

    def interval(self, values: ArrayLike) -> Interval:
        """Return the median with the interval of order statistics."""
        return median_interval(values)

    def shown(self, found: Interval) -> str:
        """Return a value with its interval."""
        return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"

    def told(self, value: float) -> str:
        """Return standard deviations."""
        return f"{value:.2g} σ" if value >= 1e-3 else "less than 0.001 σ"


def kind_of(client: Tensor, public: Tensor) -> SampleKind:
    """Return what samples are, by their shape and range.

    Images are in 0..1, with channels, height and width; or flat, and a square of 8 × 8 at least.
    All other floats are readings, a series in time among them.

    Raises:
        DataError: whole numbers, such as of words.
    """
    if not (client.is_floating_point() and public.is_floating_point()):
        raise DataError(
            "samples are whole numbers, such as of words, which have no gradient that a search "
            "could follow. Words are not rebuilt here, which says nothing for them: the gradient "
            "of an embedding is zero but for the words that occurred, so whoever reads a single "
            "update reads which these are"
        )
    within = all(float(z.min()) >= 0 and float(z.max()) <= 1 for z in (client, public))
    shape = client.shape[1:]
    square = len(shape) == 1 and round(shape[0] ** 0.5) ** 2 == shape[0] >= SMALLEST_SIDE**2
    if within and (square or len(shape) == 3):
        return ImageKind(_picture_shape(shape))
    return ReadingKind.of(public)


def _picture_shape(shape: torch.Size) -> tuple[int, ...]:
    """Return (height, width) or (channels, height, width); a flat image is a square."""
    if len(shape) == 3:
        return tuple(shape[1:] if shape[0] == 1 else shape)
    side = round(shape[0] ** 0.5)
    return side, side


def psnr(originals: Values, rebuilt: Values) -> Scores:
    """Return 10 log10(1 / mean squared error) of each image, in dB, at most BEST_PSNR."""
    error_n = np.square(originals - rebuilt).reshape(len(originals), -1).mean(1)
    found: Scores = -10 * np.log10(np.maximum(error_n, 10 ** (-BEST_PSNR / 10)))
    return found


def ssim(originals: Values, rebuilt: Values) -> Scores:
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


def matched(originals: Values, rebuilt: Values, unit_D: ArrayLike = 1.0) -> Values:
    """Return `rebuilt` in the order that has the least squared error: a gradient has none.

    Errors are in these units.
    """
    a, b = (x.reshape(len(x), -1) / np.asarray(unit_D) for x in (originals, rebuilt))
    cost = np.square(a).sum(1)[:, None] + np.square(b).sum(1) - 2 * a @ b.T
    found: Values = rebuilt[linear_sum_assignment(cost)[1]]
    return found


def mean_interval(values: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Return the mean with Student's t interval.

    Raises:
        DataError: fewer than two values, or one that is not finite.
    """
    found = _finite(values)
    k, mean = len(found), float(found.mean())
    margin = float(t.ppf((1 + confidence) / 2, k - 1)) * float(found.std(ddof=1)) / k**0.5
    return Interval(mean, mean - margin, mean + margin)


def median_interval(values: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Return the median with the interval of the sign test, whatever the values' distribution.

    It is between the k-th smallest and the k-th largest, for the largest k with a coverage of
    1 - 2 P[Bin(n, 1/2) < k] that is enough. Of fewer than six values none is: theirs is the range.

    Raises:
        DataError: fewer than two values, or one that is not finite.
    """
    found = np.sort(_finite(values))
    n = len(found)
    k = max(1, int(binom.ppf((1 - confidence) / 2, n, 0.5)))
    return Interval(float(np.median(found)), float(found[k - 1]), float(found[n - k]))


def _finite(values: ArrayLike) -> Scores:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or len(found) < 2 or not np.isfinite(found).all():
        raise DataError(f"values of shape {found.shape}: must be two or more finite numbers")
    return found
