"""Blocks of clients with unequal numbers of local steps.

All take as many steps as the longest; each keeps the model after its own last step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from securefl.algorithms.algorithm import averaged_tensors
from securefl.algorithms.solvers.solver import End, LocalSession, LocalSolver, Start, StepContext
from securefl.simulation.stacked.model import parts
from securefl.types import NamedTensors


@dataclass(frozen=True, slots=True)
class UnequalSteps:
    """Solver of a block whose clients have unequal numbers of local steps."""

    solver: LocalSolver
    steps: Sequence[int]
    """Number of steps of each client."""

    def control(self, model: nn.Module) -> NamedTensors:
        """Return the solver's control tensors: see `Solver.control`."""
        return self.solver.control(model)

    def begin(self, start: Start) -> LocalSession:
        """Begin a session: see `Solver.begin`."""
        return _Session(self.solver.begin(start), start.work.model, self.steps)


@dataclass(slots=True)
class _Session:
    session: LocalSession
    model: nn.Module
    steps: Sequence[int]
    _n_taken: int = 0
    _kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Tensors of clients that have ended: a view of the stacked model, and a copy."""

    def gradients(self, around: StepContext) -> None:
        self._keep_those_who_ended()
        self.session.gradients(around)
        self._n_taken += 1

    def _keep_those_who_ended(self) -> None:
        if ended := [i for i, n in enumerate(self.steps) if n == self._n_taken]:
            for named in averaged_tensors(self.model).values():
                for value in named.values():
                    # The view is of the stacked model, which trains on; the copy is the client's
                    # model of now.
                    of = parts(value.detach(), len(self.steps))
                    self._kept += [(of[i], of[i].clone()) for i in ended]

    def end(self) -> End:
        with torch.no_grad():
            for target, value in self._kept:
                target.copy_(value)
        return self.session.end()
