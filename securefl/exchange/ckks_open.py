"""The authority's side of the encrypted sum: decrypt, flood, count, divide, round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefl.crypto.params import BOOKKEEPING_SLOTS
from securefl.crypto.secret import SecretKey
from securefl.errors import MessageRefused
from securefl.exchange.base import OpenedSum, Values
from securefl.exchange.ckks import FORM
from securefl.exchange.gaussian import gaussian
from securefl.exchange.policy import Flooding
from securefl.exchange.releases import ReleaseCount

COUNT_TOLERANCE = 1e-3
"""How far a count of ones may be from a whole number."""

WEIGHT_BITS = 26
"""A weight is a size over a power of two: exact for up to 2^26 samples in all, else to a step."""

UNCOUNTED = 2**62
"""At most so many values are released where no noise has to hide them."""


@dataclass(frozen=True, slots=True)
class CkksOpener:
    """Opens totals of at most `max_clients`, for whose ciphertexts the noise is sized."""

    secret_key: SecretKey
    count: ReleaseCount
    """The key's own: whoever opens with this key counts here."""
    flooding: Flooding | None
    max_clients: int

    @property
    def form(self) -> str:
        """The only encoding that it opens."""
        return FORM

    @property
    def key_id(self) -> str:
        """The key that it opens with."""
        return self.secret_key.key_id

    @property
    def epoch(self) -> int:
        """The key's."""
        return self.secret_key.origin.epoch

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on every value that is released."""
        if self.flooding is None:
            return 0.0
        return self.flooding.deviation(self.secret_key.parameters.noise(self.max_clients))

    def open(self, total: bytes, n_values: int, precision_bits: int) -> OpenedSum:
        """Σ p_i x_i with the weight and the count that the ciphertexts themselves carry.

        Every slot counts as released, also of a total that is refused: a refusal is an answer.

        Raises:
            KeyWornOut: more than this key may still release.
            MessageRefused: wrong length, a count that is no whole number (another key, or
                rubbish), more clients than the noise is sized for, or ciphertexts that do not
                count the same clients.
        """
        parameters = self.secret_key.parameters
        slots = self._released(total, n_values)
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
        rounded_weights = rounded(weights, WEIGHT_BITS)
        weight = float(np.median(rounded_weights))
        spread = 2.0**-WEIGHT_BITS + 16 * self.deviation
        if not 0 < weight <= 1 + spread or np.ptp(rounded_weights) > spread:
            raise MessageRefused("the total's weights are not in (0, 1]: a client sent rubbish")
        sums = rounded(slots[:, :-BOOKKEEPING_SLOTS].ravel()[:n_values], precision_bits)
        values = rounded(sums / weight, precision_bits)
        if np.abs(values).max() > parameters.max_value * (1 + COUNT_TOLERANCE):
            raise MessageRefused("the total is larger than any mean can be: a client sent rubbish")
        return OpenedSum(values, min(weight, 1.0), n_clients)

    def _released(self, total: bytes, n_values: int) -> Values:
        """Shape (ciphertexts, N/2), flooded before anything looks at it."""
        parameters = self.secret_key.parameters
        frame, count = self.secret_key.public_key.frame, parameters.n_ciphertexts(n_values)
        chunks, size = frame.chunks(total, count), parameters.n_released(n_values)
        self.count.spend(size, self.flooding.releases if self.flooding else UNCOUNTED)
        slots = np.stack([self.secret_key.decrypt(chunk) for chunk in chunks])
        return slots + gaussian(size, self.deviation).reshape(slots.shape)


def rounded(values: Values, bits: int) -> Values:
    """The nearest multiples of 2^-`bits`."""
    return np.asarray(np.rint(np.ldexp(values, bits)) * 2.0**-bits)
