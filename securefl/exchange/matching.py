"""The verbs of a profile match: a client seals, the server matches; an `Opener` opens scores."""

from __future__ import annotations

import struct
from typing import Protocol

from securefl.errors import MessageRefused
from securefl.exchange.base import Channel, MessageId, Sealed, Sender
from securefl.exchange.profile import Profile

PROFILE, SCORE, UNIT = "profile", "profile/score", "profile/unit"
"""Names of the messages: a client's profile, what the server makes of it, and what all measure in.
"""
_HEADER = struct.Struct("<4sIQ")
_MAGIC = b"prf1"
HEADER_BYTES = _HEADER.size


class ProfileSealer(Channel, Protocol):
    """A client's side."""

    def seal(self, profile: Profile, about: MessageId, sender: Sender) -> Sealed:
        """The payload of one message; raises ValueRefused where it cannot be sealed."""


class Matcher(Channel, Protocol):
    """The server's side. It can neither make nor read a profile."""

    def n_bytes(self, q: int) -> int:
        """Exact payload length of a profile of so many elements."""

    def match(self, payload: bytes, baseline: Profile) -> bytes:
        """The score (1/q) Σ KL(N_k ‖ N_B), for whoever opens it.

        Raises:
            MessageRefused: `payload` is no profile of the baseline's length and version.
        """

    def precision(self, baseline: Profile) -> float:
        """An opened score is within this, and 1e-4 of itself, of the exact one."""


def with_header(profile: Profile, content: bytes) -> bytes:
    """What the server must know in clear: the profile's length and version."""
    return _HEADER.pack(_MAGIC, len(profile), profile.version) + content


def content_of(payload: bytes, baseline: Profile, n_bytes: int) -> bytes:
    """What follows the header.

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
