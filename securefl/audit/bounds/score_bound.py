"""Bound on ε by the scores of canaries themselves, if they are Gaussian.

Agrawal, Wei, Singh, Magdon-Ismail, Zikas, Let's Ask Gauss: Improved One-Run Privacy Auditing, 2026
(arXiv 2606.12733): in DP-SGD a canary's score is a sum over many noisy steps, which is close to
Gaussian, and a guess throws away all of it but its sign. We had the abstract and summaries alone,
so this is our reading and not their algorithm, which gives each side a variance of its own: scores
of canaries that were in are N(a + μ s, s²), of others N(a, s²), independent, and μ is bounded from
below by the noncentral t distribution of

    t = (mean of those in - mean of those out) / (s √(1/k + 1/l))

with the pooled s of k and l canaries, whose noncentrality is μ / √(1/k + 1/l). ε at δ is that of
the Gaussian mechanism of this μ.

Three things are assumed that one run does not give for free. That scores are Gaussian: Shapiro and
Wilk's test on each side decides, at a level of 5 % over both, and with fewer than a hundred on a
side it could not tell a Laplace distribution from a Gaussian, so that the bound does not lead. That
canaries do not disturb one another. And that the curve goes on as a Gaussian's down to δ, where no
number of canaries sees it: so this bound, too, is for mechanisms with Gaussian noise alone.

Canaries that differ among themselves err on the safe side: their spread enlarges s, and the mean of
their differences is at most the largest μ times the mean of their deviations.
"""

from dataclasses import dataclass
from math import sqrt
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq  # type: ignore[import-untyped, unused-ignore]
from scipy.stats import nct, shapiro  # type: ignore[import-untyped, unused-ignore]

from securefl.audit.bounds.gaussian_dp import gaussian_epsilon

LEVEL = 0.05
"""Probability with which Gaussian scores are taken for others."""
FEWEST = 100
"""Canaries on each side with which the test tells Laplace from Gaussian nine times in ten."""
MOST = 5000
"""Scores of a side that the test is of; scipy's p-values end there."""


@final
@dataclass(frozen=True, slots=True)
class ScoreBound:
    """Bounds from scores, if they are Gaussian."""

    mu: float
    """Lower bound on μ of Gaussian differential privacy; 0 where nothing is shown."""
    epsilon: float
    """ε of that μ at δ."""
    p_gaussian: float
    """Probability of scores so far from Gaussian, of the side that is farther."""
    fewest: int
    """Number of canaries on the smaller side."""
    confidence: float

    @property
    def gaussian(self) -> bool:
        """True where the test had canaries enough, and takes neither side for another one."""
        return self.fewest >= FEWEST and self.p_gaussian > LEVEL / 2


def score_bound(
    scores: NDArray[np.float64], included: NDArray[np.bool_], delta: float, confidence: float
) -> ScoreBound:
    """Return the bound by the noncentral t distribution.

    Args:
        scores: of each canary, shape (m,); finite; higher for "was in".
        included: whether it was, shape (m,).
        delta: δ of the claim that is audited.
        confidence: with which the bound holds, if scores are Gaussian.
    """
    sides = scores[included], scores[~included]
    fewest = min(map(len, sides))
    if fewest < 3 or any(np.ptp(side) == 0 for side in sides):
        return ScoreBound(0.0, 0.0, 0.0, fewest, confidence)
    k, l_ = map(len, sides)
    degrees = k + l_ - 2
    spread = sqrt(sum(len(side) * float(side.var()) for side in sides) / degrees)
    unit = sqrt(1 / k + 1 / l_)
    t = float(sides[0].mean() - sides[1].mean()) / (spread * unit)
    p = min(float(shapiro(side[:MOST]).pvalue) for side in sides)
    mu = _noncentrality(t, degrees, 1 - confidence) * unit
    return ScoreBound(mu, gaussian_epsilon(mu, delta), p, fewest, confidence)


def _noncentrality(t: float, degrees: int, alpha: float) -> float:
    """Return the noncentrality under which so large a t has the probability α; 0 at least."""

    def excess(noncentrality: float) -> float:
        return float(nct.sf(t, degrees, noncentrality)) - alpha

    if t <= 0 or excess(0.0) >= 0:
        return 0.0
    return float(brentq(excess, 0.0, t, xtol=1e-6))
