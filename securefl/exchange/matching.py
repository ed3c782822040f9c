"""The three verbs of a profile match: a client seals, the server matches, the authority opens.

As in `base`, a capability is an object: a role that holds no `ScoreOpener` cannot spell "open".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

from securefl.errors import MessageRefused
from securefl.exchange.base import Channel
from securefl.exchange.profile import Profile

PROFILE, SCORE, UNIT = "profile", "profile/score", "profile/unit"
"""Names of the messages: a client's profile, what the server makes of it, and what all measure in.
"""
_HEADER = struct.Struct("<4sIQ")
_MAGIC = b"prf1"
HEADER_BYTES = _HEADER.size


class ProfileSealer(Channel, Protocol):
    """A client's side."""

    def seal(self, profile: Profile) -> bytes:
        """The payload of one message; raises ValueRefused where it cannot be sealed."""


class Matcher(Channel, Protocol):
    """The server's side. It can neither make nor read a profile."""

    def n_bytes(self, q: int) -> int:
        """Exact payload length of a profile of so many elements."""

    def n_clear(self, q: int) -> int:
        """How many of its 2q values are not encrypted."""

    def match(self, payload: bytes, baseline: Profile) -> bytes:
        """The score (1/q) Σ KL(N_k ‖ N_B), for a `ScoreOpener`.

        Raises:
            MessageRefused: `payload` is no profile of the baseline's length and version.
        """

    def precision(self, baseline: Profile) -> float:
        """An opened score is within this, and 1e-4 of itself, of the exact one."""


class ScoreOpener(Channel, Protocol):
    """Reads scores, and nothing else of a profile."""

    def open(self, scores: Sequence[bytes]) -> list[float | None]:
        """Several clients' scores in one call, in the order given; None where one is no score.

        So a client that sends rubbish keeps no other client's score back.

        Raises:
            OpeningRefused: the key has released as many scores as it may; none is opened.
        """


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
