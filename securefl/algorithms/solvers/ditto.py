"""Ditto (Li, Hu, Beirami, Smith, ICML 2021, arXiv 2012.04221, Algorithm 1).

    shared:  w_k ← w_k - η ∇F_k(w_k)                      what FedAvg does, and all that travels
    own:     v_k ← v_k - η (∇F_k(v_k) + λ (v_k - w̄))      w̄ the model that the round began with

A step moves both, by the same batch, as in the authors' code. v_k is a whole model, with running
statistics of its own, and its client is scored by it. It begins as the model of the client's first
round: the paper leaves its start open, and the authors begin with the first model of all. SGD takes
its steps as w_k's, with momentum that begins each round at zero. Parameters that stay at a client
(FedBN's) have no w̄, and are not drawn anywhere.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import tee
from typing import TYPE_CHECKING, ClassVar, Literal

from securefl.algorithms.solvers.solver import End, Solver, Start, StepContext, trained
from securefl.settings.table import NotNegative

if TYPE_CHECKING:
    import torch


class Ditto(Solver):
    """SGD, and beside it a model of each client's own that is drawn to the shared one."""

    name: Literal["ditto"] = "ditto"
    pull: NotNegative = 1.0
    """λ; with 0 each client trains its own model alone."""
    second_gradient: ClassVar[str] = "a client's own model takes a gradient of its own"
    own_model: ClassVar[bool] = True

    def begin(self, start: Start) -> _Session:
        """Begin a round; v_k is remembered."""
        from securefl.algorithms.algorithm import lay_over, trained_parameters
        from securefl.algorithms.local_sgd import local_sgd

        work = start.work
        model = copy.deepcopy(work.model)
        lay_over(model, work.client_state.personal)
        shared_batches, own_batches = tee(work.batches)
        own = trained_parameters(model)
        return _Session(
            replace(start, work=replace(work, batches=shared_batches)),
            replace(start, work=replace(work, batches=own_batches, model=model), parameters=own),
            local_sgd(own.values(), work.sgd),
            self.pull,
        )


@dataclass(frozen=True, slots=True)
class _Session:
    shared: Start
    own: Start
    """Means of v_k's steps."""
    sgd: torch.optim.SGD
    """Moves v_k."""
    pull: float

    def gradients(self, around: StepContext) -> None:
        self.shared.backward(around)
        self.own.backward(nullcontext)
        moved = self.own.moved()
        for name, gradient in self.own.gradients():
            gradient.add_(moved[name], alpha=self.pull)
        self.sgd.step()

    def end(self) -> End:
        from securefl.algorithms.algorithm import averaged_tensors, copied

        of = averaged_tensors(self.own.work.model).values()
        personal = copied({name: value for named in of for name, value in named.items()})
        return End(trained(self.shared), {}, {}, personal)
