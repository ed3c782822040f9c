"""Digits: weighted values in a mixed base, where a message leaves slots empty.

A slot holds ±8192 and errs by the noise of encryption, about 1e-9. A message of a few values
leaves most of its slots empty. So each value is written as two to five digits, a slot each, at
public gains 2^10 apart. All but the last are whole numbers of a unit far above the noise, so their
sums are read without error; the last carries the rest. The sum of the digits is the sum of the
values: what is released says no more, no state is needed, and any size does.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from securefl.crypto.params import SumParameters
from securefl.exchange.sums import Values

STEP_BITS = 10
"""Bits from one digit's gain to the next one's."""
UNIT_BITS = 12
"""Bits after the point of a digit that is read without error."""
MOST_CLIENTS = 2 ** (13 - STEP_BITS + UNIT_BITS + 1)
"""Most clients: each rounds a digit by half a unit at most, and these fit into the next slot."""
SURE = 6
"""Bound on noise, in standard deviations: more come once in 10^9 times."""
GAIN_BITS = ((0,), (0, 10), (0, 10, 20), (-10, 0, 10, 20), (-10, 0, 10, 20, 30))
"""Gains by number of digits, the coarsest first. Finer ones come before a wider range: with three,
sums err by 1e-15."""


@dataclass(frozen=True, slots=True)
class Digits:
    """Layout of one message's values in its slots: all first digits, then all second ones."""

    gain_bits: tuple[int, ...]
    """Digit j holds what is left of the value times 2^`gain_bits[j]`."""
    slot_range: float
    """Largest absolute value of a slot's total."""

    @classmethod
    def of(cls, parameters: SumParameters, n_values: int) -> Self:
        """Return as many digits as fit into the ciphertexts that so many values take anyway.

        One where the noise of the most clients would drown the unit: parameters of a small scale.
        """
        n_slots = parameters.n_ciphertexts(n_values) * parameters.values_per_ciphertext
        exact = is_exact(parameters.noise(MOST_CLIENTS))
        n_digits = min(n_slots // n_values, len(GAIN_BITS)) if exact else 1
        return cls(GAIN_BITS[n_digits - 1], parameters.max_value)

    @property
    def max_value(self) -> float:
        """Largest absolute value, and mean, that the first digit holds: weights sum to one."""
        return float(np.ldexp(self.slot_range, -self.gain_bits[0]))

    @property
    def finest_bits(self) -> int:
        """Gain of the last digit, whose noise is that of the value."""
        return self.gain_bits[-1]

    def split(self, weighted: Values) -> Values:
        """Return the slots' content, shape (digits x n_values,)."""
        rest, digits = weighted, []
        for bits in self.gain_bits[:-1]:
            digit = _rounded(rest * 2.0**bits)
            digits.append(digit)
            rest = rest - digit * 2.0**-bits  # exact: both are multiples of rest's last bit
        return np.concatenate([*digits, rest * 2.0**self.finest_bits])

    def joined(self, slots: Values, n_values: int) -> Values:
        """Return Σ p_i x_i, shape (n_values,), of the totals of what `split` gave."""
        *coarse, finest = slots[: len(self.gain_bits) * n_values].reshape(-1, n_values)
        *bits, _ = self.gain_bits
        total = finest * 2.0**-self.finest_bits
        for digit, of_digit in zip(reversed(coarse), reversed(bits), strict=True):
            total = total + _rounded(digit) * 2.0**-of_digit
        return total


def is_exact(deviation: float) -> bool:
    """Return whether a digit is read without error under noise of so many standard deviations."""
    return SURE * deviation < 2.0 ** -(UNIT_BITS + 1)


def _rounded(digit: Values) -> Values:
    return np.asarray(np.rint(digit * 2.0**UNIT_BITS) * 2.0**-UNIT_BITS)
