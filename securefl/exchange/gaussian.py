"""Gaussian noise from the operating system's randomness: it hides keys, so no seed may give it."""

from __future__ import annotations

import os

import numpy as np
import torch

from securefl.exchange.base import Values


def gaussian(size: int, deviation: float) -> Values:
    """Independent draws of mean zero, shape (size,), by the normal quantile of 52 random bits."""
    words = np.frombuffer(os.urandom(8 * size), np.uint64)
    # One bit fewer than doubles hold, so that the half is exact and nothing rounds to 1.
    uniform = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    quantile: Values = torch.special.ndtri(torch.from_numpy(uniform)).numpy()
    return deviation * quantile
