"""Expected calibration error: the distance of confidence from accuracy (Guo et al., ICML 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from securefl.metrics.classes import IGNORED, ONE_LOGIT, class_logits
from securefl.metrics.metric import OfSums, is_nan

if TYPE_CHECKING:
    from torch import Tensor

N_BINS = 15
"""Bins of equal width of confidence, each (low, high], as in the paper's tables."""


@dataclass(frozen=True, slots=True)
class CalibrationError(OfSums):
    """Expected calibration error, Eq. (3): Σ_b |Σ_{i in b} (right_i - confidence_i)| / n.

    The confidence is the largest softmax probability. Smaller is better.
    """

    name: ClassVar[str] = "calibration-error"
    title: ClassVar[str] = "calibration error"
    needs: ClassVar[str] = ONE_LOGIT
    about: ClassVar[str] = f"of the largest probability, in {N_BINS} bins; smaller is better"
    larger_is_better: ClassVar[bool] = False
    of_classes: ClassVar[bool] = True
    of_masks: ClassVar[bool] = True
    ignored: int = IGNORED
    """Label that is left out."""

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of right - confidence in each bin, then the samples, shape (bins + 1,)."""
        logits_NC, labels_N = class_logits(self, outputs, targets, self.ignored)
        logits_NC, labels_N = logits_NC.cpu().double(), labels_N.cpu()
        found = logits_NC.new_zeros(N_BINS + 1)
        if is_nan(logits_NC):
            return found * math.nan
        confidence_N, told_N = logits_NC.softmax(dim=1).max(dim=1)
        bin_N = (confidence_N * N_BINS).ceil().long().clamp(1, N_BINS) - 1
        found.index_add_(0, bin_N, (told_N == labels_N).double() - confidence_N)
        found[-1] = len(labels_N)
        return found

    def value(self, sums: Tensor) -> float:
        """Return the error; NaN of no samples."""
        n = float(sums[-1])
        return float(sums[:-1].abs().sum()) / n if n else math.nan
