"""A lower bound on ε from client canaries in one run.

Andrew et al., One-shot Empirical Privacy Estimation for Federated Learning, ICLR 2024. A canary is
a client whose update is a random direction, always clipped to C: in d dimensions it is all but
orthogonal to everything else. Of a sum with noise N(0, s² C² I), its cosine with the direction is
about N(1 / (s √d), 1 / d) where the canary was in. So √d · cos estimates μ = 1 / s, and the run is
no more private than the Gaussian mechanism of that μ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike

# scipy has no type information of its own.
from scipy.optimize import brentq  # type: ignore[import-untyped, unused-ignore]
from scipy.stats import norm, t  # type: ignore[import-untyped, unused-ignore]

from securefl.errors import DataError

CONFIDENCE = 0.95
MAX_EPSILON = 1000.0


@final
@dataclass(frozen=True, slots=True)
class CanaryBound:
    """What the canaries' cosines show."""

    mu: float
    """A lower bound on μ of Gaussian differential privacy; 0 where nothing is shown."""
    epsilon: float
    """The ε of that μ at δ: a lower bound on the run's, if its noise is Gaussian."""
    estimate: float
    """μ itself, without the interval."""
    canaries: int
    delta: float
    confidence: float


def canary_bound(
    cosines: ArrayLike, dimensions: int, delta: float, confidence: float = CONFIDENCE
) -> CanaryBound:
    """mean(√d · cos) - t · s / √k, as a lower bound on μ and on ε.

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


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε at δ of the Gaussian mechanism with sensitivity / noise = μ, in closed form.

    δ = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ) (Balle & Wang, ICML 2018, Theorem 8).
    """
    if mu <= 0:
        return 0.0

    def excess(epsilon: float) -> float:
        second = math.exp(epsilon + float(norm.logcdf(-mu / 2 - epsilon / mu)))
        return float(norm.cdf(mu / 2 - epsilon / mu)) - second - delta

    if excess(0.0) <= 0:
        return 0.0
    if excess(MAX_EPSILON) > 0:
        return MAX_EPSILON
    return float(brentq(excess, 0.0, MAX_EPSILON, xtol=1e-9))
