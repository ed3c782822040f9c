"""Gaussian noise from the operating system's randomness: it hides keys, so no seed may give it."""

from __future__ import annotations

import os

import numpy as np
import torch

from securefl.exchange.base import Values


def gaussian(size: int, deviation: float) -> Values:
    """Independent draws of mean zero, shape (size,), by the normal quantile of 63 random bits.

    Beyond 9 deviations, where one of 2^63 would be, there is none.
    """
    words = np.frombuffer(os.urandom(8 * size), np.uint64)
    # Of the lower half, where doubles are fine enough for the tail; the last bit is the sign.
    uniform = ((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-64
    quantile: Values = torch.special.ndtri(torch.from_numpy(uniform)).numpy()
    return np.where(words & np.uint64(1), deviation, -deviation) * quantile
