"""Noise for an ε: the accountant's curve, inverted by SciPy's bracketing root search."""

from collections.abc import Callable, Sequence

# scipy has no type information of its own.
from scipy.optimize import brentq  # type: ignore[import-untyped, unused-ignore]

from securefl.errors import ConfigError
from securefl.privacy.accountants import Accountant, epsilon
from securefl.privacy.events import (
    MAX_NOISE_MULTIPLIER,
    MIN_NOISE_MULTIPLIER,
    PrivacyEvent,
)

MIN_EPSILON, MAX_EPSILON = 0.01, 1000.0
RELATIVE = 1e-4
"""Relative excess of the result over the smallest sufficient σ, at most."""

Releases = Callable[[float], Sequence[PrivacyEvent]]
Epsilon = Callable[[float], float]


def sigma_for(target_epsilon: float, delta: float, releases: Releases) -> float:
    """Return the least noise multiplier σ (to 0.02 %) whose ε by PLD is at most `target_epsilon`.

    Args:
        target_epsilon: 0.01 to 1000.
        delta: 1e-12 to 0.1.
        releases: all of a run's, by σ; the more noise, the less they may tell.

    Raises:
        ConfigError: a number is out of range, or no σ from 0.01 to 1e6 gives that ε.
    """
    if not MIN_EPSILON <= target_epsilon <= MAX_EPSILON:
        raise ConfigError(
            f"target epsilon = {target_epsilon:g}: must be {MIN_EPSILON:g}..{MAX_EPSILON:g}; 3 is "
            "usual"
        )

    def spent(sigma: float, accountant: Accountant) -> float:
        return epsilon(releases(sigma), delta, accountant)

    # RDP lies above PLD and takes milliseconds: where it is small enough, so is PLD.
    high = _upper(lambda sigma: spent(sigma, Accountant.RDP), target_epsilon)
    return _inverted(lambda sigma: spent(sigma, Accountant.PLD), target_epsilon, high)


def _upper(spent: Epsilon, target: float) -> float:
    """Return a power of two with enough noise."""
    sigma = 1.0
    while spent(sigma) > target:
        sigma *= 2
        if sigma > MAX_NOISE_MULTIPLIER:
            raise ConfigError(
                f"target epsilon = {target:g}: no noise multiplier up to {MAX_NOISE_MULTIPLIER:g} "
                "reaches it; have fewer rounds or local steps, a smaller batch, less of other "
                "releases (privacy.statistics_sigma), or a larger delta"
            )
    return sigma


def _inverted(spent: Epsilon, target: float, high: float) -> float:
    low = high / 2
    while spent(low) <= target:
        low, high = low / 2, low
        if low < MIN_NOISE_MULTIPLIER:
            return high
    sigma = float(brentq(lambda s: spent(s) - target, low, high, rtol=RELATIVE / 2))
    while spent(sigma) > target:  # the root's other side
        sigma *= 1 + RELATIVE
    return min(sigma, high)
