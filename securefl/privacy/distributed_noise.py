"""Distributed noise, which no party has whole: each client clips what it sends, and adds a part.

With distributed noise (Dwork et al., Our Data, Ourselves, EUROCRYPT 2006) nobody sees a total
without noise: a server that adds ciphertexts sees none, and an authority opens the sum alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import final

from securefl.errors import ConfigError, TooFewContributions
from securefl.exchange.sums import Exchange
from securefl.privacy.clipped import Quantile, clipped
from securefl.privacy.clipping import Clipping
from securefl.privacy.randomness import Randomness, noisy
from securefl.settings.axes import require_shares
from securefl.types import NamedTensors, Total


@final
@dataclass(frozen=True, slots=True)
class DistributedNoise:
    """Clients of a round, of whom some may be missing and some may tell their noise.

    Raises ConfigError where nobody's share would be left.
    """

    n_clients: int
    """Number n of clients in a full round."""
    dropouts: int = 0
    """Number t of clients whose contributions may be missing."""
    colluders: int = 0
    """Number of clients that may take their own noise off the sum again."""

    def __post_init__(self) -> None:
        require_shares(self.n_clients, self.dropouts, self.colluders)

    @property
    def n_counted(self) -> int:
        """Number N - t of shares that make up the whole noise, whoever else is in the sum."""
        return self.n_clients - self.dropouts - self.colluders

    @property
    def fewest(self) -> int:
        """Least number of contributions in a sum that may be opened."""
        return self.n_clients - self.dropouts

    def deviation(self, whole: float) -> float:
        """Return one client's share of the deviation `whole`, which n - t of them make up."""
        return whole / sqrt(self.n_counted)

    def require(self, n_present: int) -> None:
        """Raises TooFewContributions where too much of the noise is missing from a sum."""
        if n_present < self.fewest:
            raise TooFewContributions(
                f"{n_present} contributions: with fewer than {self.fewest} the noise is less than "
                "what ε counts; raise privacy.dropouts, which makes each share larger"
            )


CHANNEL_ERROR = 2.0**-24
"""Relative distance of a contribution from what a channel carries of it, at most.

Half a unit in the last place of float32, which travels in the clear. Encryption errs by noise that
is independent of the values, and rounds by at most `SUMS.rounding` over the weight in each
ciphertext; where a share of the noise is so short that this is more, the rest is not counted.
"""
TAIL = 8.0
"""Margin of the norm of noise: d values exceed (√d + 8) deviations with probability below e⁻³²."""


@final
@dataclass(frozen=True, slots=True)
class ClientNoise:
    """Noise and clip norms by which a contribution is private; every number is public."""

    sigma: float
    """Noise multiplier that a release costs."""
    clip: float
    """Clip norm C; where it adapts, the first."""
    clipping: Clipping
    shares: DistributedNoise
    quantile: Quantile | None = None
    """Quantile that C follows, kind by kind."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """Clip norms of a client's values in the sums in the middle of a round, by the sum's name."""

    @property
    def sum_sigma(self) -> float:
        """Noise multiplier of a clipped update, whose clip norm adapts or does not."""
        return self.quantile.sum_sigma if self.quantile else self.sigma

    def deviation(self, sigma: float, clip: float, n_values: int) -> float:
        """Return the deviation of one client's share of the noise on a sum of so many values.

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
        """Return a share of σ_b: a contribution moves its bit by 1/2, and by rounding."""
        return self.deviation(2 * quantile.count_deviation, 0.5, 1)


@dataclass(frozen=True, slots=True)
class NoisyExchange:
    """Exchange of a client that adds its share of the noise to each sum."""

    exchange: Exchange
    noise: ClientNoise
    randomness: Randomness

    @property
    def weight(self) -> float:
        """Weight of the client."""
        return self.exchange.weight

    def sum(self, name: str, values: NamedTensors) -> Total:
        """Return the total of the values with the noise that all clients add to it.

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
