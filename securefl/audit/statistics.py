"""Statistics of attacks: distances of distributions, ROC with intervals, and p-values."""

from collections.abc import Callable
from dataclasses import dataclass
from math import log, sqrt
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import hypergeom, mannwhitneyu, norm  # type: ignore[import-untyped, unused-ignore]
from sklearn.metrics import roc_curve

from securefl.audit.thresholds import CONFIDENCE
from securefl.errors import DataError


def too_far(shares: NDArray[np.float64], alpha: float) -> bool:
    """Return whether some row's distance from the uniform distribution is more than chance makes.

    That of n independent uniform draws exceeds √(ln(2 / α) / 2n) with a probability of at most α
    (Massart 1990).

    Args:
        shares: the distribution function's values of the samples, in [0, 1], shape (..., n).
        alpha: the probability at which a row of chance is called too far.
    """
    n: int = shares.shape[-1]
    ordered, steps = np.sort(shares), np.arange(n + 1) / n
    farthest = max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max())
    return bool(farthest > sqrt(log(2 / alpha) / 2 / n))


RESAMPLES = 1000
Scores = NDArray[np.float64]
Quantity = Callable[[Scores, Scores], float]
FEWEST_FOR = {0.01: 100, 0.001: 1000}
"""Number of non-members below which a rate at so few false alarms rests on one of them or none."""


@final
@dataclass(frozen=True, slots=True)
class Interval:
    """Value with its bootstrap interval."""

    value: float
    low: float
    high: float

    def in_percent(self) -> str:
        """Return a share, 0..1, with its interval: `67.6% (63.2% to 71.7%)`."""
        return f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%})"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Roc:
    """Scores of an attack on members and non-members; higher for "member"."""

    members: Scores
    others: Scores

    @classmethod
    def of(cls, members: ArrayLike, others: ArrayLike) -> "Roc":
        """Check scores; raises DataError where one side is empty, or a score is NaN."""
        found = [np.asarray(side, dtype=np.float64).ravel() for side in (members, others)]
        if not all(len(side) for side in found) or np.isnan(np.concatenate(found)).any():
            raise DataError("an attack's scores: must be numbers, of a member and a non-member")
        return cls(*found)

    def curve(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return false and true positive rates, both rising from 0 to 1."""
        labels = np.concatenate(
            [np.ones(len(self.members), bool), np.zeros(len(self.others), bool)]
        )
        false, true, _ = roc_curve(labels, np.concatenate([self.members, self.others]))
        return false, true

    def auc(self, rng: np.random.Generator) -> Interval:
        """Return the area under the curve: 1/2 for an attack that knows nothing."""
        return self._interval(_auc, rng)

    def tpr_at(self, fpr: float, rng: np.random.Generator) -> Interval:
        """Return the share of members found at so many false alarms among non-members.

        Raises:
            DataError: too few non-members for so small a rate.
        """
        least = FEWEST_FOR.get(fpr, int(np.ceil(1 / fpr)))
        if len(self.others) < least:
            raise DataError(
                f"the true positive rate at {fpr:.2%} false positives needs {least:,} non-members, "
                f"and there are {len(self.others):,}: below that it rests on a single one of them"
            )
        return self._interval(lambda members, others: _tpr(members, others, fpr), rng)

    def _interval(self, quantity: Quantity, rng: np.random.Generator) -> Interval:
        """Resample members and non-members for an interval."""
        drawn = [
            quantity(
                rng.choice(self.members, len(self.members)),
                rng.choice(self.others, len(self.others)),
            )
            for _ in range(RESAMPLES)
        ]
        tail = (1 - CONFIDENCE) / 2
        low, high = np.quantile(drawn, [tail, 1 - tail])
        return Interval(float(quantity(self.members, self.others)), float(low), float(high))


def _auc(members: Scores, others: Scores) -> float:
    """Return P[member > other] + P[equal] / 2 (Mann & Whitney, 1947)."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, members, "left") + np.searchsorted(ordered, members, "right")
    return float(below.mean() / (2 * len(others)))


def _tpr(members: Scores, others: Scores, fpr: float) -> float:
    """Return the share of members above what other non-members exceed with this probability.

    Above the k-th highest of n lies another one with k / (n + 1): below n fpr + 1, which the
    threshold of as many empirical false alarms would have. Ties are counted as neither.
    """
    threshold = np.sort(others)[::-1][allowed(fpr, len(others))]
    return float((members > threshold).mean())


def allowed(fpr: float, n_others: int) -> int:
    """Return how many of so many non-members may lie above the threshold."""
    return int(fpr * n_others) - 1


def p_value_of_area(roc: Roc) -> float:
    """Return P of so large an AUC under no difference: Mann & Whitney, one-sided, with ties."""
    scores = np.concatenate([roc.members, roc.others])
    if (scores == scores[0]).all():
        return 1.0
    found = mannwhitneyu(roc.members, roc.others, alternative="greater", method="asymptotic")
    return float(found.pvalue)


def p_value_of_rate(roc: Roc, fpr: float) -> float:
    """Return P of so many members above the threshold under no difference; exact.

    Let b be the false alarms that are allowed, and a the members above the (b + 1)th of the others.
    If all orders of the scores are equally likely, a or more are there where among the a + b
    highest of all there are at most b others. Ties count against the attack, as in `Roc.tpr_at`.
    """
    m, n = len(roc.members), len(roc.others)
    b = allowed(fpr, n)
    a = int((roc.members > np.sort(roc.others)[::-1][b]).sum())
    return float(hypergeom.cdf(b, m + n, n, a + b))


def least_visible_area(
    members: int, others: int, probability: float, power: float = CONFIDENCE
) -> float:
    """Return the AUC of an attack that a test finds in this share of audits, `power`.

    The test finds what has so small a probability under no difference, without ties. The deviation
    of a measured AUC is taken to be that under no difference.
    """
    deviation = sqrt((members + others + 1) / (12 * members * others))
    return float(0.5 + (norm.isf(probability) + norm.ppf(power)) * deviation)
