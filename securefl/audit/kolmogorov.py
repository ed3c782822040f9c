"""How far samples are from the distribution that they should have, by the largest distance."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
from numpy.typing import NDArray


def too_far(shares: NDArray[np.float64], alpha: float) -> bool:
    """Whether some row's distance from the uniform distribution is more than chance makes it.

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
