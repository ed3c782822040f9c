"""Clients side by side that take unequal numbers of local steps.

All take as many as the longest; each keeps the model that it had after its own last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from securefl.algorithms.base import averaged_tensors
from securefl.algorithms.federated import Federated, Momentum
from securefl.algorithms.solvers.base import Around, End, Session, Solver, Start
from securefl.algorithms.solvers.fedprox import FedProx
from securefl.algorithms.solvers.sgd import SGD
from securefl.engines.wide_model import parts
from securefl.types import NamedTensors

LEAST_SHARE = 0.5
"""Of the longest client's steps: who takes fewer is not worth the idle channels beside it."""


def may_be_ragged(algorithm: Federated) -> bool:
    """Whether nothing but the model's tensors tells how a client's steps went."""
    return type(algorithm.solver) in (SGD, FedProx) and algorithm.momentum is Momentum.RESET


def split(
    names: Sequence[str], steps: Callable[[str], int], most: int, least_share: float
) -> Iterator[list[str]]:
    """Cohorts of at most `most` clients of similar numbers of steps, the longest first."""
    cohort: list[str] = []
    for name in sorted(names, key=steps, reverse=True):
        if cohort and (len(cohort) == most or steps(name) < least_share * steps(cohort[0])):
            yield cohort
            cohort = []
        cohort.append(name)
    yield cohort


@dataclass(frozen=True, slots=True)
class Ragged:
    """A solver of clients side by side, each with its own number of local steps."""

    solver: Solver
    steps: Sequence[int]
    """Of each client."""

    def control(self, model: nn.Module) -> NamedTensors:
        """See `Solver.control`."""
        return self.solver.control(model)

    def begin(self, start: Start) -> Session:
        """See `Solver.begin`."""
        return _Session(self.solver.begin(start), start.work.model, self.steps)


@dataclass(slots=True)
class _Session:
    session: Session
    model: nn.Module
    steps: Sequence[int]
    _n_taken: int = 0
    _kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Of clients that have ended: where it is in the wide model, and a copy."""

    def gradients(self, around: Around) -> None:
        self._keep_those_who_ended()
        self.session.gradients(around)
        self._n_taken += 1

    def _keep_those_who_ended(self) -> None:
        if ended := [i for i, n in enumerate(self.steps) if n == self._n_taken]:
            for named in averaged_tensors(self.model).values():
                for value in named.values():
                    of = parts(value.detach(), len(self.steps))
                    self._kept += [(of[i], of[i].clone()) for i in ended]

    def end(self) -> End:
        with torch.no_grad():
            for target, value in self._kept:
                target.copy_(value)
        return self.session.end()
