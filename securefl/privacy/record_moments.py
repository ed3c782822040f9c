"""Mean and variance of each channel, from clipped sums over records: for the Gaussian mechanism.

A record is one vector v = (κ, m_C, s_C): m_C and s_C are the means of y' and y'² over its pixels,
y' = (y - mean_C) / √(var_C + ε) about a public reference, and κ is what it counts. The whole of v
is clipped, so that a record which is clipped also counts less, and a mean stays a weighted mean.
What is released is Σ v with noise (Dwork & Roth, The Algorithmic Foundations of Differential
Privacy, 2014, Appendix A); what follows from that, as moments do, costs nothing more.

Axes: B records, C channels, V = 1 + 2C values; the axes behind C (H, W) belong to a record.
"""

from dataclasses import dataclass
from math import sqrt
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from securefl.errors import DataError
from securefl.exchange.moments import along_channels

EPS = 1e-5
"""Term beside the reference's variance, so that a channel which never moved has a unit, too."""
DROWNED = 4.0
"""Deviations of its noise below which a count of records says nothing."""
FLOOR = 2.0
"""Deviations of a second moment's noise below which a variance says nothing."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class ChannelMoments:
    """Moments of one layer: those that sums are taken about, or the result."""

    mean_C: Float64[Tensor, " C"]
    var_C: Float64[Tensor, " C"]
    """Biased variance."""

    @classmethod
    def standard(cls, n_channels: int) -> "ChannelMoments":
        """Return the moments zero and one."""
        return cls(
            torch.zeros(n_channels, dtype=torch.float64),
            torch.ones(n_channels, dtype=torch.float64),
        )

    @property
    def unit_C(self) -> Float64[Tensor, " C"]:
        """Unit √(var_C + ε) of each channel."""
        return (self.var_C + EPS).sqrt()


@final
@dataclass(frozen=True, slots=True)
class MomentRelease:
    """Clipping and noise of one layer's sums, and how they are read.

    One record more or less changes `sum_of` by at most `bound` in L2 (to rounding), whatever its
    values are, NaN and infinity included.
    """

    n_channels: int
    rms_clip: float
    """Largest root mean square of (m_C, s_C) of a record, over its 2C values."""
    sigma: float
    """Noise multiplier σ: the noise's deviation over `bound`."""

    @property
    def bound(self) -> float:
        """L2 norm that a record's v is clipped to."""
        return self.rms_clip * sqrt(2 * self.n_channels)

    @property
    def kappa(self) -> float:
        """Count κ of an unclipped record: as much as half of what v may amount to.

        So the noise on a count is 2σ records, however many channels there are.
        """
        return self.bound / 2

    @property
    def n_values(self) -> int:
        """Length V of a sum."""
        return 1 + 2 * self.n_channels

    @property
    def deviation(self) -> float:
        """Deviation of the noise that a sum needs, on each of its values."""
        return self.sigma * self.bound

    def sum_of(
        self, y: Float[Tensor, "B C ..."], reference: ChannelMoments
    ) -> Float64[Tensor, " V"]:
        """Return Σ v over the records of a batch, without noise; sums of batches add.

        `reference` is the same at all clients. A record with a value that is not finite, or whose
        square is not, adds nothing.
        """
        v_BV = self._vectors(y.detach().double(), reference)
        finite_B1 = v_BV.isfinite().all(dim=1, keepdim=True)
        v_BV = v_BV.where(finite_B1, 0.0)
        norm_B1 = torch.linalg.vector_norm(v_BV, dim=1, keepdim=True)
        # Of a record that was set to zero the factor is infinite, and clamped to one.
        scale_B1: Tensor = (self.bound / norm_B1).clamp(max=1)
        return (v_BV * scale_B1).sum(dim=0)

    def _vectors(
        self, y: Float64[Tensor, "B C ..."], reference: ChannelMoments
    ) -> Float64[Tensor, "B V"]:
        mean_C, unit_C = (x_C.to(y.device) for x_C in (reference.mean_C, reference.unit_C))
        y = (y - along_channels(mean_C, y)) / along_channels(unit_C, y)
        m_BC, s_BC = _over_pixels(y), _over_pixels(y.square())
        kappa_B1 = y.new_full((len(y), 1), self.kappa)
        return torch.cat([kappa_B1, m_BC, s_BC], dim=1)

    def moments_of(
        self, total_V: Float64[Tensor, " V"], reference: ChannelMoments, deviation: float
    ) -> ChannelMoments:
        """Return mean and biased variance, of a total whose values have noise of this deviation.

        Of no noise and unclipped records they are exact. A variance is at least twice the
        deviation of the second moment's noise, which is public as the noisy count is.

        Raises:
            DataError: the records count no more than four deviations of the noise on their count.
        """
        count = float(total_V[0])
        if not count > DROWNED * deviation:
            raise DataError(
                f"moments that have drowned in noise: the records count {count / self.kappa:.4g}, "
                f"must be above {DROWNED * deviation / self.kappa:.4g}; have more records, a "
                "smaller privacy.statistics_sigma or, where most records are clipped and so count "
                "less, a larger privacy.statistics_clip"
            )
        mean_C, unit_C = (x_C.to(total_V.device) for x_C in (reference.mean_C, reference.unit_C))
        m_C, s_C = (total_V[1:] * (self.kappa / count)).reshape(2, -1)
        floor = FLOOR * deviation * self.kappa / count
        var_C = (s_C - m_C.square()).clamp(min=floor)
        return ChannelMoments(mean_C + m_C * unit_C, var_C * unit_C.square())


def _over_pixels(y: Float64[Tensor, "B C ..."]) -> Float64[Tensor, "B C"]:
    return y.flatten(start_dim=2).mean(dim=2) if y.dim() > 2 else y
