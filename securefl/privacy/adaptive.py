"""Clipping that follows a quantile of the norms (Andrew et al., NeurIPS 2021, Algorithm 1).

Each contribution says whether its norm was within C: b_i - 1/2, which one contribution moves by
1/2. Its noise σ_b and that of the sum, z_Δ, cost together what z would: z⁻² = z_Δ⁻² + (2σ_b)⁻².
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import final

LEARNING_RATE = 0.2
"""η_C of the paper."""
MIN_CLIP, MAX_CLIP = 1e-6, 1e6
"""Noise alone must not lead C out of the numbers that can be sealed."""


@final
@dataclass(frozen=True, slots=True)
class Quantile:
    """The γ-quantile, from sums over about `expected` contributions."""

    target: float
    """γ in (0, 1)."""
    expected: float
    """Contributions to a sum, a public number: a batch of records, or a round's clients."""
    sigma: float
    """z, the noise multiplier that both sums cost together."""

    @property
    def count_deviation(self) -> float:
        """σ_b, of the noise on Σ (b_i - 1/2): the paper's n / 20, and z at least."""
        return max(self.expected / 20, self.sigma)

    @property
    def sum_sigma(self) -> float:
        """z_Δ, the noise multiplier of the clipped sum."""
        return float((self.sigma**-2 - (2 * self.count_deviation) ** -2) ** -0.5)

    def followed(self, clip: float, noisy_excess: float) -> float:
        """The next C, from Σ (b_i - 1/2) with its noise."""
        share = min(1.0, max(0.0, noisy_excess / self.expected + 0.5))
        return min(MAX_CLIP, max(MIN_CLIP, clip * exp(-LEARNING_RATE * (share - self.target))))
