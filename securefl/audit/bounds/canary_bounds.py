"""Lower bounds on ε from one run with canaries: of clients, and of records.

Clients. Andrew et al., One-shot Empirical Privacy Estimation for Federated Learning, ICLR 2024. A
canary is a client whose update is a random direction, always clipped to C: in d dimensions it is
all but orthogonal to everything else. Of a sum with noise N(0, s² C² I), its cosine with the
direction is about N(1 / (s √d), 1 / d) where the canary was in. So √d · cos estimates μ = 1 / s,
and the run is no more private than the Gaussian mechanism of that μ.

Records. Of m canaries each was in the run with probability 1/2. An auditor guesses of r of them
whether they were in, and abstains from the others; v guesses are right. Were the run (ε, δ)-DP,
then v would be as large as that with a probability of at most

    P[W ≥ v] + 2 m δ · max_{1 ≤ i ≤ v} P[v - i ≤ W < v] / i,    W ~ Bin(r, q), q = 1 / (1 + e^-ε)

(Theorem 5.2 there). Every ε for which that is below 1 - confidence is refuted. Where δ is large,
the recursion of `fdp_bound` refutes more, by the same number of right guesses.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq  # type: ignore[import-untyped, unused-ignore]
from scipy.stats import binom, t  # type: ignore[import-untyped, unused-ignore]

from securefl.audit.bounds.fdp_bound import refuted_approximate
from securefl.audit.bounds.gaussian_dp import gaussian_epsilon
from securefl.audit.statistics import Interval
from securefl.audit.thresholds import CONFIDENCE
from securefl.errors import DataError


@final
@dataclass(frozen=True, slots=True)
class CanaryBound:
    """Bounds from the canaries' cosines."""

    mu: float
    """Lower bound on μ of Gaussian differential privacy; 0 where nothing is shown."""
    epsilon: float
    """ε of that μ at δ: a lower bound on the run's, if its noise is Gaussian."""
    estimate: float
    """Estimate of μ, without the interval."""
    canaries: int
    delta: float
    confidence: float


def canary_bound(
    cosines: ArrayLike, dimensions: int, delta: float, confidence: float = CONFIDENCE
) -> CanaryBound:
    """Return mean(√d · cos) - t · s / √k as a lower bound on μ, and the ε of it.

    Args:
        cosines: of k canaries with what was released, shape (k,).
        dimensions: d of the released sum.
        delta: δ of the claim that is audited.
        confidence: of the one-sided interval of Student's t.

    Raises:
        DataError: fewer than two canaries, values that are no cosines, or numbers out of range.
    """
    cos_k = np.asarray(cosines, dtype=np.float64)
    if cos_k.ndim != 1 or len(cos_k) < 2:
        raise DataError(f"cosines of shape {cos_k.shape}: must be of two canaries at least")
    if not (np.abs(cos_k) <= 1 + 1e-9).all():
        raise DataError("a canary's cosine is not in -1..1")
    if not (0 < delta < 1 and 0 < confidence < 1 and dimensions > 1):
        raise DataError(
            f"delta = {delta}, confidence = {confidence}, {dimensions} dimensions: must be in "
            "0..1, 0..1, and two or more"
        )
    k, scaled_k = len(cos_k), math.sqrt(dimensions) * cos_k
    estimate = float(scaled_k.mean())
    margin = float(t.ppf(confidence, k - 1)) * float(scaled_k.std(ddof=1)) / math.sqrt(k)
    mu = max(0.0, estimate - margin)
    return CanaryBound(mu, gaussian_epsilon(mu, delta), estimate, k, delta, confidence)


MAX_RECORD_EPSILON = 100.0
"""Largest ε that is tried: beyond, e^ε is so large that no number of canaries tells of it."""


@final
@dataclass(frozen=True, slots=True)
class OneRunBound:
    """Bounds from the guesses of one run."""

    epsilon: float
    """Lower bound on ε; 0 where nothing is shown."""
    ceiling: float
    """Largest bound that so many canaries could have shown, had all guesses been right."""
    canaries: int
    """Number m of canaries."""
    guesses: int
    """Number r of guesses, of the threshold that gave the bound."""
    right: int
    """Number v of right guesses."""
    delta: float
    confidence: float


def probability_of(epsilon: float, canaries: int, guesses: int, right: int, delta: float) -> float:
    """Return how likely so many right guesses are at most, if the run is (ε, δ)-DP.

    A value above 1 says nothing.

    Raises:
        DataError: not 0 <= right <= guesses <= canaries, or ε or δ out of range.
    """
    _check(canaries, guesses, right, delta)
    if not 0 <= epsilon <= MAX_RECORD_EPSILON:
        raise DataError(f"epsilon = {epsilon}: must be in 0..{MAX_RECORD_EPSILON:g}")
    q = 1 / (1 + math.exp(-epsilon))
    found = float(binom.sf(right - 1, guesses, q))
    if delta and right:
        i = np.arange(1, right + 1)
        between = binom.cdf(right - 1, guesses, q) - binom.cdf(right - i - 1, guesses, q)
        found += 2 * canaries * delta * float((between / i).max())
    return found


@lru_cache(maxsize=1024)
def refuted_epsilon(
    canaries: int, guesses: int, right: int, delta: float, confidence: float = CONFIDENCE
) -> float:
    """Return the largest ε that so many right guesses refute; 0 where they refute none.

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
    if excess(MAX_RECORD_EPSILON) < 0:
        return MAX_RECORD_EPSILON
    return float(brentq(excess, 0.0, MAX_RECORD_EPSILON, xtol=1e-9))


def refuted_by_either(
    canaries: int, guesses: int, right: int, delta: float, confidence: float
) -> float:
    """Return the largest ε that so many right guesses refute by either of two theorems.

    Both bound the probability of as many right guesses, or more: no correction is needed.
    """
    return max(
        refuted_epsilon(canaries, guesses, right, delta, confidence),
        refuted_approximate(canaries, guesses, right, delta, confidence),
    )


Refuted = Callable[[int, int, int, float, float], float]
"""Largest ε that is refuted, of canaries, guesses, right ones, δ and a confidence."""


def one_run_bound(
    scores: ArrayLike,
    included: ArrayLike,
    delta: float,
    confidence: float = CONFIDENCE,
    guesses: Sequence[int] | None = None,
    refuted: Refuted = refuted_by_either,
) -> OneRunBound:
    """Return the bound that an attack's scores show, corrected for the choice among guesses.

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
        refuted: theorem that makes a bound of right guesses.

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
    bounds = [refuted(m, r, v, delta, each) for r, v in found]
    best = int(np.argmax(bounds))
    ceiling = max(refuted(m, r, r, delta, each) for r in tried)
    return OneRunBound(bounds[best], ceiling, m, *found[best], delta, confidence)


_FEWEST_SHARES_SEEN = 4.5
"""Deviations by which a missing share shows, so that it is found in 95 % of runs and more."""


@final
@dataclass(frozen=True, slots=True)
class ClientTest:
    """Test of the noise that the settings promise, by a round of canary clients."""

    bound: CanaryBound
    """Bound from the mean cosine: right where the noise is Gaussian."""
    free: OneRunBound
    """Bound from guesses alone, whatever the noise is."""
    claimed: float
    """ε of one release of an update, by the accountant."""
    noise: Interval
    promised: float
    uneven: bool
    """True where some tensor's noise is not normal with that deviation."""
    clients: int
    """Clients in the round whose noise was measured."""
    dimensions: int
    """Values of that round's total."""

    @property
    def shown(self) -> float:
        """ε of one release that canary clients show at least."""
        return max(self.bound.epsilon, self.free.epsilon)

    @property
    def refuted(self) -> bool:
        """True where the noise is not as promised, or hides less than the accountant says."""
        as_promised = self.noise.low <= self.promised <= self.noise.high
        return self.shown > self.claimed or not as_promised or self.uneven

    @property
    def missing_share_shows(self) -> bool:
        """True where the noise of one client less would have been noticed."""
        missing = 1 - math.sqrt(1 - 1 / self.clients)
        return missing * math.sqrt(2 * self.dimensions) >= _FEWEST_SHARES_SEEN


def _right(in_by_score_m: NDArray[np.bool_], guesses: int) -> int:
    half = guesses // 2
    return int((~in_by_score_m[:half]).sum() + in_by_score_m[len(in_by_score_m) - half :].sum())


def _even(guesses: int, canaries: int) -> int:
    """Return an even number of guesses, two at least, no more than there are canaries."""
    return max(2, min(guesses, canaries) // 2 * 2)


def _check(canaries: int, guesses: int, right: int, delta: float) -> None:
    if not 0 <= right <= guesses <= canaries or not canaries:
        raise DataError(
            f"{right} right of {guesses} guesses of {canaries} canaries: must be "
            "right <= guesses <= canaries"
        )
    if not 0 <= delta < 1:
        raise DataError(f"delta = {delta}: must be in 0..1")
