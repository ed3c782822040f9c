"""Profile match under one-time keys: a client seals its profile, the server weighs it.

With x = (σ² + μ², μ, mean log σ²) of a client and b the same of the server's baseline, Eq. (58) of
FedProf is linear: div = Σ_u w_u (x_u - b_u). The logarithms enter it by their mean alone, so a
client seals 2q + 1 values. The common polynomials follow from bytes that the client draws and the
server alone is sent, so that whoever opens the score does not learn the weights.
"""

import os
import struct
from dataclasses import dataclass
from math import ceil, ldexp, log2

import numpy as np

from securefl.crypto.derived import SEED_BYTES
from securefl.crypto.one_time import (
    OneTimeKey,
    Rows,
    constant_bytes,
    constant_in,
    polynomial_bytes,
    weighed,
)
from securefl.crypto.params import MATCHES
from securefl.errors import MessageRefused, ValueRefused
from securefl.exchange.one_time import UnderCards
from securefl.exchange.profile_match import (
    HEADER_BYTES,
    MAX_SECOND_MOMENT,
    Profile,
    content_of,
    with_header,
)
from securefl.exchange.sums import ONE_TIME_PROFILE, MessageId, Sealed, Sender, Values, fresh_nonce

MOMENT_UNIT = 4.0
"""Unit of second moments, which are larger than means: so both are rounded alike."""
_SCORE = struct.Struct(f"<b{MATCHES.constant_bytes}s")
"""Layout of a score: exponent and constant coefficient, before the polynomial that opens it."""
SCORE_BYTES = _SCORE.size + MATCHES.ciphertext_bytes
"""Exact length of a score."""


@dataclass(frozen=True, slots=True)
class _ProfilesUnderCards(UnderCards):
    @property
    def form(self) -> str:
        """Form of the payload: see `Channel.form`."""
        return ONE_TIME_PROFILE


@dataclass(frozen=True, slots=True)
class OneTimeProfileSealer(_ProfilesUnderCards):
    """Client's side; `Sender` has the secret that its keys follow from."""

    def seal(self, profile: Profile, about: MessageId, sender: Sender) -> Sealed:
        """Encrypt a profile; always whole ciphertexts.

        Raises:
            ValueRefused: a second moment above `MAX_SECOND_MOMENT`: such scores overflow in
                silence.
        """
        _require_in_range("profile", profile)
        rows, drawn = _rows(_values(profile)), os.urandom(SEED_BYTES)
        nonce = fresh_nonce(rows.tobytes())
        secrets, digest = self.keys.secrets(sender), about.digest("profile")
        key = OneTimeKey.of(secrets, digest, sender.name, nonce, MATCHES)
        return Sealed(with_header(profile, drawn + key.seal(rows, drawn)), nonce.hex())


@dataclass(frozen=True, slots=True)
class OneTimeMatcher(_ProfilesUnderCards):
    """Server's side: weights in the clear, and no key."""

    def n_bytes(self, q: int) -> int:
        """Return the exact payload length."""
        return profile_bytes(q)

    def match(self, payload: bytes, baseline: Profile) -> bytes:
        """Return the score divided by a power of two, and the polynomial that a key opens it by.

        The power of two is that by which the weights amplify a ciphertext's noise.

        Raises:
            ValueRefused: a second moment of the baseline above `MAX_SECOND_MOMENT`.
        """
        _require_in_range("baseline", baseline)
        content = content_of(payload, baseline, self.n_bytes(len(baseline)))
        drawn, message = content[:SEED_BYTES], content[SEED_BYTES:]
        weights, exponent = _weights(baseline)
        constant, polynomial = weighed(message, drawn, _rows(_values(baseline)), weights)
        return _SCORE.pack(exponent, constant_bytes(constant)) + polynomial_bytes(polynomial)

    def precision(self, baseline: Profile) -> float:
        """Return the error of a score: six deviations of noise, rounding of weights and of parts.

        Rounded weights err in proportion to the distance from the baseline. Up to the size of the
        baseline itself that counts here; beyond, the score grows faster than the error.
        """
        size = float(np.sqrt(2 * (_rows(_values(baseline)) ** 2).mean()))
        rounding = size * 2.0**-MATCHES.weight_bits
        parts = len(self.keys.quorum.groups) * 2.0 ** -(MATCHES.scale_bits + 1)
        return ldexp(6 * MATCHES.noise + rounding + parts, _weights(baseline)[1])


def profile_bytes(q: int) -> int:
    """Return the exact payload length of a sealed profile of so many elements."""
    return HEADER_BYTES + SEED_BYTES + _n_ciphertexts(2 * q + 1) * MATCHES.ciphertext_bytes


def split_score(content: bytes) -> tuple[int, int, bytes]:
    """Return exponent, constant and polynomial of a score that `OneTimeMatcher` made.

    Raises:
        MessageRefused: wrong length.
    """
    if len(content) != SCORE_BYTES:
        raise MessageRefused(f"score of {len(content)} bytes, expected {SCORE_BYTES}")
    exponent, constant = _SCORE.unpack_from(content)
    return exponent, constant_in(constant), content[_SCORE.size :]


def without_constant(content: bytes) -> bytes:
    """Return a score as officers are sent it: they answer for its polynomial, and read no score."""
    return bytes(_SCORE.size) + content[_SCORE.size :]


def _require_in_range(what: str, profile: Profile) -> None:
    largest = float((profile.variance_Q + profile.mean_Q.square()).max())
    if largest > MAX_SECOND_MOMENT:
        rule = f"must be within {MAX_SECOND_MOMENT:g}; measure profiles in a larger unit"
        raise ValueRefused(f"{what}: variance + mean² = {largest:.10g} {rule}")


def _arrays(profile: Profile) -> tuple[Values, Values]:
    return profile.mean_Q.double().cpu().numpy(), profile.variance_Q.double().cpu().numpy()


def _values(profile: Profile) -> Values:
    """Return x, shape (2q + 1,)."""
    mean_Q, variance_Q = _arrays(profile)
    moment_Q = (variance_Q + mean_Q**2) / MOMENT_UNIT
    return np.concatenate([moment_Q, mean_Q, [np.log(variance_Q).mean()]])


def _weights(baseline: Profile) -> tuple[Rows, int]:
    """Return 2^-e w, spread over rows as `_rows` spreads x, and e: the least without noise added.

    A mean over complex slots of two values each is then the score.
    """
    mean_Q, variance_Q = _arrays(baseline)
    q = len(mean_Q)
    of_moments = 0.5 * MOMENT_UNIT / (q * variance_Q)
    linear = np.concatenate([of_moments, -mean_Q / (q * variance_Q), [-0.5]])
    # Scores are means over N / 2 slots, in which each value stands `_copies` times.
    rows = _rows(linear) * MATCHES.poly_degree / 2 / _copies(len(linear))
    # At most length 1, so that weights amplify no noise; a power of two, so scaling is exact.
    exponent = ceil(log2(np.sqrt(2 * (rows**2).sum() / MATCHES.poly_degree)))
    return np.ldexp(rows, -exponent), exponent


def _n_ciphertexts(n_values: int) -> int:
    return -(-n_values // MATCHES.poly_degree)


def _copies(n_values: int) -> int:
    """Return how often so many values stand in a ciphertext: copies average its noise."""
    return max(1, MATCHES.poly_degree // n_values)


def _rows(values: Values) -> Rows:
    """Return values in order, or as many whole copies of few as fit, shape (ciphertexts, N)."""
    rows = np.zeros(_n_ciphertexts(len(values)) * MATCHES.poly_degree)
    repeated = np.tile(values, _copies(len(values)))
    rows[: len(repeated)] = repeated
    return rows.reshape(-1, MATCHES.poly_degree)
