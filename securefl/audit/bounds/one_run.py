"""A lower bound on ε from one run with canaries (Steinke, Nasr, Jagielski, NeurIPS 2023).

Of m canaries each was in the run with probability 1/2. An auditor guesses of r of them whether they
were in, and abstains from the others; v guesses are right. Were the run (ε, δ)-DP, then v would be
as large as that with a probability of at most

    P[W ≥ v] + 2 m δ · max_{1 ≤ i ≤ v} P[v - i ≤ W < v] / i,    W ~ Bin(r, q), q = 1 / (1 + e^-ε)

(Theorem 5.2 there). Every ε for which that is below 1 - confidence is refuted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

# scipy has no type information of its own.
from scipy.optimize import brentq  # type: ignore[import-untyped, unused-ignore]
from scipy.stats import binom  # type: ignore[import-untyped, unused-ignore]

from securefl.errors import DataError

CONFIDENCE = 0.95
MAX_EPSILON = 100.0
"""Beyond, e^ε is so large that no number of canaries tells of it."""


@final
@dataclass(frozen=True, slots=True)
class OneRunBound:
    """What one run shows."""

    epsilon: float
    """A lower bound on ε; 0 where nothing is shown."""
    ceiling: float
    """The largest bound that so many canaries could have shown, had all guesses been right."""
    canaries: int
    """m."""
    guesses: int
    """r, of the threshold that gave the bound."""
    right: int
    """v."""
    delta: float
    confidence: float


def probability_of(epsilon: float, canaries: int, guesses: int, right: int, delta: float) -> float:
    """How likely so many right guesses are at most, if the run is (ε, δ)-DP; above 1 says nothing.

    Raises:
        DataError: not 0 <= right <= guesses <= canaries, or ε or δ out of range.
    """
    _check(canaries, guesses, right, delta)
    if not 0 <= epsilon <= MAX_EPSILON:
        raise DataError(f"epsilon = {epsilon}: must be in 0..{MAX_EPSILON:g}")
    q = 1 / (1 + math.exp(-epsilon))
    found = float(binom.sf(right - 1, guesses, q))
    if delta and right:
        i = np.arange(1, right + 1)
        between = binom.cdf(right - 1, guesses, q) - binom.cdf(right - i - 1, guesses, q)
        found += 2 * canaries * delta * float((between / i).max())
    return found


def refuted_epsilon(
    canaries: int, guesses: int, right: int, delta: float, confidence: float = CONFIDENCE
) -> float:
    """The largest ε that so many right guesses refute; 0 where they refute none.

    For one number of guesses, fixed before anybody looked.

    Raises:
        DataError: numbers out of range.
    """
    _check(canaries, guesses, right, delta)
    if not 0 < confidence < 1:
        raise DataError(f"confidence = {confidence}: must be between 0 and 1; 0.95 is usual")

    def excess(epsilon: float) -> float:
        return probability_of(epsilon, canaries, guesses, right, delta) - (1 - confidence)

    if not right or excess(0.0) >= 0:
        return 0.0
    if excess(MAX_EPSILON) < 0:
        return MAX_EPSILON
    return float(brentq(excess, 0.0, MAX_EPSILON, xtol=1e-9))


def one_run_bound(
    scores: ArrayLike,
    included: ArrayLike,
    delta: float,
    confidence: float = CONFIDENCE,
    guesses: Sequence[int] | None = None,
) -> OneRunBound:
    """The bound that an attack's scores show, corrected for the choice of the number of guesses.

    For r guesses, the r/2 canaries of the highest scores are guessed to be in and the r/2 of the
    lowest to be out. Of several r the best counts, each at a confidence of 1 - (1 - confidence) / K
    (Bonferroni): best of K without that would alarm far too often.

    Args:
        scores: of each canary, shape (m,); higher for "was in".
        included: whether it was, shape (m,); drawn by fair coins before the run.
        delta: δ of the claim that is audited.
        confidence: with which the bound holds.
        guesses: the numbers r to try, fixed beforehand; a tenth, a quarter, a half and all of m
            where None.

    Raises:
        DataError: fewer than two canaries, scores that are not finite, shapes that differ.
    """
    score_m, in_m = np.asarray(scores, dtype=np.float64), np.asarray(included, dtype=bool)
    if score_m.shape != in_m.shape or score_m.ndim != 1 or len(score_m) < 2:
        raise DataError(
            f"scores of shape {score_m.shape} for canaries of shape {in_m.shape}: must be one of "
            "each a canary, two at least"
        )
    if not np.isfinite(score_m).all():
        raise DataError("a canary's score is not finite")
    m = len(score_m)
    tried = sorted({_even(r, m) for r in (guesses or (m // 10, m // 4, m // 2, m))})
    each = 1 - (1 - confidence) / len(tried)
    order_m = np.argsort(score_m, kind="stable")
    found = [(r, _right(in_m[order_m], r)) for r in tried]
    bounds = [refuted_epsilon(m, r, v, delta, each) for r, v in found]
    best = int(np.argmax(bounds))
    ceiling = max(refuted_epsilon(m, r, r, delta, each) for r in tried)
    return OneRunBound(bounds[best], ceiling, m, *found[best], delta, confidence)


def _right(in_by_score_m: NDArray[np.bool_], guesses: int) -> int:
    half = guesses // 2
    return int((~in_by_score_m[:half]).sum() + in_by_score_m[len(in_by_score_m) - half :].sum())


def _even(guesses: int, canaries: int) -> int:
    """An even number of guesses, two at least, no more than there are canaries."""
    return max(2, min(guesses, canaries) // 2 * 2)


def _check(canaries: int, guesses: int, right: int, delta: float) -> None:
    if not 0 <= right <= guesses <= canaries or not canaries:
        raise DataError(
            f"{right} right of {guesses} guesses of {canaries} canaries: must be "
            "right <= guesses <= canaries"
        )
    if not 0 <= delta < 1:
        raise DataError(f"delta = {delta}: must be in 0..1")
