"""Releases of a run under differential privacy: events, apart from the accountants that add up.

Two data sets are neighbours if one has a record (at client level: a client) that the other lacks:
add or remove one. Clipped to C in L2 norm, one record moves a sum by at most C, which is the
sensitivity of every event here; exchanging a record for another moves it by 2C and is not what ε
speaks of. The noise on the sum has the standard deviation σC in each coordinate, where σ is the
noise multiplier (Abadi et al., Deep Learning with Differential Privacy, CCS 2016, Algorithm 1).
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, final

from securefl.errors import ConfigError

MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER = 0.01, 1e6
MAX_STEPS = 10**9


class Level(StrEnum):
    """Unit whose presence an ε hides."""

    RECORD = "record"
    """One record of one client. Clients hold different records, so each client's own releases
    compose, and a run's ε is that of the client that has spent most."""
    CLIENT = "client"
    """All contributions of one client."""


@final
@dataclass(frozen=True, slots=True)
class SampledGaussian:
    """Steps of DP-SGD: each releases a noisy clipped sum over a Poisson sample.

    Raises ConfigError where a number is out of range.
    """

    noise_multiplier: float
    """Noise multiplier σ: the noise's standard deviation over the clip norm C; 0.01 to 1e6."""
    sample_rate: float
    """Probability q in (0, 1) with which each record, independently, is in a step's sample."""
    steps: int = 1

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)
        require_number("sample rate q", self.sample_rate, 0, 1, "it is batch / records")
        _check_count("steps", self.steps)
        # 1 and 1.0 are the same σ, and shall be the same text.
        object.__setattr__(self, "noise_multiplier", float(self.noise_multiplier))
        object.__setattr__(self, "sample_rate", float(self.sample_rate))


@final
@dataclass(frozen=True, slots=True)
class Gaussian:
    """Releases of a noisy clipped sum over all records, or over all clients.

    Raises ConfigError where a number is out of range.
    """

    noise_multiplier: float
    """Noise multiplier σ: the noise's standard deviation over the clip norm C; 0.01 to 1e6."""
    steps: int = 1

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)
        _check_count("steps", self.steps)
        object.__setattr__(self, "noise_multiplier", float(self.noise_multiplier))


@final
@dataclass(frozen=True, slots=True)
class WithoutPrivacy:
    """A stage that releases what it computes without noise: ε is infinite from here on."""

    stage: str
    """Name of the stage in words: `"stage I, without noise"`."""

    def __post_init__(self) -> None:
        if not self.stage.strip():
            raise ConfigError("a stage without differential privacy needs a name: say what it is")


PrivacyEvent: TypeAlias = SampledGaussian | Gaussian | WithoutPrivacy


def require_number(name: str, value: float, low: float, high: float, advice: str) -> None:
    """Raises ConfigError unless `value` is a number strictly between the two."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and low < value < high):
        raise ConfigError(f"{name} = {value}: must be above {low:g} and below {high:g}; {advice}")


def _check_noise(noise_multiplier: float) -> None:
    is_number = isinstance(noise_multiplier, int | float) and not isinstance(noise_multiplier, bool)
    if not (is_number and MIN_NOISE_MULTIPLIER <= noise_multiplier <= MAX_NOISE_MULTIPLIER):
        raise ConfigError(
            f"noise multiplier σ = {noise_multiplier}: must be {MIN_NOISE_MULTIPLIER:g}.."
            f"{MAX_NOISE_MULTIPLIER:g}; 1 is usual"
        )


def _check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_STEPS:
        raise ConfigError(f"{name} = {value}: must be a whole number from 1 to {MAX_STEPS:,}")
