"""Hidden statistics: how near rebuilt samples come to the originals with them, and without."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import final

import numpy as np
from numpy.typing import NDArray

from securefl.audit.inversion.sample_kind import SampleKind
from securefl.audit.statistics import Interval


class Attacker(StrEnum):
    """Attackers by what they know of BN's statistics. All have all else in common."""

    EXACT = "exact"
    """Those that normalised the mini-batch, which are known."""
    POPULATION = "population"
    """The model's running statistics."""
    NONE = "none"
    """μ = 0 and σ² = 1, as in a fresh layer."""
    PUBLIC = "public"
    """Those that public samples have in this model."""
    JOINT = "joint"
    """Variables beside the samples (or a function of these: BATCH)."""
    DERIVED = "derived"
    """Those that the gradient tells (`recovered_statistics`); the rest is left free."""
    FIRST_LAYER = "first layer"
    """None: the inputs are read off the first linear layer (`inputs_of`)."""


class Hidden(StrEnum):
    """Part of the messages that a run's encryption keeps from who reads them."""

    NOTHING = "nothing"
    STATISTICS = "BN statistics"
    UPDATES = "the updates of single clients"


@final
@dataclass(frozen=True, slots=True)
class HiddenStatistics:
    """Comparison of attackers on one target at one size of mini-batches.

    Gains are of PSNR in dB for images; for rows how much smaller the error is, in σ.
    """

    best: Attacker
    """Nearest attacker on average among those who do not know the statistics."""
    exact_gain: Interval
    """Gain of who knows them over a guess from the label."""
    adaptive_gain: Interval
    """Gain of the surest of the others: the one whose interval begins highest."""
    difference: Interval
    """Difference of exact and `best`."""
    least: Interval
    """Difference of exact and the attacker from whom it differs least for certain."""
    noun: str = "images"
    """Plural of a sample's name."""
    there: bool = True
    """False where the model has no statistics to hide."""

    @property
    def numbers(self) -> tuple[float, ...]:
        """Numbers that decide."""
        gains = (self.exact_gain, self.adaptive_gain, self.least)
        return tuple(number for each in gains for number in (each.value, each.low))

    @property
    def protects(self) -> bool:
        """True where hiding the statistics costs every other attacker something for certain."""
        return self.least.low > 0

    @property
    def rebuilt(self) -> bool:
        """True where somebody rebuilds samples for certain better than a guess from the label."""
        return max(self.exact_gain.low, self.adaptive_gain.low) > 0


def compared(
    baseline_NB: NDArray[np.float64],
    by: Mapping[Attacker, NDArray[np.float64]],
    kind: SampleKind,
) -> HiddenStatistics:
    """Compare attackers by the kind's measure; EXACT with itself where there are no others."""
    others: list[Attacker] = [name for name in by if name is not Attacker.EXACT]
    others = others or [Attacker.EXACT]
    means = {name: float(kind.sign * by[name].mean()) for name in others}
    best = max(others, key=lambda name: means[name])
    gains = {name: gain(kind, one, baseline_NB) for name, one in by.items()}
    behind = {name: gain(kind, by[Attacker.EXACT], by[name]) for name in others}
    return HiddenStatistics(
        best,
        gains[Attacker.EXACT],
        max((gains[name] for name in others), key=lambda found: found.low),
        behind[best],
        min(behind.values(), key=lambda found: found.low),
        kind.noun,
    )


def gain(kind: SampleKind, one_NB: NDArray[np.float64], other_NB: NDArray[np.float64]) -> Interval:
    """Return how much nearer the first is than the second, in the measure's unit; paired."""
    return kind.interval(units(kind.sign * (one_NB - other_NB)))


def units(values_NB: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what an interval is over: mini-batches, since samples of one share its gradient.

    Of a single mini-batch, its samples.
    """
    found: NDArray[np.float64] = values_NB.mean(1) if len(values_NB) > 1 else values_NB[0]
    return found
