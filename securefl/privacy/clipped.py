"""Named tensors clipped to an L2 norm, fixed or following a quantile of the norms.

Each contribution says whether its norm was within C: b_i - 1/2, which one contribution moves by
1/2. Its noise σ_b and that of the sum, z_Δ, cost together what z would: z⁻² = z_Δ⁻² + (2σ_b)⁻².
"""

from dataclasses import dataclass
from math import exp, sqrt
from typing import final

import torch
from torch import Tensor

from securefl.privacy.clipping import Clipping
from securefl.types import NamedTensors


@dataclass(frozen=True, slots=True)
class Bounded:
    """Tensors whose joint norm is at most C."""

    values: dict[str, Tensor]
    within: bool
    """True where nothing had to be clipped."""


def clipped(named: NamedTensors, clip: float, clipping: Clipping) -> Bounded:
    """Return the tensors scaled to at most `clip` in L2 norm.

    Per layer, each is scaled by itself, to clip / √(number of tensors). What is not finite becomes
    NaN, for the channel to refuse.
    """
    sizes = {name: float(torch.linalg.vector_norm(value)) for name, value in named.items()}
    if clipping is Clipping.PER_LAYER:
        bounds = dict.fromkeys(named, clip / sqrt(len(named)))
    else:
        sizes = dict.fromkeys(named, sqrt(sum(size * size for size in sizes.values())))
        bounds = dict.fromkeys(named, clip)
    scaled = {n: v * min(1.0, bounds[n] / sizes[n]) if sizes[n] else v for n, v in named.items()}
    return Bounded(scaled, all(sizes[name] <= bounds[name] for name in named))


LEARNING_RATE = 0.2
"""Learning rate η_C of the paper."""
MIN_CLIP, MAX_CLIP = 1e-6, 1e6
"""Bounds of C: noise alone must not lead it out of the numbers that can be sealed."""


@final
@dataclass(frozen=True, slots=True)
class Quantile:
    """Clip norm that follows the γ-quantile, from sums over about `expected` contributions."""

    target: float
    """Quantile γ in (0, 1)."""
    expected: float
    """Number of contributions to a sum, public: a batch of records, or a round's clients."""
    sigma: float
    """Noise multiplier z that both sums cost together."""

    @property
    def count_deviation(self) -> float:
        """Deviation σ_b of the noise on Σ (b_i - 1/2): the paper's n / 20, and z at least."""
        return max(self.expected / 20, self.sigma)

    @property
    def sum_sigma(self) -> float:
        """Noise multiplier z_Δ of the clipped sum."""
        return float((self.sigma**-2 - (2 * self.count_deviation) ** -2) ** -0.5)

    def followed(self, clip: float, noisy_excess: float) -> float:
        """Return the next C, from Σ (b_i - 1/2) with its noise."""
        share = min(1.0, max(0.0, noisy_excess / self.expected + 0.5))
        return min(MAX_CLIP, max(MIN_CLIP, clip * exp(-LEARNING_RATE * (share - self.target))))
