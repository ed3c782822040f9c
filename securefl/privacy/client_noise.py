"""What makes a client's contribution private: a clip norm, and its share of the noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import final

from securefl.errors import ConfigError
from securefl.exchange.base import Exchange
from securefl.privacy.adaptive import Quantile
from securefl.privacy.bounded import clipped
from securefl.privacy.clipping import Clipping
from securefl.privacy.randomness import Randomness, noisy
from securefl.privacy.shares import Shares
from securefl.types import NamedTensors, Total

CHANNEL_ERROR = 2.0**-24
"""How far, relative to its norm, a contribution may be from what a channel carries of it.

Half a unit in the last place of float32, which travels in the clear. Encryption errs by noise that
is independent of the values, and rounds by at most `SUMS.rounding` over the weight in each
ciphertext; where a share of the noise is so short that this is more, the rest is not counted."""
TAIL = 8.0
"""Noise of d values is longer than (√d + 8) deviations with a probability below e⁻³²."""


@final
@dataclass(frozen=True, slots=True)
class ClientNoise:
    """How a contribution is made private; every number is public."""

    sigma: float
    """The noise multiplier that a release costs."""
    clip: float
    """C; where it adapts, the first."""
    clipping: Clipping
    shares: Shares
    quantile: Quantile | None = None
    """What C follows, kind by kind."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """What a client's values in a sum in the middle of a round are clipped to, by its name."""

    @property
    def sum_sigma(self) -> float:
        """Of a clipped update, whose clip norm adapts or does not."""
        return self.quantile.sum_sigma if self.quantile else self.sigma

    def deviation(self, sigma: float, clip: float, n_values: int) -> float:
        """Of one client's share of the noise on a sum of so many values.

        The sensitivity is not C alone: a channel rounds what it carries, and rounds otherwise where
        Δ_i is zero. That moves the sum by at most 2⁻²⁴ (C + 2‖noise‖) more.

        Raises:
            ConfigError: rounding would be all there is, of so many values.
        """
        length = 2 * CHANNEL_ERROR * self.shares.deviation(sigma) * (sqrt(n_values) + TAIL)
        if length >= 1:
            raise ConfigError(
                f"σ = {sigma:g} on {n_values:,} values: noise as large as this is rounded by more "
                "than the clip norm; take a smaller σ"
            )
        return self.shares.deviation(sigma * clip * (1 + CHANNEL_ERROR) / (1 - length))

    def bit_deviation(self, quantile: Quantile) -> float:
        """Of one client's share of σ_b: one contribution moves its bit by 1/2, and by rounding."""
        return self.deviation(2 * quantile.count_deviation, 0.5, 1)


@dataclass(frozen=True, slots=True)
class NoisyExchange:
    """A client's end of sums to which it adds its share of the noise."""

    exchange: Exchange
    noise: ClientNoise
    randomness: Randomness

    @property
    def weight(self) -> float:
        """The client's."""
        return self.exchange.weight

    def sum(self, name: str, values: NamedTensors) -> Total:
        """With what all clients add to it.

        Raises:
            TooFewContributions: more clients are missing than the noise is made for.
        """
        bound = self.noise.bounds[name]
        n_values = sum(value.numel() for value in values.values())
        found = clipped({n: v.double() for n, v in values.items()}, bound, Clipping.FLAT)
        deviation = self.noise.deviation(self.noise.sigma, bound, n_values)
        total = self.exchange.sum(
            name, {n: noisy(v, self.randomness, deviation) for n, v in found.values.items()}
        )
        self.noise.shares.require(total.n_clients)
        return total
