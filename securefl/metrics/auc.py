"""Area under the ROC curve: how often a sample of a class has a larger output than one of others.

One client's is exact. Over all clients it follows from histograms of outputs, of each class and of
the others: pairs in one bin count half, as ties do, and the error is at most half of their share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from securefl.metrics.classes import CLASSES, IGNORED, are_classes, class_logits, wrong_form
from securefl.metrics.metric import Metric, PooledBy, PooledScore, is_nan, zeros_and_ones

if TYPE_CHECKING:
    from torch import Tensor

N_BINS = 512
"""Bins of a histogram: of equal widths in z / (1 + |z|), z the logit of the class's probability.

Near z = 0 a bin is 0.004 wide, at z = ±10 it is 0.5.
"""
_LARGEST = 1e6
"""Logit that is in the last bin anyway."""


@dataclass(frozen=True, slots=True)
class Auc(Metric):
    """Area under the ROC curve; of three classes or more, or several labels, the mean over each.

    A class against all others, by its softmax probability. Classes without a sample, or of which
    every sample is, do not count; where none counts it is NaN.
    """

    name: ClassVar[str] = "auc"
    title: ClassVar[str] = "AUC"
    needs: ClassVar[str] = f"{CLASSES}; or a logit for each label, 0 or 1"
    about: ClassVar[str] = "area under the ROC curve; the mean over classes, each against all"
    pooling: ClassVar[PooledBy] = PooledBy.HISTOGRAM
    of_classes: ClassVar[bool] = True
    of_masks: ClassVar[bool] = True
    ignored: int = IGNORED
    """Label that is left out."""

    def of(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the exact value on these samples: see `Metric.of`."""
        scores_NT, positive_NT, _ = self._columns(outputs, targets)
        if is_nan(scores_NT):
            return math.nan
        columns = zip(scores_NT.unbind(1), positive_NT.unbind(1), strict=True)
        return _mean([_area(scores_N, positive_N) for scores_N, positive_N in columns])

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the histograms: of each class, then of its others, shape (classes x 2 x bins,)."""
        scores_NT, positive_NT, are_logits = self._columns(outputs, targets)
        if is_nan(scores_NT):
            return scores_NT.new_full((scores_NT.shape[1] * 2 * N_BINS,), math.nan)
        logits_NT = scores_NT if are_logits else scores_NT.logit()
        logits_NT = logits_NT.clamp(-_LARGEST, _LARGEST)
        place_NT = (logits_NT / (1 + logits_NT.abs()) + 1) * (N_BINS / 2)
        bin_NT = place_NT.long().clamp(0, N_BINS - 1)
        # Column and side before the bin, so that one count gives all histograms.
        side_NT = 2 * bin_NT.new_tensor(range(bin_NT.shape[1])) + (~positive_NT).long()
        slots = (side_NT * N_BINS + bin_NT).reshape(-1)
        return slots.bincount(minlength=bin_NT.shape[1] * 2 * N_BINS).double()

    def pooled(self, sums: Tensor) -> PooledScore:
        """Return the estimate on all clients' samples, and the bound of its error."""
        of_classes, of_others = sums.reshape(-1, 2, N_BINS).unbind(1)
        pairs_T = of_classes.sum(dim=1) * of_others.sum(dim=1)
        below = of_others.cumsum(dim=1) - of_others
        tied_T = (of_classes * of_others).sum(dim=1) / pairs_T / 2
        areas_T = (of_classes * below).sum(dim=1) / pairs_T + tied_T
        within = _mean(tied_T.tolist())
        return PooledScore(
            _mean(areas_T.tolist()), self.pooling, 0.0 if math.isnan(within) else within
        )

    def _columns(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, bool]:
        """Return scores and whether a sample is of the class, each (N, T), on the CPU.

        Then whether the scores are logits; of three classes or more they are probabilities.
        """
        if outputs.shape == targets.shape:
            if not zeros_and_ones(targets):
                raise wrong_form(self.name, self.needs, outputs, targets)
            logits_NT, labels_NT = (v.reshape(len(v), -1).cpu() for v in (outputs, targets))
            return logits_NT.double(), labels_NT > 0, True
        if not are_classes(outputs, targets):
            raise wrong_form(self.name, self.needs, outputs, targets)
        logits_NC, labels_N = class_logits(self, outputs, targets, self.ignored)
        logits_NC, labels_N = logits_NC.cpu().double(), labels_N.cpu()
        if logits_NC.shape[1] == 2:  # the two classes' areas are the same
            return logits_NC[:, 1:] - logits_NC[:, :1], labels_N[:, None] == 1, True
        classes_T = labels_N.new_tensor(range(logits_NC.shape[1]))
        return logits_NC.softmax(dim=1), labels_N[:, None] == classes_T, False


def _area(scores_N: Tensor, positive_N: Tensor) -> float:
    """Return the share of pairs in order, ties as half (Mann and Whitney's U); NaN of no pairs."""
    n, n_positive = len(positive_N), int(positive_N.sum())
    if n_positive in (0, n):
        return math.nan
    _, place_N, counts = scores_N.unique(return_inverse=True, return_counts=True)
    ranks = counts.cumsum(0) - (counts - 1) / 2  # mean of the ranks that equal values have
    u = float(ranks[place_N][positive_N].double().sum()) - n_positive * (n_positive + 1) / 2
    return u / (n_positive * (n - n_positive))


def _mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
