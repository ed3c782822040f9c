"""The profile match on ciphertext: clients encrypt, the server weighs and blinds."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import ceil, ldexp, log2

import numpy as np
from numpy.typing import NDArray

from securefl.crypto.artefact import CODEC
from securefl.crypto.match_params import MatchParameters
from securefl.crypto.match_public import MatchPublicKey, ScoringContext, Slots, Weights
from securefl.errors import MessageRefused, ValueRefused
from securefl.exchange.base import Values
from securefl.exchange.match_flood import flood_deviation
from securefl.exchange.match_forms import MatchForm, Polynomial, require_parameters_of
from securefl.exchange.matching import HEADER_BYTES, content_of, with_header
from securefl.exchange.profile import MAX_SECOND_MOMENT, VARIANCE_FLOOR, Profile

MAX_MEAN_DISTANCE = 2 * MAX_SECOND_MOMENT**0.5
EXPONENT = struct.Struct("<b")


def form_name(form: MatchForm) -> str:
    """Names TenSEAL's version, whose wire format changes."""
    return f"match/{form.name}/{CODEC}"


@dataclass(frozen=True, slots=True)
class CkksProfileSealer:
    """A client's side; raises ConfigError where the key is for another form."""

    match_form: MatchForm
    public_key: MatchPublicKey

    def __post_init__(self) -> None:
        require_parameters_of(self.match_form, self.public_key.parameters)

    @property
    def form(self) -> str:
        """Names form and codec."""
        return form_name(self.match_form)

    @property
    def key_id(self) -> str:
        """The key that opens the score."""
        return self.public_key.key_id

    @property
    def epoch(self) -> int:
        """The key's."""
        return self.public_key.epoch

    def seal(self, profile: Profile) -> bytes:
        """Encrypt; always whole ciphertexts.

        Raises:
            ValueRefused: a second moment above `MAX_SECOND_MOMENT`: such sums overflow in silence.
        """
        _require_in_range("profile", profile)
        slots = packed(self.match_form.sealed(profile), self.match_form.parameters)
        clear = self.match_form.clear(profile).astype("<f8").tobytes()
        return with_header(profile, clear + self.public_key.encrypt(slots))


@dataclass(frozen=True, slots=True)
class CkksMatcher:
    """The server's side: plaintext weights, no evaluation key.

    Raises:
        ConfigError: the context is for another form.
    """

    match_form: MatchForm
    context: ScoringContext

    def __post_init__(self) -> None:
        require_parameters_of(self.match_form, self.context.parameters)

    @property
    def form(self) -> str:
        """The only encoding that it matches."""
        return form_name(self.match_form)

    @property
    def key_id(self) -> str:
        """The only key id that it accepts."""
        return self.context.key_id

    @property
    def epoch(self) -> int:
        """The key's."""
        return self.context.epoch

    def n_bytes(self, q: int) -> int:
        """Exact payload length."""
        count = n_ciphertexts(self.match_form.n_sealed(q), self.match_form.parameters)
        return HEADER_BYTES + 8 * self.match_form.n_clear(q) + count * self.context.frame.n_bytes

    def n_clear(self, q: int) -> int:
        """Variances, where the form says so."""
        return self.match_form.n_clear(q)

    def match(self, payload: bytes, baseline: Profile) -> bytes:
        """The score divided by a power of two, encrypted and blinded, behind its exponent.

        The power of two is that by which the baseline's weights amplify a ciphertext's noise; so
        the authority can flood all scores alike.

        Raises:
            ValueRefused: a second moment of the baseline above `MAX_SECOND_MOMENT`.
        """
        form = self.match_form
        _require_in_range("baseline", baseline)
        content = content_of(payload, baseline, self.n_bytes(len(baseline)))
        n_clear = form.n_clear(len(baseline))
        clear = np.frombuffer(content, "<f8", n_clear)
        if not ((clear >= VARIANCE_FLOOR) & (clear <= MAX_SECOND_MOMENT)).all():
            raise MessageRefused(
                f"profile with a variance outside {VARIANCE_FLOOR:g}..{MAX_SECOND_MOMENT:g}"
            )
        polynomial = form.against(baseline, clear)
        exponent = amplification_bits(polynomial, form.parameters)
        scale = ldexp(1.0, -exponent)
        weights = Weights(
            baseline=packed(form.sealed(baseline), form.parameters),
            linear=scale * _spread(polynomial.linear, form.parameters),
            squared=scale * _spread(polynomial.squared, form.parameters),
            constant=scale * polynomial.constant,
        )
        return EXPONENT.pack(exponent) + self.context.score(content[8 * n_clear :], weights)

    def precision(self, baseline: Profile) -> float:
        """Six deviations of the flooding, and the rounding of weights.

        Rounded weights err in proportion to the distance from the baseline. Up to the size of the
        baseline itself that counts here; beyond, the score grows faster than the error.
        """
        form, parameters = self.match_form, self.match_form.parameters
        exponent = amplification_bits(form.against(baseline, form.clear(baseline)), parameters)
        size = float(np.sqrt((packed(form.sealed(baseline), parameters) ** 2).mean()))
        rounding = size * 2.0**-parameters.linear_bits
        return ldexp(6 * flood_deviation(parameters) + rounding, exponent)


def _require_in_range(what: str, profile: Profile) -> None:
    largest = float((profile.variance_Q + profile.mean_Q.square()).max())
    if largest > MAX_SECOND_MOMENT:
        rule = f"must be within {MAX_SECOND_MOMENT:g}; measure profiles in a larger unit"
        raise ValueRefused(
            f"{what}: variance + mean² = {largest:.10g} {rule}", f"{what}: variance + mean² {rule}"
        )


def n_ciphertexts(n_values: int, parameters: MatchParameters) -> int:
    """Ciphertexts of so many values."""
    return -(-n_values // parameters.slots)


def packed(values: Values, parameters: MatchParameters) -> Slots:
    """Rows of slots: values in order, or as many whole copies of few values as fit.

    The score is a mean over slots, so copies average a ciphertext's noise.
    """
    count = n_ciphertexts(len(values), parameters)
    slots = np.zeros(count * parameters.slots)
    repeated = np.tile(values, copies(len(values), parameters))
    slots[: len(repeated)] = repeated
    return slots.reshape(count, -1)


def copies(n_values: int, parameters: MatchParameters) -> int:
    """How often so many values stand in the slots."""
    return max(1, parameters.slots // n_values)


def _spread(weights: Values, parameters: MatchParameters) -> Slots:
    """Weights for the slots, so that the mean over a row of slots is a sum over values."""
    return packed(weights, parameters) * parameters.slots / copies(len(weights), parameters)


def amplification_bits(polynomial: Polynomial, parameters: MatchParameters) -> int:
    """The least e such that 2^-e times the polynomial amplifies no noise and overflows nothing."""

    def norm(weights: NDArray[np.float64]) -> float:
        slots = _spread(weights, parameters)
        return float(len(slots) * np.sqrt((slots**2).mean()))

    slope = norm(polynomial.linear) + 2 * MAX_MEAN_DISTANCE * norm(polynomial.squared)
    return ceil(log2(slope))
