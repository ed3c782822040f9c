"""Representation profiles (Wu et al., FedProf, section 3.2), and the match between them.

Tensor names end with their axes: Q representation elements.
"""

import struct
from dataclasses import dataclass
from math import ceil, isfinite, log2
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from securefl.errors import DataError, MessageRefused
from securefl.exchange.sums import Channel, MessageId, Sealed, Sender

VARIANCE_FLOOR = 1e-6
"""Least variance of a profile; an element that never moves would be infinitely far."""

MAX_SECOND_MOMENT = 64.0
"""Largest σ² + μ² of an element that travels; so |μ| is at most 8."""


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """Mean and variance of each representation element, under one version of the global model.

    Variances below `VARIANCE_FLOOR` are raised to it.

    Raises:
        DataError: no element, means and variances of different length, a value that is not
            finite, a negative variance, or a negative version.
    """

    mean_Q: Float64[Tensor, " Q"]
    variance_Q: Float64[Tensor, " Q"]
    version: int
    """Number of rounds completed by the model that the profile was made with."""

    def __post_init__(self) -> None:
        mean_Q, variance_Q = self.mean_Q, self.variance_Q
        if mean_Q.shape != variance_Q.shape or mean_Q.dim() != 1 or not len(mean_Q):
            raise DataError(
                f"a profile of means {tuple(mean_Q.shape)} and variances "
                f"{tuple(variance_Q.shape)}: must be one of each per element, and one at least"
            )
        if not (mean_Q.isfinite().all() and variance_Q.isfinite().all()):
            raise DataError("a profile holds NaN or infinity: has the model diverged?")
        if (variance_Q < 0).any():
            raise DataError(f"a profile holds the variance {float(variance_Q.min())}: must be >= 0")
        if self.version < 0:
            raise DataError(f"version = {self.version}: counts rounds, from 0 on")
        object.__setattr__(self, "variance_Q", variance_Q.clamp(min=VARIANCE_FLOOR))

    def __len__(self) -> int:
        return len(self.mean_Q)

    def in_unit(self, unit: float) -> "Profile":
        """Return the profile of the same data with h / unit in the place of h.

        No divergence changes where both profiles are in one unit and no variance is at the floor.
        """
        return Profile(self.mean_Q / unit, self.variance_Q / unit / unit, self.version)

    def in_range(self) -> "Profile":
        """Return the profile with every σ² + μ² above `MAX_SECOND_MOMENT` shrunk to it.

        So what is too far to be sealed is sealed as far as that goes.
        """
        # Roots, as squares may be infinite; a hair less, for rounding and for the variance's floor.
        size_Q = torch.hypot(self.mean_Q, self.variance_Q.sqrt())
        share_Q = ((MAX_SECOND_MOMENT - 2 * VARIANCE_FLOOR) ** 0.5 / size_Q).clamp(max=1)
        return Profile(self.mean_Q * share_Q, self.variance_Q * share_Q.square(), self.version)


def range_unit(baseline: Profile) -> float:
    """Return the power of two in which the baseline's largest σ² + μ² is in 4..16.

    Smaller units lose fewer digits to a score's error, larger ones leave clients more room: here
    theirs may be 4 to 16 times as large.
    """
    moment = float((baseline.variance_Q + baseline.mean_Q.square()).max())
    return 2.0 ** ceil(log2(moment / 16) / 2)


def divergence(profile: Profile, baseline: Profile) -> float:
    """Return the divergence (1/q) Σ_u KL(N_k ‖ N_B) from the baseline, Eqs. (3) and (58).

    Equal profiles give 0. Eq. (4) leaves out the -½ that Eq. (58) has, and would give ½.

    Raises:
        DataError: profiles of different length, or of different versions of the model.
    """
    if len(profile) != len(baseline):
        raise DataError(
            f"a profile of {len(profile)} elements, a baseline of {len(baseline)}: profile the "
            "same layer"
        )
    if profile.version != baseline.version:
        raise DataError(
            f"a profile of version {profile.version}, a baseline of version {baseline.version}: "
            "profiles are compared under the same model"
        )
    ratio_Q = profile.variance_Q / baseline.variance_Q
    shift_Q = (profile.mean_Q - baseline.mean_Q).square() / baseline.variance_Q
    return float((ratio_Q + shift_Q - ratio_Q.log() - 1).mean() / 2)


SCORE, UNIT = "profile/score", "profile/unit"
"""Names of the messages with what the server makes of a profile, and with what all measure in."""
_HEADER = struct.Struct("<4sIQ")
_MAGIC = b"prf1"
HEADER_BYTES = _HEADER.size


class ProfileSealer(Channel, Protocol):
    """Client's side of the match."""

    def seal(self, profile: Profile, about: MessageId, sender: Sender) -> Sealed:
        """Seal the payload of one message; raises ValueRefused where it cannot be sealed."""


class Matcher(Channel, Protocol):
    """Server's side of the match. It can neither make nor read a profile."""

    def n_bytes(self, q: int) -> int:
        """Return the exact payload length of a profile of so many elements."""

    def match(self, payload: bytes, baseline: Profile) -> bytes:
        """Return the score (1/q) Σ KL(N_k ‖ N_B), for whoever opens it.

        Raises:
            MessageRefused: `payload` is no profile of the baseline's length and version.
        """

    def precision(self, baseline: Profile) -> float:
        """Return the largest error of an opened score, beside 1e-4 of the exact one."""


def with_header(profile: Profile, content: bytes) -> bytes:
    """Put before the content what the server must know in clear: length and version."""
    return _HEADER.pack(_MAGIC, len(profile), profile.version) + content


def content_of(payload: bytes, baseline: Profile, n_bytes: int) -> bytes:
    """Return what follows the header.

    Raises:
        MessageRefused: not `n_bytes` long, or of another length or version than the baseline's.
    """
    if len(payload) != n_bytes:
        raise MessageRefused(f"profile of {len(payload)} bytes, expected exactly {n_bytes}")
    magic, q, version = _HEADER.unpack_from(payload)
    if magic != _MAGIC:
        raise MessageRefused("the payload is no profile")
    if q != len(baseline):
        raise MessageRefused(f"profile of {q} elements, the baseline has {len(baseline)}")
    if version != baseline.version:
        raise MessageRefused(
            f"profile of version {version}, the baseline is of version {baseline.version}"
        )
    return payload[HEADER_BYTES:]


_SCORE = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class PlainMatch:
    """Match in the clear: means, then variances, as doubles.

    One object for all roles, since in the clear there is nothing to keep apart.
    """

    key_id: str = ""
    epoch: int = 0

    @property
    def form(self) -> str:
        """Name of the encoding in every header."""
        return "match/plain"

    def seal(self, profile: Profile, about: MessageId, sender: Sender) -> Sealed:
        """Return the profile as it is."""
        del about, sender
        values = torch.cat([profile.mean_Q, profile.variance_Q]).double().cpu().numpy()
        return Sealed(with_header(profile, values.astype("<f8").tobytes()))

    def n_bytes(self, q: int) -> int:
        """Return the exact payload length."""
        return HEADER_BYTES + 2 * q * 8

    def match(self, payload: bytes, baseline: Profile) -> bytes:
        """Return the divergence as a double."""
        q = len(baseline)
        values = np.frombuffer(content_of(payload, baseline, self.n_bytes(q)), "<f8").copy()
        try:
            profile = Profile(
                torch.from_numpy(values[:q]), torch.from_numpy(values[q:]), baseline.version
            )
        except DataError as error:
            # Without the value: what is refused is written down for others to read.
            raise MessageRefused(
                "the profile holds a value that is not finite, or a negative variance"
            ) from error
        return _SCORE.pack(divergence(profile, baseline))

    def precision(self, baseline: Profile) -> float:
        """Return 1e-9: doubles all the way."""
        del baseline
        return 1e-9

    def open(self, score: bytes) -> float | None:
        """Return the double; None for what is no finite one."""
        if len(score) != _SCORE.size:
            return None
        (value,) = _SCORE.unpack(score)
        return float(value) if isfinite(value) else None
