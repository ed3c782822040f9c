"""The authority's side of the encrypted sum: decrypt, count, divide, round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefl.crypto.params import BOOKKEEPING_SLOTS
from securefl.crypto.secret import SecretKey
from securefl.errors import MessageRefused
from securefl.exchange.base import OpenedSum, Values
from securefl.exchange.ckks import FORM

COUNT_TOLERANCE = 1e-3
"""How far a count of ones may be from a whole number: CKKS errs by about 1e-10 a client."""

WEIGHT_BITS = 26
"""A weight is a size over a power of two: exact for up to 2^26 samples in all, else to a step."""


@dataclass(frozen=True, slots=True)
class CkksOpener:
    """Opens totals, to `precision_bits` bits after the point and no further.

    CKKS itself is exact to about 34 bits for 5 clients and 29 for 200.
    """

    secret_key: SecretKey
    precision_bits: int

    @property
    def form(self) -> str:
        """The only encoding that it opens."""
        return FORM

    @property
    def key_id(self) -> str:
        """The key that it opens with."""
        return self.secret_key.key_id

    def open(self, total: bytes, n_values: int) -> OpenedSum:
        """Σ p_i x_i with the weight and the count that the ciphertexts themselves carry.

        Raises:
            MessageRefused: wrong length, a count that is no whole number (another key, or
                rubbish), or ciphertexts that do not count the same clients.
        """
        parameters = self.secret_key.parameters
        count = parameters.n_ciphertexts(n_values)
        chunks = self.secret_key.public_key.frame.chunks(total, count)
        slots = np.stack([self.secret_key.decrypt(chunk) for chunk in chunks])
        weights, ones = slots[:, -BOOKKEEPING_SLOTS], slots[:, -1]
        n_clients = int(np.rint(ones[0])) if np.isfinite(slots).all() else 0
        if n_clients < 1 or np.abs(ones - n_clients).max() > COUNT_TOLERANCE:
            raise MessageRefused(
                "the total does not count its clients: it is sealed under another key, or a "
                "client sent rubbish"
            )
        # Rounded before anything else is done with them: the digits that only CKKS noise has
        # written depend on the key, and a client that lies about its weight must not get at them.
        rounded_weights = rounded(weights, WEIGHT_BITS)
        weight = float(rounded_weights[0])
        if not 0 < weight <= 1 or np.ptp(rounded_weights) > 2.0**-WEIGHT_BITS:
            raise MessageRefused("the total's weights are not in (0, 1]: a client sent rubbish")
        sums = rounded(slots[:, :-BOOKKEEPING_SLOTS].ravel()[:n_values], self.precision_bits)
        values = rounded(sums / weight, self.precision_bits)
        if np.abs(values).max() > parameters.max_value * (1 + COUNT_TOLERANCE):
            raise MessageRefused("the total is larger than any mean can be: a client sent rubbish")
        return OpenedSum(values, weight, n_clients)


def rounded(values: Values, bits: int) -> Values:
    """The nearest multiples of 2^-`bits`."""
    return np.asarray(np.rint(np.ldexp(values, bits)) * 2.0**-bits)
