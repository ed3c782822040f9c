"""Messages under one-time keys, opened one by one, and totals that are one client's own.

A profile's values are (σ² + μ²) / 4, μ and the mean of log σ². The last follows from the others, so
that it can hold nothing of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import final

import numpy as np

from securefl.crypto.one_time import Rows
from securefl.crypto.params import BOOKKEEPING_SLOTS, MATCHES, SUMS
from securefl.errors import MessageRefused
from securefl.exchange.decode_total import EMPTY
from securefl.exchange.digits import Digits
from securefl.exchange.one_time_match import MOMENT_UNIT
from securefl.exchange.profile_match import MAX_SECOND_MOMENT, VARIANCE_FLOOR
from securefl.exchange.sums import Values

_ENOUGH = 100
"""Slots from which an error's size can be told: with a quarter of the variance once in 10^14."""
CONTRIBUTION_ERROR = EMPTY + 16 * SUMS.noise(1)
"""Largest error of a slot of one client's message: its encryption's, 16 standard deviations of it,
and the rounding of encoder and decoder. 1.3e-8."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class OpenedContribution:
    """Values and weight of one client."""

    values: Values
    """Values as gains leave them, shape (n_values,)."""
    weight: float


def contribution_in(slots: Rows, n_values: int) -> OpenedContribution:
    """Return the contribution in the slots of one message.

    Raises:
        MessageRefused: it is not what an honest client may send.
    """
    weight = float(slots[0, -BOOKKEEPING_SLOTS])
    if (
        np.abs(slots[:, -BOOKKEEPING_SLOTS:] - [weight, 1.0]).max() > CONTRIBUTION_ERROR
        or weight <= 0
    ):
        raise MessageRefused("it opens to no contribution of one client")
    filled, digits = slots[:, :-BOOKKEEPING_SLOTS].ravel(), Digits.of(SUMS, n_values)
    empty = filled[len(digits.gain_bits) * n_values :]
    if np.abs(empty).max(initial=0.0) > CONTRIBUTION_ERROR:
        raise MessageRefused("something stands behind its values")
    require_error(empty, SUMS.noise(1))
    return OpenedContribution(digits.joined(filled, n_values) / weight, weight)


NOISE = MATCHES.noise * sqrt(MATCHES.poly_degree / 2)
"""Standard deviation of a slot's error. A slot is the sum of N coefficients on the unit circle,
half of whose variance is in its real part: 2.7e-7."""
PROFILE_ERROR = 16 * NOISE
"""Largest error of a slot."""
_LARGEST = MAX_SECOND_MOMENT / MOMENT_UNIT
"""Largest value of a profile: of a second moment; the logarithm of the least variance is -13.8."""


def require_profile(slots: Rows, q: int) -> None:
    """Raise MessageRefused unless slots hold one profile of q elements, as often as it fits."""
    flat, n_values = slots.ravel(), 2 * q + 1
    if np.abs(flat).max() > _LARGEST + PROFILE_ERROR:
        raise MessageRefused("it opens to no profile")
    copies = max(1, MATCHES.poly_degree // n_values)
    filled, empty = np.split(flat, [copies * n_values])
    copied = filled.reshape(copies, n_values)
    if np.abs(empty).max(initial=0.0) > PROFILE_ERROR:
        raise MessageRefused("something stands behind its values")
    values = copied.mean(axis=0)
    if np.abs(copied - values).max() > PROFILE_ERROR:
        raise MessageRefused("its copies of the profile are not alike")
    halves = copied[: copies // 2] - copied[copies // 2 : copies // 2 * 2]
    require_error(np.concatenate([empty, halves.ravel() / sqrt(2)]), NOISE)
    _require_consistent(values, PROFILE_ERROR / sqrt(copies))


def _require_consistent(values: Values, error: float) -> None:
    """Raise MessageRefused unless each value may be a profile's that is known to ± `error`."""
    moment_Q, mean_Q = np.split(values[:-1], 2)
    variance_Q = MOMENT_UNIT * moment_Q - mean_Q**2
    off_Q = error * (MOMENT_UNIT + 2 * np.abs(mean_Q) + error)
    if (variance_Q + off_Q).min() < VARIANCE_FLOOR:
        raise MessageRefused("it opens to a profile with a variance that none has")
    least, most = (
        np.log(np.maximum(variance_Q + sign * off_Q, VARIANCE_FLOOR)).mean() for sign in (-1, 1)
    )
    if not least - error <= values[-1] <= most + error:
        raise MessageRefused("its last value is not the mean logarithm of its variances")


def require_error(slots: Values, noise: float) -> None:
    """Raise MessageRefused where slots that hold nothing show no error, or a small one."""
    if len(slots) >= _ENOUGH and np.mean(slots**2) < noise**2 / 4:
        raise MessageRefused("its encryption has no error, or a small one: the key is readable")


_SAME = 1e-4
"""Error that counts as none, relative to the largest value: rounding to 2^-16, and 32 bits."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class SentValues:
    """Values that one client sent to be added up."""

    client: str
    values: Values
    weight: float


def unaggregated(told: Values, sent: Sequence[SentValues]) -> str:
    """Return the client whose values these are, where their mean is something else; else ""."""
    alike = [one for one in sent if len(one.values) == len(told)]
    if len(alike) < 2:
        return ""
    rows = np.stack([one.values for one in alike])
    mean = np.average(rows, 0, [one.weight for one in alike])
    same = _SAME * max(1.0, float(np.abs(told).max()))
    if np.abs(told - mean).max() <= 4 * same:
        return ""
    return next((o.client for o in alike if np.abs(told - o.values).max() <= same), "")
