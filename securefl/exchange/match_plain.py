"""The profile match in the clear: the server reads every profile."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch

from securefl.errors import DataError, MessageRefused
from securefl.exchange.base import MessageId, Sealed, Sender
from securefl.exchange.matching import HEADER_BYTES, content_of, with_header
from securefl.exchange.profile import Profile, divergence

_SCORE = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class PlainMatch:
    """Means, then variances, as doubles.

    One object for all roles, since in the clear there is nothing to keep apart.
    """

    key_id: str = ""
    epoch: int = 0

    @property
    def form(self) -> str:
        """Names the encoding in every header."""
        return "match/plain"

    def seal(self, profile: Profile, about: MessageId, sender: Sender) -> Sealed:
        """The profile as it is."""
        del about, sender
        values = torch.cat([profile.mean_Q, profile.variance_Q]).double().cpu().numpy()
        return Sealed(with_header(profile, values.astype("<f8").tobytes()))

    def n_bytes(self, q: int) -> int:
        """Exact payload length."""
        return HEADER_BYTES + 2 * q * 8

    def match(self, payload: bytes, baseline: Profile) -> bytes:
        """The divergence as a double."""
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
        """Doubles all the way."""
        del baseline
        return 1e-9

    def open(self, score: bytes) -> float | None:
        """The double; None for what is no finite one."""
        if len(score) != _SCORE.size:
            return None
        (value,) = _SCORE.unpack(score)
        return float(value) if isfinite(value) else None
