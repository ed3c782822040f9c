"""Scores of a run over processes: worked out by the server, or by clients of their own models.

The server reads the clients' mean, and the sum of the sums that the metric's value over all their
samples follows from; each client's own where all parties' settings say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch import nn

from securefl.algorithms.scoring import Score
from securefl.build.job import Job
from securefl.errors import Diverged, OpeningRefused, TooFewContributions, TotalRefused
from securefl.exchange.whole import joined
from securefl.federation.cards import Cards
from securefl.federation.contribution import Refused
from securefl.federation.incidents import Incident
from securefl.federation.left_out import Suspects
from securefl.federation.message import SCORE_LOSS, SCORE_MEAN, SCORE_VALUE
from securefl.federation.query import Query, scoring
from securefl.federation.questions import NumberQuestion
from securefl.federation.round import OpenSum, ServerRound
from securefl.federation.server import Server
from securefl.metrics.by_name import range_of, title
from securefl.runs.divergence import check_loss
from securefl.types import State

if TYPE_CHECKING:
    from securefl.network.sites import NetworkSites


ROUNDING = 1e-4
"""Error, at most, of a mean that the authority has opened."""


@dataclass(slots=True)
class Scores:
    """Scorer of the model here, or where clients have models or tests of their own, at them."""

    job: Job
    server: Server
    sites: NetworkSites
    open_sum: OpenSum
    cards: Cards
    first_loss: Callable[[], float | None] = lambda: None
    """Function that returns the loss after the first round; None before."""
    suspects: Suspects = field(init=False)
    """Search for the clients that spoil means; a run that is resumed begins it anew."""

    def __post_init__(self) -> None:
        self.suspects = Suspects(self.job.needed)

    def __call__(self, model: nn.Module, state: State) -> Score:
        """Score the model after a round.

        Raises:
            TooFewContributions, Diverged, TotalRefused, OpeningRefused: there is no mean.
        """
        if not self.job.scores_at_clients:
            return self.job.evaluator.score(model, state, {})
        # The answers belong to the round that has made this state.
        made, here = replace(state, round=state.round - 1), self.sites.connected()
        if self.job.config.sites.scores == "mean":
            return self._mean(made, here)
        return self._each(made, here)

    def _each(self, made: State, here: Sequence[str]) -> Score:
        """Return the mean of the clients' scores, with each client's."""
        values, losses = (
            NumberQuestion(self.server, self.sites, name).ask(made, here)
            for name in (SCORE_VALUE, SCORE_LOSS)
        )
        scores = {}
        for name in (name for name in values if name in losses):
            score = self.job.evaluator.named(values[name], losses[name])
            if reason := self._impossible(score):
                self._without(made, name, reason)
            else:
                scores[name] = score
        if not scores:
            number = made.round + 1
            raise TooFewContributions(f"round {number}: no client has scored its model")
        try:
            pooled = self._mean(made, here).pooled
        except OpeningRefused:
            pooled = None
        return replace(self.job.evaluator.mean_of(scores), pooled=pooled)

    def _mean(self, made: State, here: Sequence[str]) -> Score:
        """Return the mean over clients, of which nobody reads one client's where it is sealed."""
        server, since, evaluator = self.server, self.sites.since(), self.job.evaluator
        (spec,) = self.job.score_sums
        here = self.cards.holders(made, self.suspects.taking_part(here))
        since = {name: since.get(name, 0) for name in here}
        ongoing = ServerRound(server, scoring(server.run, made, since, server.job, spec))
        answers = self.sites.answers(server.run, Query(SCORE_MEAN), made, here)
        for name, answer in answers.items():
            ongoing.take(name, answer if isinstance(answer, Refused) else (answer,))
        try:
            ongoing.open_all(self.open_sum)
            total = ongoing.totals()[spec.kind]
            found, scored = total.values, float(total.values["scored"])
            pooled = evaluator.pooled(joined(found["sums"], total.n_clients))
            value = float(found["value"]) / scored if scored > ROUNDING else math.nan
            score = evaluator.named(value, float(found["loss"]), pooled)
            if reason := self._impossible(score):
                raise TotalRefused(reason)
        except OpeningRefused as error:
            spoilt = isinstance(error, TotalRefused)
            # Else it is of other clients than a sum before; where each is read, no score is lost.
            for name in ongoing.counted if spoilt or self.job.config.sites.scores == "mean" else ():
                self._without(made, name, f"no mean ({error}), which it may have spoilt")
            if spoilt:
                self._search(made, ongoing.counted)
            raise
        self.suspects.opened(ongoing.counted)
        return score

    def _search(self, made: State, among: Sequence[str]) -> None:
        """Have the next means be of a part of these clients, and name who is found."""
        known = set(self.suspects.guilty)
        self.suspects.refused(among)
        for name in sorted(self.suspects.guilty - known):
            self._without(made, name, "left out of means from now on: they open without it")

    def _without(self, made: State, name: str, why: str) -> None:
        # The model goes on, as in a simulation: a reproducible run does not end by it.
        incident = Incident(made.round + 1, SCORE_MEAN, name, f"{name}: {why}", diverged=True)
        self.server.report(incident)

    def _impossible(self, score: Score) -> str:
        """Return why no honest clients have this score, or mean; empty where they may."""
        found = f"the score is {score.value:.6g}, the loss {score.loss:.6g}"
        values = [score.value, *([score.pooled.value] if score.pooled else [])]
        low, high = range_of(score.metric)
        if any(value < low - ROUNDING or value > high + ROUNDING for value in values):
            over = f", over all samples {values[-1]:.6g}" if score.pooled else ""
            return f"{found}{over}: a value of {title(score.metric)} is from {low:g} to {high:g}"
        if self.job.config.samples and score.loss < -ROUNDING:
            return f"{found}: no loss of samples is below 0"
        try:
            check_loss(0, score.loss, self.first_loss())
        except Diverged:
            return f"{found}, after {self.first_loss():.6g} in the first round"
        return ""
