"""Three ways to write Eq. (58) of FedProf as a polynomial in what a client encrypts.

With x the client's values and b the same values of the server's baseline,
div = constant + Σ_u [squared_u (x_u - b_u)² + linear_u (x_u - b_u)].

LINEAR          x = (σ² + μ², μ, mean log σ²); no square (ours, the default)
FULL            x = (μ, σ², mean log σ²), the square on the ciphertext: Eq. (58)
PLAIN_VARIANCE  x = μ, the square on the ciphertext, variances in the clear: Eq. (59)

The logarithms enter Eq. (58) by their mean alone, so clients send that: 2q + 1 values, not 3q.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securefl.crypto.match_params import LINEAR as LINEAR_PARAMETERS
from securefl.crypto.match_params import SQUARE as SQUARE_PARAMETERS
from securefl.crypto.match_params import MatchParameters
from securefl.errors import ConfigError
from securefl.exchange.base import Values
from securefl.exchange.profile import Profile

MOMENT_UNIT = 4.0
"""Second moments are larger than means: in this unit the linear form rounds both alike."""


@dataclass(frozen=True, slots=True)
class Polynomial:
    """The server's half of a divergence, one entry for each encrypted value."""

    linear: Values
    squared: Values
    constant: float


@dataclass(frozen=True, slots=True)
class MatchForm:
    """What is encrypted, what is not, and how the server weighs it."""

    name: str
    parameters: MatchParameters
    sealed: Callable[[Profile], Values]
    """The values that are encrypted."""
    clear: Callable[[Profile], Values]
    """The values that are not."""
    against: Callable[[Profile, Values], Polynomial]
    """Weights from the baseline and a client's clear values."""
    n_sealed: Callable[[int], int]
    """Encrypted values of a profile of q elements."""
    n_clear: Callable[[int], int]
    """Clear values."""


def _arrays(profile: Profile) -> tuple[Values, Values]:
    return profile.mean_Q.double().cpu().numpy(), profile.variance_Q.double().cpu().numpy()


def _with_mean_log(first_Q: Values, second_Q: Values, variance_Q: Values) -> Values:
    return np.concatenate([first_Q, second_Q, [np.log(variance_Q).mean()]])


def _linear_sealed(profile: Profile) -> Values:
    mean_Q, variance_Q = _arrays(profile)
    return _with_mean_log((variance_Q + mean_Q**2) / MOMENT_UNIT, mean_Q, variance_Q)


def _linear_against(baseline: Profile, clear: NDArray[np.float64]) -> Polynomial:
    del clear
    mean_Q, variance_Q = _arrays(baseline)
    q = len(mean_Q)
    moment_weight_Q = 0.5 * MOMENT_UNIT / (q * variance_Q)
    mean_weight_Q = -mean_Q / (q * variance_Q)
    linear = np.concatenate([moment_weight_Q, mean_weight_Q, [-0.5]])
    return Polynomial(linear, np.zeros_like(linear), 0.0)


def _full_sealed(profile: Profile) -> Values:
    mean_Q, variance_Q = _arrays(profile)
    return _with_mean_log(mean_Q, variance_Q, variance_Q)


def _full_against(baseline: Profile, clear: NDArray[np.float64]) -> Polynomial:
    del clear
    _, variance_Q = _arrays(baseline)
    weight_Q = 0.5 / (len(variance_Q) * variance_Q)
    zero_Q = np.zeros_like(weight_Q)
    linear = np.concatenate([zero_Q, weight_Q, [-0.5]])
    squared = np.concatenate([weight_Q, zero_Q, [0.0]])
    return Polynomial(linear, squared, 0.0)


def _plain_variance_against(baseline: Profile, clear: NDArray[np.float64]) -> Polynomial:
    _, variance_Q = _arrays(baseline)
    ratio_Q = clear / variance_Q
    constant = 0.5 * float((ratio_Q - np.log(ratio_Q) - 1).mean())
    squared = 0.5 / (len(variance_Q) * variance_Q)
    return Polynomial(np.zeros_like(squared), squared, constant)


LINEAR = MatchForm(
    name="linear",
    parameters=LINEAR_PARAMETERS,
    sealed=_linear_sealed,
    clear=lambda _: np.empty(0),
    against=_linear_against,
    n_sealed=lambda q: 2 * q + 1,
    n_clear=lambda _: 0,
)
FULL = MatchForm(
    name="full",
    parameters=SQUARE_PARAMETERS,
    sealed=_full_sealed,
    clear=lambda _: np.empty(0),
    against=_full_against,
    n_sealed=lambda q: 2 * q + 1,
    n_clear=lambda _: 0,
)
PLAIN_VARIANCE = MatchForm(
    name="plain-variance",
    parameters=SQUARE_PARAMETERS,
    sealed=lambda profile: _arrays(profile)[0],
    clear=lambda profile: _arrays(profile)[1],
    against=_plain_variance_against,
    n_sealed=lambda q: q,
    n_clear=lambda q: q,
)
FORMS = {form.name: form for form in (LINEAR, FULL, PLAIN_VARIANCE)}
"""By name."""


def require_parameters_of(form: MatchForm, parameters: MatchParameters) -> None:
    """Raises ConfigError where a key of these parameters is for another form."""
    if parameters != form.parameters:
        option = form.name.replace("_", "-")
        raise ConfigError(
            f"the match key is of degree {parameters.degree}, N = {parameters.poly_degree}, and "
            f"not for the form {option}: make one with: securefl keys init --match {option}"
        )
