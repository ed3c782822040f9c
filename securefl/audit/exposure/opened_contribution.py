"""One client's message of a sum, opened: its values and its weight, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from securefl.audit.exposure.sealed_messages import require_error
from securefl.crypto.one_time import Rows
from securefl.crypto.params import BOOKKEEPING_SLOTS, SUMS
from securefl.errors import MessageRefused
from securefl.exchange.base import Values
from securefl.exchange.decode_total import EMPTY
from securefl.exchange.digits import Digits

ERROR = EMPTY + 16 * SUMS.noise(1)
"""Largest error of a slot of one client's message: its encryption's, 16 standard deviations of it,
and the rounding of encoder and decoder. 1.3e-8."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """One client's values and weight."""

    values: Values
    """Its values, as gains leave them, shape (n_values,)."""
    weight: float


def contribution_in(slots: Rows, n_values: int) -> Contribution:
    """Return the contribution in the slots of one message.

    Raises:
        MessageRefused: it is not what an honest client may send.
    """
    weight = float(slots[0, -BOOKKEEPING_SLOTS])
    if np.abs(slots[:, -BOOKKEEPING_SLOTS:] - [weight, 1.0]).max() > ERROR or weight <= 0:
        raise MessageRefused("it opens to no contribution of one client")
    filled, digits = slots[:, :-BOOKKEEPING_SLOTS].ravel(), Digits.of(SUMS, n_values)
    empty = filled[len(digits.gain_bits) * n_values :]
    if np.abs(empty).max(initial=0.0) > ERROR:
        raise MessageRefused("something stands behind its values")
    require_error(empty, SUMS.noise(1))
    return Contribution(digits.joined(filled, n_values) / weight, weight)
