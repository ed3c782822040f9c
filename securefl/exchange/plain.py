"""Sums in the clear: the server reads every contribution."""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securefl.crypto.params import SUMS
from securefl.errors import MessageRefused
from securefl.exchange.digits import Digits
from securefl.exchange.policy import require_clients
from securefl.exchange.sums import MessageId, OpenedSum, Sealed, Sender, Values
from securefl.types import Floats, MessageSpec

_WEIGHT = struct.Struct("<d")
WEIGHT_TOLERANCE = 1e-9
_TOTAL = struct.Struct("<dq")
LARGEST = Digits.of(SUMS, 1).max_value
"""Widest range in which values can be sealed: one client's 1e38 would be all that is left."""


@dataclass(frozen=True, slots=True)
class PlainChannel:
    """Channel in the clear: values in the model's own precision, then the weight as a double.

    One object for all three roles, since in the clear there is nothing to keep apart.
    """

    dtype: Floats
    min_clients: int = 1
    """Least number of clients in a total: the authority's rule, where there is no authority."""
    key_id: str = ""
    epoch: int = 0

    @property
    def form(self) -> str:
        """Name of the encoding in every header."""
        return f"plain/{self.dtype}"

    def max_value(self, n_values: int) -> float:
        """Return `LARGEST`, for any number of values."""
        del n_values
        return LARGEST

    def gains(self, spec: MessageSpec) -> float:
        """Return 1: values travel as they are."""
        del spec
        return 1.0

    def seal(
        self, values: NDArray[np.floating], weight: float, about: MessageId, sender: Sender
    ) -> Sealed:
        """Return the values as they are, and the weight."""
        del about, sender
        own = values.astype(self.dtype, copy=False).data
        return Sealed(b"".join((own, _WEIGHT.pack(weight))))

    def n_bytes(self, n_values: int) -> int:
        """Return the exact payload length."""
        return n_values * np.dtype(self.dtype).itemsize + _WEIGHT.size

    def start(self, n_values: int) -> "PlainSum":
        """Return an empty sum."""
        return PlainSum(self.dtype, np.zeros(n_values))

    def open(self, total: bytes, n_values: int) -> OpenedSum:
        """Divide by the sum of weights.

        Raises:
            TooFewContributions: fewer than `min_clients`.
            MessageRefused: no total of so many values.
        """
        weight, n_clients = _TOTAL.unpack_from(total)
        values = np.frombuffer(total, offset=_TOTAL.size)
        if len(values) != n_values:
            raise MessageRefused(f"total of {len(values)} values, expected {n_values}")
        if not 0 < weight <= 1 + WEIGHT_TOLERANCE or not np.isfinite(values).all():
            raise MessageRefused(f"total that is not finite, or of weight {weight} outside (0, 1]")
        require_clients(n_clients, self.min_clients)
        return OpenedSum(values / weight, weight, n_clients)


@dataclass(frozen=True, slots=True)
class PlainSum:
    """Running sum of weight_i x_i in double precision, in the order of arrival."""

    dtype: str
    values: Values
    weight: float = 0.0
    n_clients: int = 0

    def plus(self, payload: bytes | memoryview, most: float = 1.0) -> "PlainSum":
        """Return the sum with one contribution more, of a weight of at most `most`.

        Raises:
            MessageRefused: another size, a value beyond ±`LARGEST`, or no such weight.
        """
        n_bytes = len(self.values) * np.dtype(self.dtype).itemsize
        if len(payload) != n_bytes + _WEIGHT.size:
            raise MessageRefused(
                f"payload of {len(payload)} bytes, expected {n_bytes} and a weight"
            )
        (weight,) = _WEIGHT.unpack_from(payload, n_bytes)
        values = np.frombuffer(payload, self.dtype, len(self.values))
        if not 0 < weight <= 1:
            raise MessageRefused(f"weight {weight} outside (0, 1]")
        if weight > most * (1 + WEIGHT_TOLERANCE):
            raise MessageRefused(f"weight {weight}, and by the settings it is at most {most}")
        # Written so that NaN, which compares false with everything, is refused.
        if not (float(values.min()) >= -LARGEST and float(values.max()) <= LARGEST):
            raise MessageRefused(f"values that are not finite, or not within ±{LARGEST:.0f}")
        total = np.multiply(values, weight, dtype=np.float64)
        total += self.values
        return PlainSum(self.dtype, total, self.weight + weight, self.n_clients + 1)

    def total(self) -> bytes:
        """Return the three sums."""
        return b"".join((_TOTAL.pack(self.weight, self.n_clients), self.values.data))
