"""Whether hidden statistics protect images: the attacker who knows them against all who do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import final

import numpy as np
from numpy.typing import NDArray

from securefl.audit.findings import Verdict
from securefl.audit.inversion.image_quality import mean_interval
from securefl.audit.rules import Rule, always, decided
from securefl.audit.statistics import Interval

ORDER = (Verdict.OPEN, Verdict.HOLDS, Verdict.WEAK, Verdict.LEAKS)
"""From the best to the worst, of those that a section unites."""


class Attacker(StrEnum):
    """Who attacks, by what is known of BN's statistics. All have all else in common."""

    EXACT = "exact"
    """The statistics that normalised the mini-batch."""
    POPULATION = "population"
    """The model's running statistics."""
    NONE = "none"
    """Nothing: μ = 0 and σ² = 1, as in a fresh layer."""
    PUBLIC = "public"
    """Those that public images have in this model."""
    JOINT = "joint"
    """Nothing, but they are variables beside the pixels (or follow from them: BATCH)."""
    DERIVED = "derived"
    """What the gradient gives away of them (`recovered_statistics`); the rest is left free."""
    FIRST_LAYER = "first layer"
    """Nothing: the inputs are read off the first linear layer (`first_layer`)."""


class Hidden(StrEnum):
    """What a run's encryption keeps from who reads messages."""

    NOTHING = "nothing"
    STATISTICS = "BN statistics"
    UPDATES = "the updates of single clients"


@final
@dataclass(frozen=True, slots=True)
class HiddenStatistics:
    """PSNR, in dB, of one target at one size of mini-batches."""

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
    def rebuilt(self) -> bool:
        """True where somebody rebuilds images for certain better than a guess from the label."""
        return max(self.exact_gain.low, self.adaptive_gain.low) > 0


_COSTS = "Hiding the statistics costs attackers something, and images are"
_STILL = f"{_COSTS} still rebuilt, or may be, better than a guess from the label"
STATISTICS_SEALED: tuple[Rule[HiddenStatistics], ...] = (
    Rule(
        Verdict.LEAKS,
        lambda found: found.adaptive_gain.low > 0 and not found.protects,
        "who lacks the statistics rebuilds images for certain better than a guess from the label, "
        "and lacking them costs nothing for certain",
        lambda _: (
            "Sealing the statistics is no protection: who reads a client's gradient rebuilds its "
            "images without them as well, so seal the model too, or add noise"
        ),
    ),
    Rule(
        Verdict.WEAK,
        lambda found: found.adaptive_gain.low > 0,
        "the same, but lacking them costs every attacker something for certain",
        lambda _: _STILL,
    ),
    Rule(
        Verdict.OPEN,
        lambda found: not found.protects,
        "lacking them costs nothing for certain",
        lambda _: (
            "No protection is shown, and nobody without the statistics does better for certain "
            "than a guess from the label"
        ),
    ),
    Rule(
        Verdict.OPEN,
        lambda found: found.exact_gain.low <= 0,
        "not even who has them does better for certain than the guess",
        lambda _: f"{_COSTS} not rebuilt for certain even with them",
    ),
    Rule(
        Verdict.WEAK,
        lambda found: found.adaptive_gain.value > 0,
        "who lacks them does better than the guess, though not for certain",
        lambda _: _STILL,
    ),
    Rule(
        Verdict.HOLDS,
        always,
        "who lacks them does no better than the guess",
        lambda _: f"{_COSTS} not rebuilt better than a guess from the label",
    ),
)
"""Rules of a run that seals the statistics alone."""


def if_sealed(found: HiddenStatistics) -> str:
    """Return what sealing the statistics alone would come to, in words."""
    return decided(STATISTICS_SEALED, found)[1]


NOTHING_SEALED: tuple[Rule[HiddenStatistics], ...] = (
    Rule(
        Verdict.LEAKS,
        lambda found: found.rebuilt,
        "somebody rebuilds images for certain better than a guess from the label",
        if_sealed,
    ),
    Rule(Verdict.OPEN, always, "nobody does", if_sealed),
)
"""Rules of a run that seals neither statistics nor updates."""
UPDATES_SEALED: tuple[Rule[HiddenStatistics], ...] = (
    Rule(Verdict.OPEN, always, "always: sums of clients' updates are not attacked", if_sealed),
)
"""Rules of a run of which nobody reads single clients' updates."""
RULES: Mapping[Hidden, tuple[Rule[HiddenStatistics], ...]] = {
    Hidden.STATISTICS: STATISTICS_SEALED,
    Hidden.NOTHING: NOTHING_SEALED,
    Hidden.UPDATES: UPDATES_SEALED,
}


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
