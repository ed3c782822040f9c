"""Whether hidden statistics protect images: the attacker who knows them against all who do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import final

import numpy as np
from numpy.typing import NDArray

from securefl.audit.findings import Verdict
from securefl.audit.inversion.assumptions import Attacker
from securefl.audit.inversion.image_quality import mean_interval
from securefl.audit.inversion.rebuilding import Attacked
from securefl.audit.statistics import Interval

ORDER = (Verdict.OPEN, Verdict.HOLDS, Verdict.WEAK, Verdict.LEAKS)
"""From the best to the worst, of those that a chapter unites."""


class Hidden(StrEnum):
    """What a run's encryption keeps from who reads messages."""

    NOTHING = "nothing"
    STATISTICS = "BN statistics"
    UPDATES = "the updates of single clients"


@final
@dataclass(frozen=True, slots=True)
class HiddenStatistics:
    """PSNR, in dB, of one subject at one size of mini-batches."""

    best: Attacker
    """Of those who do not know the statistics, the one of the highest mean."""
    exact_gain: Interval
    """Of who knows them, over the mean public image of the class."""
    adaptive_gain: Interval
    """Of the surest of the others over the same: the one whose interval begins highest."""
    difference: Interval
    """Exact less `best`."""
    least: Interval
    """Exact less the one of the others from whom it differs least for certain."""

    @property
    def protects(self) -> bool:
        """Whether hiding the statistics costs every other attacker something for certain."""
        return self.least.low > 0

    @property
    def verdict(self) -> Verdict:
        """LEAKS: images are rebuilt, and hiding the statistics changes nothing for certain."""
        if self.adaptive_gain.low > 0:
            return Verdict.WEAK if self.protects else Verdict.LEAKS
        if not self.protects or self.exact_gain.low <= 0:
            return Verdict.OPEN
        return Verdict.WEAK if self.adaptive_gain.value > 0 else Verdict.HOLDS

    def under(self, hidden: Hidden) -> Verdict:
        """Of a run that hides just this: where updates are, their sum is left, and not attacked."""
        if hidden is Hidden.UPDATES:
            return Verdict.OPEN
        if hidden is Hidden.NOTHING:
            rebuilt = max(self.exact_gain.low, self.adaptive_gain.low) > 0
            return Verdict.LEAKS if rebuilt else Verdict.OPEN
        return self.verdict


def protection(attacked: Attacked) -> HiddenStatistics:
    """The comparison; intervals as in `units`."""
    return compared(
        attacked.baseline.psnr_NB, {name: one.psnr_NB for name, one in attacked.by.items()}
    )


def compared(
    baseline_NB: NDArray[np.float64], by: Mapping[Attacker, NDArray[np.float64]]
) -> HiddenStatistics:
    """The same, of PSNRs alone; `by` has EXACT and one other at least."""
    others = [name for name in by if name is not Attacker.EXACT]
    best = max(others, key=lambda name: float(by[name].mean()))
    gains = {name: mean_interval(units(one - baseline_NB)) for name, one in by.items()}
    behind = {name: mean_interval(units(by[Attacker.EXACT] - by[name])) for name in others}
    return HiddenStatistics(
        best,
        gains[Attacker.EXACT],
        max((gains[name] for name in others), key=lambda found: found.low),
        behind[best],
        min(behind.values(), key=lambda found: found.low),
    )


def units(values_NB: NDArray[np.float64]) -> NDArray[np.float64]:
    """What an interval is over: mini-batches, since images of one share its gradient.

    Of a single mini-batch, its images.
    """
    found: NDArray[np.float64] = values_NB.mean(1) if len(values_NB) > 1 else values_NB[0]
    return found


def worst(found: list[Verdict]) -> Verdict:
    """Of several."""
    return max(found, key=ORDER.index)
