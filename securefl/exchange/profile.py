"""Representation profiles, and how far one is from another (Wu et al., FedProf, section 3.2).

Tensor names end with their axes: Q representation elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

import torch
from jaxtyping import Float64
from torch import Tensor

from securefl.errors import DataError

VARIANCE_FLOOR = 1e-6
"""The least variance that a profile has; an element that never moves would be infinitely far."""

MAX_SECOND_MOMENT = 64.0
"""σ² + μ² of an element that travels; so |μ| is at most 8."""


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """Mean and variance of each representation element, under one version of the global model.

    Variances below `VARIANCE_FLOOR` are raised to it.

    Raises:
        DataError: no element, means and variances of different length, a value that is not
            finite, a negative variance, or a negative version.
    """

    mean_Q: Float64[Tensor, " Q"]
    variance_Q: Float64[Tensor, " Q"]
    version: int
    """Rounds completed by the model that the profile was made with."""

    def __post_init__(self) -> None:
        mean_Q, variance_Q = self.mean_Q, self.variance_Q
        if mean_Q.shape != variance_Q.shape or mean_Q.dim() != 1 or not len(mean_Q):
            raise DataError(
                f"a profile of means {tuple(mean_Q.shape)} and variances "
                f"{tuple(variance_Q.shape)}: must be one of each per element, and one at least"
            )
        if not (mean_Q.isfinite().all() and variance_Q.isfinite().all()):
            raise DataError("a profile holds NaN or infinity: has the model diverged?")
        if (variance_Q < 0).any():
            raise DataError(f"a profile holds the variance {float(variance_Q.min())}: must be >= 0")
        if self.version < 0:
            raise DataError(f"version = {self.version}: counts rounds, from 0 on")
        object.__setattr__(self, "variance_Q", variance_Q.clamp(min=VARIANCE_FLOOR))

    def __len__(self) -> int:
        return len(self.mean_Q)

    def in_unit(self, unit: float) -> Profile:
        """The profile of the same data with h / unit in the place of h.

        No divergence changes where both profiles are in one unit and no variance is at the floor.
        """
        return Profile(self.mean_Q / unit, self.variance_Q / unit / unit, self.version)

    def in_range(self) -> Profile:
        """The profile with every σ² + μ² above `MAX_SECOND_MOMENT` shrunk to it.

        So what is too far to be sealed is sealed as far as that goes.
        """
        # Roots, as squares may be infinite; a hair less, for rounding and for the variance's floor.
        size_Q = torch.hypot(self.mean_Q, self.variance_Q.sqrt())
        share_Q = ((MAX_SECOND_MOMENT - 2 * VARIANCE_FLOOR) ** 0.5 / size_Q).clamp(max=1)
        return Profile(self.mean_Q * share_Q, self.variance_Q * share_Q.square(), self.version)


def range_unit(baseline: Profile) -> float:
    """The power of two in which the baseline's largest σ² + μ² is in 4..16.

    Smaller units lose fewer digits to a score's error, larger ones leave clients more room: here
    theirs may be 4 to 16 times as large.
    """
    moment = float((baseline.variance_Q + baseline.mean_Q.square()).max())
    return 2.0 ** ceil(log2(moment / 16) / 2)


def divergence(profile: Profile, baseline: Profile) -> float:
    """How far a profile is from the baseline: (1/q) Σ_u KL(N_k ‖ N_B), Eqs. (3) and (58).

    Equal profiles give 0. Eq. (4) leaves out the -½ that Eq. (58) has, and would give ½.

    Raises:
        DataError: profiles of different length, or of different versions of the model.
    """
    if len(profile) != len(baseline):
        raise DataError(
            f"a profile of {len(profile)} elements, a baseline of {len(baseline)}: profile the "
            "same layer"
        )
    if profile.version != baseline.version:
        raise DataError(
            f"a profile of version {profile.version}, a baseline of version {baseline.version}: "
            "profiles are compared under the same model"
        )
    ratio_Q = profile.variance_Q / baseline.variance_Q
    shift_Q = (profile.mean_Q - baseline.mean_Q).square() / baseline.variance_Q
    return float((ratio_Q + shift_Q - ratio_Q.log() - 1).mean() / 2)
