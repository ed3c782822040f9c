"""Attacks on sums of all clients' updates: what a total alone gives away of who trained.

Axes: N sums, S samples in one, D features.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import final

import torch
from torch import Tensor

from securefl.audit.inversion.assumptions import fixed
from securefl.audit.inversion.gradient_matching import Prior, Search, SeenGradient, match
from securefl.audit.inversion.hidden_statistics import gain, units
from securefl.audit.inversion.limits import most_matched
from securefl.audit.inversion.opened_total import (
    OpenedRound,
    OpenedSums,
    RoundShape,
    opened_sums,
)
from securefl.audit.inversion.rebuilding import (
    Rebuilt,
    as_compared,
    placed,
    prior_of,
    rebuilt,
)
from securefl.audit.inversion.sample_kind import SampleKind, Values
from securefl.audit.inversion.target import NormalisedBatch, running
from securefl.audit.inversion.unit_inputs import (
    FirstLayer,
    Share,
    inputs_shown,
    known_first_layer,
)
from securefl.audit.statistics import Interval
from securefl.errors import ConfigError


@final
@dataclass(frozen=True, slots=True)
class SumEffort:
    """Effort of attacks on sums; ConfigError where it can try none."""

    sums: int
    """Sums of each shape, two at least: intervals are over sums."""
    most_matched: int
    """Largest number of samples in a sum whose gradient is matched."""
    search: Search

    def __post_init__(self) -> None:
        if self.sums < 2:
            raise ConfigError(
                f"SumEffort: sums = {self.sums}: must be 2 at least, since intervals are over sums"
            )


class SumAttacker(StrEnum):
    """Attacks on a sum. They know the model, the sum, its labels and public samples."""

    FIRST_LAYER = "first layer"
    """Inputs that single units show (`inputs_shown`); the rest is guessed from the labels."""
    MATCHING = "gradient matching"
    """Samples whose gradient at the round's start is along the sum (`match`)."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class AttackedSums:
    """Attacks on N sums of one shape."""

    shape: RoundShape
    kind: SampleKind
    originals: Values
    nothing: Rebuilt
    baseline: Rebuilt
    by: Mapping[SumAttacker, Rebuilt]
    """Empty where no attack could be tried."""

    @property
    def n_samples(self) -> int:
        """Samples in one sum."""
        return int(self.baseline.score_NB.shape[1])

    def gains(self) -> Mapping[SumAttacker, Interval]:
        """Return how much nearer each attacker is than the guess from the labels."""
        guess_NS = self.baseline.score_NB
        return {name: gain(self.kind, row.score_NB, guess_NS) for name, row in self.by.items()}

    @property
    def surest(self) -> SumAttacker | None:
        """Attacker whose gain begins highest; None where none could be tried."""
        gains = self.gains()
        return max(gains, key=lambda name: gains[name].low) if gains else None

    @property
    def is_rebuilt(self) -> bool:
        """True where somebody does better for certain than a guess from the labels."""
        return any(found.low > 0 for found in self.gains().values())

    @property
    def is_slight(self) -> bool:
        """True where whoever does better for certain does so by next to nothing.

        That is, up to `kind.slight`, and no sample comes back clearly.
        """
        better = {name: found for name, found in self.gains().items() if found.low > 0}
        return all(
            found.value <= self.kind.slight and not self.recovered(self.by[name])
            for name, found in better.items()
        )

    def recovered(self, row: Rebuilt) -> float:
        """Return the share of samples that come back clearly, by the kind's own bound."""
        nearer_NS = self.kind.sign * (row.score_NB - self.kind.clear)
        return float((nearer_NS >= 0).mean())

    def average(self, row: Rebuilt) -> Interval:
        """Return the kind's average over sums."""
        return self.kind.interval(units(row.score_NB))


def attacked_sums(
    found: OpenedRound, shape: RoundShape, n: int, effort: SumEffort, seed: int
) -> AttackedSums:
    """Attack n sums of this shape; the same seed gives the same samples.

    Gradient matching is of sums of few samples, the other of all. What is read off the
    first layer needs samples to be normalised by constants, so that each has its own δ.

    Raises:
        DataError: clients have too few samples.
    """
    resting = copy.deepcopy(found.target.model).cpu().eval()
    found = replace(found, target=replace(found.target, model=resting))
    kind, target = found.kind(), found.target
    sums = opened_sums(found, shape, n, torch.Generator().manual_seed(seed))
    prior = prior_of(target, kind)
    guess_NSD = prior.guess(sums.y_NS)
    originals, n_samples = as_compared(sums.x_NS, kind), sums.y_NS.shape[1]

    def scored(x_NS: Tensor) -> Rebuilt:
        return rebuilt(kind, originals, as_compared(x_NS, kind), n)

    rng, by = torch.Generator().manual_seed(seed + 1), dict[SumAttacker, Rebuilt]()
    constants = target.normalised is NormalisedBatch.GIVEN
    layer = known_first_layer(target, target.given or running(target.model)) if constants else None
    if layer:
        read = [_read_off(layer, sums, i, shape, prior) for i in range(n)]
        by[SumAttacker.FIRST_LAYER] = scored(torch.stack(read))
    if n_samples <= effort.most_matched and n * n_samples <= most_matched(
        resting, sums.x_NS[0][:1]
    ):
        by[SumAttacker.MATCHING] = scored(_matched(found, sums, prior, effort.search, rng))
    nothing = scored(prior.guess.mean_D.expand_as(guess_NSD))
    return AttackedSums(shape, kind, originals, nothing, scored(guess_NSD), by)


def _read_off(
    layer: FirstLayer, sums: OpenedSums, i: int, shape: RoundShape, prior: Prior
) -> Tensor:
    """Return the guess from the labels, with what the first layer shows in the nearest places."""
    y_S, ranges = sums.y_NS[i], prior.ranges
    weight_MD, bias_M = (side[i] for side in layer.sides(sums.gradients))
    share = Share(shape.steps / len(y_S), one_step=shape.steps == 1)
    read_RD = inputs_shown(layer, weight_MD, bias_M, y_S, share, ranges)
    return placed(read_RD, prior.guess(y_S[None])[0], ranges)


def _matched(
    found: OpenedRound, sums: OpenedSums, prior: Prior, search: Search, rng: torch.Generator
) -> Tensor:
    target = found.target
    seen = SeenGradient(
        target.model,
        sums.gradients,
        sums.y_NS,
        sums.x_NS.shape[2:],
        prior,
        target.loss,
        groups=sums.groups,
    )
    beliefs = {}
    if target.normalised is NormalisedBatch.GIVEN:
        beliefs = fixed(target.model, target.given or running(target.model), len(sums.y_NS))
    return match(seen, beliefs, search, rng, sums.exact or None)
