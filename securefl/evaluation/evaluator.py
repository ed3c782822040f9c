"""Scores of a run, round by round: of the global model, or of each client's own."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import torch
from torch import Tensor, nn

from securefl.algorithms.algorithm import lay_over, load_tensors
from securefl.algorithms.scoring import Score, evaluate
from securefl.data.resident import near
from securefl.data.samples import Samples, samples
from securefl.errors import ConfigError
from securefl.metrics.chosen import OwnMeasure, chosen_metric, inferred_metric
from securefl.metrics.metric import Metric, PooledScore
from securefl.task import Task
from securefl.trial import labelled, tried
from securefl.types import ClientState, NamedTensors, State


class Evaluator:
    """Scorer of models on the test data of a task.

    The score is the global model's on the common test data. Where a part of the model is each
    client's own (client-specific BN), or where clients have test data of their own, it is the mean
    over clients of their models' scores (FedTAN, appendix D), which it then holds, too. Beside it
    is the metric's value over all clients' samples, by the sums of their sums.
    """

    def __init__(self, task: Task, names: Sequence[str]) -> None:
        """Check test data and metric; `names` are all clients'.

        Raises:
            ConfigError: not a test set for each client.
            DataError: test data that cannot be used, or whose metric is not certain.
        """
        if len(task.client_tests) not in (0, len(task.clients)):
            raise ConfigError(
                f"{len(task.client_tests)} test sets for {len(task.clients)} clients: give each "
                "client its own, or none"
            )
        self._loss = task.loss
        owners = [f"the test data of {name}" for name in names[: len(task.client_tests)]]
        tests = {"the test data": task.test, **dict(zip(owners, task.client_tests, strict=True))}
        found = {owner: samples(data, owner) for owner, data in tests.items()}
        outputs = tried(task.model, task.loss, found)
        self._metric = _metric(task, outputs)
        self._tried = outputs
        found = labelled(found, outputs, task.loss)
        # Near the model, since they are passed over every round.
        self._common, *own = near(found, task.model).values()
        self._own = dict(zip(names, own, strict=False))

    def score(
        self, model: nn.Module, state: State, client_states: Mapping[str, ClientState]
    ) -> Score:
        """Score the models after a round; `model` holds the global one before and after."""
        personal = any(client_state.scored for client_state in client_states.values())
        if not personal and not self._own:
            return self._scored(model, self._common)
        scores = {
            # One party that trains on all clients' data is no client: these have the tests alone.
            name: self.score_of(
                model, state, name, client_states[name].scored if name in client_states else {}
            )
            for name in (self._own or client_states)
        }
        load_tensors(model, state)
        return self.mean_of(scores)

    def score_of(self, model: nn.Module, state: State, name: str, own: NamedTensors) -> Score:
        """Score the state's model with a client's own tensors laid over it, on its test data.

        `model` holds them afterwards.
        """
        load_tensors(model, state)
        lay_over(model, own)
        return self._scored(model, self._own.get(name, self._common))

    def mean_of(self, scores: Mapping[str, Score]) -> Score:
        """Return the mean over clients; that of values over those that have one."""
        values = [s.value for s in scores.values() if not math.isnan(s.value)]
        value, loss = fmean(values or [math.nan]), fmean(s.loss for s in scores.values())
        sums = [s.sums for s in scores.values() if s.sums is not None]
        pooled = self.pooled(torch.stack(sums).sum(dim=0)) if len(sums) == len(scores) else None
        return Score(value, loss, self._metric.name, scores, pooled)

    @property
    def n_sums(self) -> int:
        """Number of sums that the metric's value over all clients follows from."""
        return self._metric.n_sums(*next(iter(self._tried.values())))

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return self._metric.name

    def named(self, value: float, loss: float, pooled: PooledScore | None = None) -> Score:
        """Return the mean that was worked out elsewhere, under the metric's name."""
        return Score(value, loss, self.metric, pooled=pooled)

    def pooled(self, sums: Tensor) -> PooledScore:
        """Return the value over all clients, by the sum of their sums."""
        return self._metric.pooled(sums)

    def _scored(self, model: nn.Module, test: Samples) -> Score:
        return evaluate(model, test, self._loss, self._metric)


def _metric(task: Task, found: Mapping[str, tuple[Tensor, Tensor]]) -> Metric:
    """Return the task's metric, or the one that outputs of a few samples imply; tried on them."""
    metric = None if task.metric is None else chosen_metric(task.metric, task.loss)
    for output, y in found.values():
        metric = metric or inferred_metric(task.loss, output, y)
        if not isinstance(
            metric, OwnMeasure
        ):  # a user's own may need more samples, of both classes
            metric.of(output, y)
    assert metric is not None  # noqa: S101 -- for mypy: there is one test set at least
    return metric
