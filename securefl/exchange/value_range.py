"""Values that a sum may have without overflow of its polynomial's coefficients."""

import numpy as np
from numpy.typing import NDArray

FAR = 16
"""Ranges that a few values may reach: of so large a slot, doubles encode the others exactly."""
FEW = 512
"""Ranges by which the values of a message may be beyond one, all together: N/4 for N = 2048."""


def are_in_range(values: NDArray[np.floating], max_value: float) -> bool:
    """Return whether a sum may have these values: within ±`max_value`, or a few of them far beyond.

    Overflow is of coefficients, each a mean over slots: |m_k| <= (2/N) Σ |z_j| over N/2 complex
    slots. Within the range that is √2 ranges; what is beyond it adds 2/N of its sum, half a range
    at most; and the modulus holds two. Both limits are convex, so a mean of such values has such
    values. One client's own message has less room: SEAL encodes one range (`OneTimeSealer.seal`).
    """
    beyond = np.abs(values) - max_value
    over = beyond[~(beyond <= 0)]  # and NaN, which compares false with everything
    if not over.size:
        return True
    return bool(over.max() <= (FAR - 1) * max_value and over.sum() <= FEW * max_value)
