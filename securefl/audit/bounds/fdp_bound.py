"""Bounds on ε by the number of right guesses, for a whole trade-off curve.

Mahloujifar, Melis, Chaudhuri, Auditing f-Differential Privacy in One Run, ICML 2025. Each of m
canaries is in the run by a fair coin. An auditor guesses of r of them whether they were in, and
abstains from the others; p_v is the probability of v right guesses. Let no event be likelier than
f̄(x) with a canary that without it has the probability x, nor the other way round (f̄ = 1 - f of
the trade-off curve f). An event that guess j is right, and v are, becomes by turning coin j over
that it is wrong, and v - 1 are right. f̄ is concave, so that in the mean over all j

    R_i <= f̄(H_{i-1}),    R_i = Σ_{v >= i} v p_v / m,    H_i = Σ_{v >= i} (r - v) p_v / m

for every i, while R_i - R_{i+1} = i / (r - i) · (H_i - H_{i+1}), and R_0 + H_0 = r / m is the
probability that a canary is guessed at all. Were v right guesses or more as likely as α, all of
them would be at v at least; from there down to 0 each H_i is as small as the rule allows, and so
is R_i. Where their sum exceeds r / m nonetheless, the curve is refuted with a confidence of 1 - α.
(Their own code, and jax-privacy's, are the same recursion; that α's weight is best put at v itself
is what both do, and a linear program agrees with it in our tests.)

Two families of curves are tried. (ε, δ)-DP assumes nothing, as the bound of Steinke et al. beside
it; both bound the probability of the same event, so the larger ε of the two holds without any
correction. The other is of Gaussian noise: ε(δ') is nowhere in δ <= δ' < 1 above that of the
Gaussian mechanism which has this ε at δ. So are all sums of Gaussian releases, sampled or not (the
sampled ones are below it, as a test shows on a grid). A Laplace mechanism or randomised response is
not: for its ε at δ this family shows too much.
"""

import math
from collections.abc import Callable
from functools import lru_cache

from scipy.optimize import brentq  # type: ignore[import-untyped, unused-ignore]
from scipy.special import ndtr, ndtri  # type: ignore[import-untyped, unused-ignore]

from securefl.audit.bounds.gaussian_dp import gaussian_epsilon

Inverse = Callable[[float], float]
"""Least probability without a canary, of an event that has this probability with it."""
MAX_EPSILON = 100.0
MAX_MU = 12.0
"""μ of an ε above 100 at any δ from 1e-12 to 0.1."""


def approximate(epsilon: float, delta: float) -> Inverse:
    """Return the least probabilities under (ε, δ)-DP."""
    ratio = math.exp(epsilon)
    return lambda x: max(0.0, (x - delta) / ratio, 1 - delta - ratio * (1 - x))


def gaussian(mu: float, delta: float) -> Inverse:
    """Return the least probabilities if ε(δ') is at most the Gaussian's for δ' from δ to 1.

    Between the two events where the Gaussian's slope is e^±ε it is Φ(Φ⁻¹(x) - μ); beyond them, its
    tangents.
    """
    if not mu:
        return lambda x: x
    epsilon = gaussian_epsilon(mu, delta)
    tangents = approximate(epsilon, delta)
    low, high = mu / 2 - epsilon / mu, mu / 2 + epsilon / mu

    def inverse(x: float) -> float:
        z = float(ndtri(x))
        return float(ndtr(z - mu)) if low < z < high else tangents(x)

    return inverse


def refutes(inverse: Inverse, canaries: int, guesses: int, right: int, alpha: float) -> bool:
    """Return whether so many right guesses, or more, are less likely than α under this curve."""
    return _excess(inverse, canaries, guesses, right, alpha) > 0


@lru_cache(maxsize=1024)
def refuted_approximate(
    canaries: int, guesses: int, right: int, delta: float, confidence: float
) -> float:
    """Return the largest ε that so many right guesses refute, whatever the mechanism is."""

    def excess(epsilon: float) -> float:
        curve = approximate(epsilon, delta)
        return _excess(curve, canaries, guesses, right, 1 - confidence)

    return _largest(excess, MAX_EPSILON)


@lru_cache(maxsize=1024)
def refuted_gaussian(
    canaries: int, guesses: int, right: int, delta: float, confidence: float
) -> float:
    """Return the largest ε that so many right guesses refute, if the curve is as of Gaussians."""

    def excess(mu: float) -> float:
        curve = gaussian(mu, delta)
        return _excess(curve, canaries, guesses, right, 1 - confidence)

    return gaussian_epsilon(_largest(excess, MAX_MU), delta)


def _excess(inverse: Inverse, canaries: int, guesses: int, right: int, alpha: float) -> float:
    """Return R_0 + H_0 less r / m: above 0 where the curve is refuted."""
    r_sum = alpha * right / canaries
    h_sum = alpha * (guesses - right) / canaries
    for i in range(right - 1, -1, -1):
        least = inverse(r_sum)
        if least <= h_sum:
            break  # neither sum changes any more
        r_sum = min(1.0, r_sum + i / (guesses - i) * (least - h_sum))
        h_sum = least
    return r_sum + h_sum - guesses / canaries


def _largest(excess: Callable[[float], float], most: float) -> float:
    """Return the parameter up to which all are refuted; 0 where none is."""
    if excess(0.0) <= 0:
        return 0.0
    return most if excess(most) > 0 else float(brentq(excess, 0.0, most, xtol=1e-6))
