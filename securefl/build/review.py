"""A job as one site sees it before it takes part: what would leave its machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from securefl.algorithms.standardisation import SUM, measured
from securefl.build.exchange import is_blind
from securefl.build.selection import numbers_of
from securefl.federation.message import CARD
from securefl.privacy.history import History
from securefl.settings.axes import Weights
from securefl.types import LOSS, PROFILE, SIZE, Weighing

if TYPE_CHECKING:
    from securefl.build.job import Job


NUMBERS = {
    SIZE: "its number of training samples",
    LOSS: "the model's mean loss on its training samples",
}
"""Answers of a site that the server reads, in words; scores are of test samples."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Message that a site would send."""

    name: str
    n_values: int
    """Number of values in it; 0 for a profile, whose length the model decides."""
    sealed: bool
    sized: bool
    """True where its weight goes by the site's number of samples."""
    blind: bool
    """True where its total is sealed for sites, too."""
    n_rounds: int
    """Number of rounds in which it is sent, at most."""


@dataclass(frozen=True, slots=True)
class Review:
    """Messages that leave a site in all rounds of a job, and what they are protected by."""

    outgoing: tuple[Outgoing, ...]
    rounds: int
    epsilon: float | None
    """ε of all rounds under the settings' δ; None without noise, infinite if nothing is bound."""

    @property
    def shows_size(self) -> bool:
        """True where a message's weight shows the site's number of samples to the server."""
        return any(each.sized and not each.sealed for each in self.outgoing)

    @property
    def asks_size(self) -> bool:
        """True where the server asks for the site's number of samples."""
        return NUMBERS[SIZE] in self.asked

    @property
    def asked(self) -> tuple[str, ...]:
        """Numbers of the site, in words, that the server asks for to select clients by."""
        names = {each.name for each in self.outgoing}
        return tuple(words for name, words in NUMBERS.items() if name in names)


def review(job: Job) -> Review:
    """Review a job; what its algorithm sends in a round may depend on rounds before, so: at most.

    Raises:
        DataError: the model cannot be trained so.
    """
    rounds, spending = job.config.run.rounds, job.spending()
    if spending:
        rounds = spending.last_round(History(), 0)
    found = Counter(_messages(job, rounds))
    outgoing = tuple(Outgoing(*about, n_rounds) for about, n_rounds in found.items())
    epsilon = spending.epsilon_after(History(), 0, rounds) if spending else None
    return Review(outgoing, rounds, epsilon)


def _messages(job: Job, rounds: int) -> Iterator[tuple[str, int, bool, bool, bool]]:
    """Yield each message of each round, as `Outgoing` has it."""
    by_size = job.config.algorithm.weights != Weights.UNIFORM
    model, state = job.task.model, job.algorithm.init(job.task.model)
    if job.config.needs_cards:
        yield CARD, 1, True, False, False  # once a session
    for done in range(rounds):
        plan = job.algorithm.plan(replace(state, round=done), model)
        state = measured(state)  # once the first round has counted
        for spec in (*plan.sums, *plan.update, *job.score_sums):
            sized = (by_size and spec.weighing is Weighing.OWN) or spec.name == SUM
            blind = is_blind(job.config, spec.kind, spec.name)
            yield spec.name, spec.n_values, spec.kind in job.sealed, sized, blind
        for name in numbers_of(job):
            is_profile = name == PROFILE
            sealed = is_profile and job.config.seals_scores
            yield name, 0 if is_profile else 1, sealed, name == SIZE, False
