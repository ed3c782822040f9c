"""Gaussian differential privacy: ε at δ of the Gaussian mechanism with sensitivity / noise = μ."""

import math

from scipy.optimize import brentq  # type: ignore[import-untyped, unused-ignore]
from scipy.special import log_ndtr, ndtr  # type: ignore[import-untyped, unused-ignore]

MAX_GAUSSIAN_EPSILON = 1000.0


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return ε at δ of the Gaussian mechanism with sensitivity / noise = μ, in closed form.

    δ = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ) (Balle & Wang, ICML 2018, Theorem 8).
    """
    if mu <= 0:
        return 0.0

    def excess(epsilon: float) -> float:
        second = math.exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)))
        return float(ndtr(mu / 2 - epsilon / mu)) - second - delta

    if excess(0.0) <= 0:
        return 0.0
    if excess(MAX_GAUSSIAN_EPSILON) > 0:
        return MAX_GAUSSIAN_EPSILON
    return float(brentq(excess, 0.0, MAX_GAUSSIAN_EPSILON, xtol=1e-9))
