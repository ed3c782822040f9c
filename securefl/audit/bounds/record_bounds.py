"""Bounds on ε of one set of canary records, and the tightest of those that hold for the run.

Three are worked out of the same scores: by guesses, whatever the mechanism is; by guesses, if its
curve is as of Gaussian noise; and by scores, if these are Gaussian, too. The first always holds.
The others are for runs whose noise is Gaussian, which those with a finite ε are here: only there
may they lead. That is known before any score is, so that nothing is to be corrected for it.

Both bounds by guesses are of one number of right guesses, and the larger needs no correction. That
by scores is of another statistic: where it may lead, each of the two has half of the probability of
failing (Bonferroni), whether or not the scores are found to be Gaussian.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from securefl.audit.bounds.canary_bounds import OneRunBound, one_run_bound, refuted_by_either
from securefl.audit.bounds.fdp_bound import refuted_gaussian
from securefl.audit.bounds.score_bound import ScoreBound, score_bound
from securefl.audit.thresholds import CONFIDENCE


class Noise(StrEnum):
    """Noise of the mechanism that is audited."""

    GAUSSIAN = "Gaussian"
    """Sums of Gaussian releases, sampled or not."""
    UNKNOWN = "unknown"
    """Any, or none."""


class Method(StrEnum):
    """Bound of canary records, in words."""

    ANY = "guesses, any mechanism"
    CURVE = "guesses, Gaussian noise"
    SCORES = "scores, Gaussian noise and scores"


@final
@dataclass(frozen=True, slots=True)
class RecordBounds:
    """Bounds of the same scores, side by side."""

    noise: Noise
    any: OneRunBound
    """Bound by guesses, whatever the mechanism is."""
    curve: OneRunBound
    """Bound by guesses, if its curve is as of Gaussian noise."""
    scores: ScoreBound

    def may_lead(self, method: Method) -> bool:
        """Return whether the run and its scores are as this bound assumes."""
        if method is Method.ANY:
            return True
        gaussian = self.noise is Noise.GAUSSIAN
        return gaussian and (method is Method.CURVE or self.scores.gaussian)

    def epsilon_of(self, method: Method) -> float:
        """Return the lower bound on ε by one method, whether or not it may lead."""
        match method:
            case Method.ANY:
                return self.any.epsilon
            case Method.CURVE:
                return self.curve.epsilon
            case Method.SCORES:
                return self.scores.epsilon

    def ceiling_of(self, method: Method) -> float:
        """Return the largest bound that the best attack could have shown; scores know none."""
        match method:
            case Method.ANY:
                return self.any.ceiling
            case Method.CURVE:
                return self.curve.ceiling
            case Method.SCORES:
                return inf

    @property
    def leading(self) -> Method:
        """Method of the largest bound that may lead."""
        return max(filter(self.may_lead, Method), key=self.epsilon_of)

    @property
    def epsilon(self) -> float:
        """Lower bound on ε, corrected for the choice among methods; 0 where nothing is shown."""
        return self.epsilon_of(self.leading)

    @property
    def ceiling(self) -> float:
        """Largest bound that so many canaries could have shown."""
        return max(map(self.ceiling_of, filter(self.may_lead, Method)))


def record_bounds(
    scores: ArrayLike,
    included: ArrayLike,
    delta: float,
    noise: Noise,
    confidence: float = CONFIDENCE,
) -> RecordBounds:
    """Return all bounds that an attack's scores show.

    Args:
        scores: of each canary, shape (m,); higher for "was in".
        included: whether it was, shape (m,); drawn by fair coins before the run.
        delta: δ of the claim that is audited.
        noise: of the mechanism, by its settings.
        confidence: with which the leading bound holds.

    Raises:
        DataError: fewer than two canaries, scores that are not finite, shapes that differ.
    """
    each = 1 - (1 - confidence) / (2 if noise is Noise.GAUSSIAN else 1)
    score_m, in_m = np.asarray(scores, dtype=np.float64), np.asarray(included, dtype=bool)
    free = one_run_bound(score_m, in_m, delta, each, refuted=refuted_by_either)
    curve = one_run_bound(score_m, in_m, delta, each, refuted=refuted_gaussian)
    return RecordBounds(noise, free, curve, score_bound(score_m, in_m, delta, each))
