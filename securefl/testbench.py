"""What a run is scored on, round by round: the global model, or each client's own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from torch import nn

from securefl.algorithms.base import lay_over, load_tensors
from securefl.data.resident import near
from securefl.data.samples import samples
from securefl.engines.evaluation import Score, evaluate
from securefl.errors import ConfigError, Diverged
from securefl.runrecord import RoundMetrics
from securefl.task import Task
from securefl.types import Memory, State

LOST = 1e6
"""How many times the first round's loss no training comes back from."""


def check_loss(round_number: int, loss: float, before: Sequence[RoundMetrics]) -> None:
    """Raise Diverged where a round's model is lost, before its numbers run out.

    Args:
        round_number: from 1.
        loss: on the test data, after the round.
        before: the rounds before it, the first round first.
    """
    first = before[0].loss if before else math.inf
    if not (math.isfinite(loss) and loss <= LOST * first):
        raise Diverged(
            f"round {round_number}: the loss on the test data is {loss:.3g}: training "
            "diverged. Lower train.lr, or drop it earlier (train.lr_drops)"
        )


class TestBench:
    """The test data of a task.

    The score is the global model's on the common test data. Where a part of the model is each
    client's own (client-specific BN), or where clients have test data of their own, it is the mean
    over clients of their models' scores (FedTAN, appendix D).
    """

    __test__ = False  # no test of pytest's

    def __init__(self, task: Task) -> None:
        """Raises ConfigError or DataError where the test data cannot be used."""
        if len(task.client_tests) not in (0, len(task.clients)):
            raise ConfigError(
                f"{len(task.client_tests)} test sets for {len(task.clients)} clients: give each "
                "client its own, or none"
            )
        self._loss = task.loss
        own = {f"the test data of client-{i}": of for i, of in enumerate(task.client_tests, 1)}
        tests = {"the test data": task.test, **own}
        found = {owner: samples(data, owner) for owner, data in tests.items()}
        # Near the model, since they are passed over every round.
        self._common, *self._own = near(found, task.model).values()

    def score(self, model: nn.Module, state: State, memories: Mapping[str, Memory]) -> Score:
        """Of the models after a round; `model` holds the global one before and after."""
        personal = any(memory.own for memory in memories.values())
        if not personal and not self._own:
            return evaluate(model, self._common, self._loss)
        tests = self._own or [self._common] * len(memories)
        if len(memories) != len(tests):  # centralised: one model for all clients' tests
            scores = [evaluate(model, test, self._loss) for test in tests]
        else:
            scores = []
            for memory, test in zip(memories.values(), tests, strict=True):
                load_tensors(model, state)
                lay_over(model, memory.own)
                scores.append(evaluate(model, test, self._loss))
            load_tensors(model, state)
        return Score(fmean(s.accuracy for s in scores), fmean(s.loss for s in scores))
