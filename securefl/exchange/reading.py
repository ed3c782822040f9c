"""What opened slots say: clients counted, the weight, the values; rubbish is refused."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log2

import numpy as np

from securefl.crypto.params import BOOKKEEPING_SLOTS, COUNT_TOLERANCE
from securefl.errors import MessageRefused
from securefl.exchange.base import OpenedSum, Values

WEIGHT_BITS = 26
"""A weight is a size over a power of two: exact for up to 2^26 samples in all if noise allows."""

SURE = 6
"""Standard deviations of noise: more come once in 10^9 times."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the slots of an honest total keep to, whoever has decrypted them."""

    max_value: float
    max_clients: int
    """More, and the noise that hides the key would be too little."""
    deviation: float
    """Of that noise, in each slot."""

    @property
    def weight_bits(self) -> int:
        """Bits after the point that a weight is rounded to: as many as the noise leaves right.

        A size over a smaller power of two then comes out exactly, where steps of 2^-26 are too fine
        for the noise of many clients, or of several officers.
        """
        if not self.deviation:
            return WEIGHT_BITS
        return min(WEIGHT_BITS, floor(-log2(2 * SURE * self.deviation)))

    def read(self, slots: Values, n_values: int, precision_bits: int) -> OpenedSum:
        """Σ p_i x_i with the weight and the count that flooded slots, a row a ciphertext, carry.

        Raises:
            MessageRefused: a count that is no whole number (another key, or rubbish), more clients
                than the noise is sized for, or ciphertexts that do not count the same clients.
        """
        weights, ones = slots[:, -BOOKKEEPING_SLOTS], slots[:, -1]
        n_clients = int(np.rint(ones[0])) if np.isfinite(slots).all() else 0
        if n_clients < 1 or np.abs(ones - n_clients).max() > COUNT_TOLERANCE:
            raise MessageRefused(
                "the total does not count its clients: it is sealed under another key, or a "
                "client sent rubbish"
            )
        if n_clients > self.max_clients:
            raise MessageRefused(
                f"the total counts {n_clients} clients, and the noise is sized for at most "
                f"{self.max_clients}"
            )
        # Rounded before anything else is done with them: a client that lies about its weight
        # must not get at the digits below.
        rounded_weights = rounded(weights, self.weight_bits)
        weight = float(np.median(rounded_weights))
        spread = 2.0**-self.weight_bits + 16 * self.deviation
        if not 0 < weight <= 1 + spread or np.ptp(rounded_weights) > spread:
            raise MessageRefused("the total's weights are not in (0, 1]: a client sent rubbish")
        sums = rounded(slots[:, :-BOOKKEEPING_SLOTS].ravel()[:n_values], precision_bits)
        values = rounded(sums / weight, precision_bits)
        if np.abs(values).max() > self.max_value * (1 + COUNT_TOLERANCE):
            raise MessageRefused("the total is larger than any mean can be: a client sent rubbish")
        return OpenedSum(values, min(weight, 1.0), n_clients)


def rounded(values: Values, bits: int) -> Values:
    """The nearest multiples of 2^-`bits`."""
    return np.asarray(np.rint(np.ldexp(values, bits)) * 2.0**-bits)
