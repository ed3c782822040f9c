"""Decoding of an opened total into client count, weight and values; refuses a dishonest one."""

from dataclasses import dataclass
from math import floor, log2

import numpy as np

from securefl.crypto.params import BOOKKEEPING_SLOTS, COUNT_TOLERANCE, SumParameters
from securefl.errors import MessageRefused
from securefl.exchange.digits import MOST_CLIENTS, SURE, Digits
from securefl.exchange.sums import OpenedSum, Values
from securefl.exchange.value_range import are_in_range

EMPTY = 2.0**-30
"""Largest value in a slot that holds nothing: the rounding of encoders and decoder."""
WEIGHT_BITS = 26
"""Most bits after the point of a weight, which is a size over a power of two: exact for up to 2^26
samples in all if noise allows."""
UNCOUNTED = (
    "the total does not count its clients: it is not the sum of just the messages of those that "
    "have signed, or a client sent rubbish"
)
"""Reason why a total of other clients is refused, whatever else is in it: a server that adds to
the count has it refused in any case, and its words must not depend on the weight."""
SPOILT = (
    "the total's values, weights or empty slots are none that clients may send: a client sent "
    "rubbish, or one lies about its weight"
)
"""Reason why a total of the right clients is refused once it is decrypted. Which bound it breaks
would tell a server, which adds values of its own to a total, a bit of what is in it."""
UNROUNDED_BITS = 52
"""Bits after the leading one that leave a double as it is."""
GUARD_BITS = 6
"""Bits below the noise that are kept, so that rounding adds none."""


@dataclass(frozen=True, slots=True)
class TotalDecoder:
    """Decoder of decrypted totals: the rules that the slots of an honest one keep to."""

    parameters: SumParameters
    n_clients: int
    """Number of clients whose keys the total was opened with."""

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise of their encryption in each slot."""
        return self.parameters.noise(self.n_clients)

    @property
    def weight_bits(self) -> int:
        """Number of bits after the point of a weight: as many as the noise leaves right.

        A size over a smaller power of two then comes out exactly, where steps of 2^-26 are too fine
        for the noise of many clients.
        """
        return min(WEIGHT_BITS, floor(-log2(2 * SURE * self.deviation)))

    @property
    def slot_bits(self) -> int:
        """Number of bits after the point of a slot that are released: those below are noise."""
        return floor(-log2(self.deviation)) + GUARD_BITS

    def decode(self, slots: Values, n_values: int, precision_bits: int) -> OpenedSum:
        """Return the mean, weight and client count of decrypted slots of shape (ciphertexts, N).

        The mean is Σ p_i x_i, where p_i is a client's share of the weight; each value is rounded to
        `precision_bits` bits after its leading one.

        Raises:
            MessageRefused: a count of other than these clients (the keys are not those of just
                these messages, or one of them is rubbish), or of more than digits hold, or
                ciphertexts that do not count the same clients, or slots that are not empty.
        """
        (weight, sound), n_clients = self._weighed(slots), self.n_clients
        digits = Digits.of(self.parameters, n_values)
        if len(digits.gain_bits) > 1 and n_clients > MOST_CLIENTS:
            raise MessageRefused(
                f"the total counts {n_clients} clients, and its digits hold at most {MOST_CLIENTS}"
            )
        filled = slots[:, :-BOOKKEEPING_SLOTS].ravel()
        sums = digits.joined(filled, n_values)
        empty = filled[len(digits.gain_bits) * n_values :]
        sound &= bool(np.abs(empty).max(initial=0.0) <= EMPTY + 16 * self.deviation)
        # Never finer than a slot's last bit: a client that lies about its weight must not get at
        # the digits below.
        finest_bits = digits.finest_bits + self.slot_bits + floor(log2(weight))
        values = relatively_rounded(sums / weight, precision_bits, finest_bits)
        sound &= are_in_range(values, digits.max_value * (1 + COUNT_TOLERANCE))
        if not sound:  # at the end alone: an earlier refusal would tell by its time which it was
            raise MessageRefused(SPOILT)
        return OpenedSum(values, min(weight, 1.0), n_clients)

    def _weighed(self, slots: Values) -> tuple[float, bool]:
        """Return the clients' weight, where all ciphertexts count just these, and if it is sound.

        It is 1 where it is not.
        """
        weights, ones = slots[:, -BOOKKEEPING_SLOTS], slots[:, -1]
        if not np.isfinite(slots).all() or np.abs(ones - self.n_clients).max() > COUNT_TOLERANCE:
            raise MessageRefused(UNCOUNTED)
        rounded_weights = rounded(weights, self.weight_bits)
        # All ciphertexts carry one weight; the median drops a slot that noise has moved most.
        weight = float(np.median(rounded_weights))
        spread = 2.0**-self.weight_bits + 16 * self.deviation
        sound = bool(0 < weight <= 1 + spread and np.ptp(rounded_weights) <= spread)
        return (weight if sound else 1.0), sound


def rounded(values: Values, bits: int) -> Values:
    """Return the nearest multiples of 2^-`bits`."""
    return np.asarray(np.rint(np.ldexp(values, bits)) * 2.0**-bits)


def relatively_rounded(values: Values, bits: int, finest_bits: int) -> Values:
    """Round to `bits` bits after the leading one, and to `finest_bits` after the point at most."""
    _, exponents = np.frexp(values)  # the leading one stands for 2^(exponent - 1)
    step_bits = np.minimum(bits + 1 - exponents, finest_bits)
    return np.asarray(np.ldexp(np.rint(np.ldexp(values, step_bits)), -step_bits))
