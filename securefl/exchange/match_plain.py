"""The profile match in the clear: the server reads every profile."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch

from securefl.errors import DataError, MessageRefused
from securefl.exchange.base import Values
from securefl.exchange.gaussian import gaussian
from securefl.exchange.matching import HEADER_BYTES, content_of, with_header
from securefl.exchange.profile import Profile, divergence
from securefl.exchange.score_noise import ScoreNoise

_SCORE = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class PlainMatch:
    """Means, then variances, as doubles.

    One object for all three roles, since in the clear there is nothing to keep apart.
    """

    key_id: str = ""
    epoch: int = 0
    noise: ScoreNoise | None = None
    """So that scores mean what they do under a key. The server reads the profiles themselves: it
    hides clients from those who read scores alone, and not from the server."""
    draw: Callable[[int, float], Values] = gaussian
    """Size and deviation to the noise."""

    @property
    def form(self) -> str:
        """Names the encoding in every header."""
        return "match/plain"

    def seal(self, profile: Profile) -> bytes:
        """The profile as it is."""
        values = torch.cat([profile.mean_Q, profile.variance_Q]).double().cpu().numpy()
        return with_header(profile, values.astype("<f8").tobytes())

    def n_bytes(self, q: int) -> int:
        """Exact payload length."""
        return HEADER_BYTES + 2 * q * 8

    def n_clear(self, q: int) -> int:
        """All of them."""
        return 2 * q

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

    def open(self, scores: Sequence[bytes]) -> list[float | None]:
        """The doubles, with `noise` clipped and noised; None for what is no finite one."""
        return [self._released(score) for score in scores]

    def _released(self, score: bytes) -> float | None:
        exact = _opened(score)
        if exact is None or self.noise is None:
            return exact
        return self.noise.clipped(exact) + float(self.draw(1, self.noise.deviation)[0])


def _opened(score: bytes) -> float | None:
    if len(score) != _SCORE.size:
        return None
    (value,) = _SCORE.unpack(score)
    return float(value) if isfinite(value) else None
