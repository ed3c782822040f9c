"""Scores of a run over processes: worked out by the server, or by clients of their own models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from securefl.algorithms.scoring import Score
from securefl.build.job import Job
from securefl.errors import TooFewContributions, TotalRefused
from securefl.evaluation.evaluator import Evaluator
from securefl.federation.contribution import Refused
from securefl.federation.query import SCORE_LOSS, SCORE_MEAN, SCORE_VALUE, Query, scoring
from securefl.federation.questions import NumberQuestion
from securefl.federation.round import OpenSum, ServerRound
from securefl.federation.server import Server
from securefl.network.sites import NetworkSites
from securefl.types import State


@dataclass(slots=True)
class Scores:
    """Scores the model here, or where clients have models or tests of their own, at them."""

    job: Job
    server: Server
    sites: NetworkSites
    open_sum: OpenSum
    evaluator: Evaluator = field(init=False)

    def __post_init__(self) -> None:
        self.evaluator = Evaluator(self.job.task, self.job.names)

    def __call__(self, model: nn.Module, state: State) -> Score:
        """Score the model after a round.

        Raises:
            TooFewContributions, Diverged, TotalRefused, OpeningRefused: there is no mean.
        """
        if not self.job.scores_at_clients:
            return self.evaluator.score(model, state, {})
        # The answers belong to the round that has made this state.
        made, here = replace(state, round=state.round - 1), self.sites.connected()
        if self.job.score_sums:
            return self._mean(made, here)
        values, losses = (
            NumberQuestion(self.server, self.sites, name).ask(made, here)
            for name in (SCORE_VALUE, SCORE_LOSS)
        )
        scores = {name: Score(values[name], losses[name]) for name in values if name in losses}
        if not scores:
            raise TooFewContributions(f"round {state.round}: no client has scored its model")
        return self.evaluator.mean_of(scores)

    def _mean(self, made: State, here: Sequence[str]) -> Score:
        """Return the mean over clients, of which nobody reads one client's where it is sealed."""
        server, since = self.server, self.sites.since()
        since = {name: since.get(name, 0) for name in here}
        ongoing = ServerRound(server, scoring(server.run, made, since, server.job))
        answers = self.sites.answers(server.run, Query(SCORE_MEAN.name), made, here)
        for name, answer in answers.items():
            ongoing.take(name, answer if isinstance(answer, Refused) else (answer,))
        try:
            ongoing.open_all(self.open_sum)
        except TotalRefused as error:
            for name in ongoing.counted:
                ongoing.lose(name, SCORE_MEAN.name, f"{name}: {error}; it may have spoilt the mean")
            raise
        found = ongoing.totals()[SCORE_MEAN.kind].values
        return self.evaluator.named(float(found["value"]), float(found["loss"]))
