"""Gaussian noise from the operating system's randomness, and noise of opened scores."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from securefl.exchange.sums import Values

Draw = Callable[[int, float], Values]
"""Function that gives so many independent draws of mean zero and of this standard deviation."""


def gaussian(size: int, deviation: float) -> Values:
    """Draw independently with mean zero, shape (size,), by the normal quantile of 63 random bits.

    Beyond 9 deviations, where one of 2^63 would be, there is none.
    """
    words = np.frombuffer(os.urandom(8 * size), np.uint64)
    # Of the lower half, where doubles are fine enough for the tail; the last bit is the sign.
    uniform = ((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-64
    quantile: Values = torch.special.ndtri(torch.from_numpy(uniform)).numpy()
    return np.where(words & np.uint64(1), deviation, -deviation) * quantile


@dataclass(frozen=True, slots=True)
class ScoreNoise:
    """Bound that a score is clipped to, and the Gaussian noise that it then gets.

    A client moves its score by at most `bound`, so σ = `deviation` / `bound`.
    """

    bound: float
    deviation: float
    """Standard deviation in units of scores."""

    def on(self, score: float, draw: Draw) -> float:
        """Return the score, or what of 0..`bound` is next to it, with noise."""
        return min(max(score, 0.0), self.bound) + float(draw(1, self.deviation)[0])
