"""Per-FedAvg (Fallah, Mokhtari, Ozdaglar, NeurIPS 2020, Algorithm 1, first-order variant).

    w̃ ← w - α ∇F_i(w; B),    w ← w - η ∇F_i(w̃; B')

A step takes two batches, B and B', so an epoch's worth of steps passes over the data twice. What is
trained and scored is w, from which a client's own model is one step of α away. Buffers such as BN's
running statistics are w's: they follow B, and the pass through w̃ leaves them as they were.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal

from securefl.algorithms.solvers.solver import End, Solver, Start, StepContext, trained
from securefl.settings.table import Positive


class PerFedAvg(Solver):
    """SGD along the gradient one step ahead."""

    name: Literal["per-fedavg"] = "per-fedavg"
    inner_lr: Positive = 0.01
    """α, the step that a client's own model is ahead."""
    elementwise: ClassVar[bool] = True
    second_gradient: ClassVar[str] = "a step takes two gradients"
    passes: ClassVar[int] = 2

    def begin(self, start: Start) -> "_Session":
        """Begin a round; nothing is remembered."""
        return _Session(start, self.inner_lr)


@dataclass(frozen=True, slots=True)
class _Session:
    start: Start
    inner_lr: float

    def gradients(self, around: StepContext) -> None:
        self.start.backward(around)
        with _ahead(self.start, self.inner_lr):
            self.start.backward(nullcontext)

    def end(self) -> End:
        return End(trained(self.start), {}, {})


@contextmanager
def _ahead(start: Start, lr: float) -> Iterator[None]:
    """Move the model a step along its gradients within the context, and put it back after it."""
    import torch

    from securefl.algorithms.algorithm import copied

    parameters, buffers = start.parameters, dict(start.work.model.named_buffers())
    before, buffers_before = copied(parameters), copied(buffers)
    with torch.no_grad():
        for parameter in parameters.values():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=lr)
    yield
    with torch.no_grad():
        for name, value in before.items():
            parameters[name].copy_(value)
        for name, value in buffers_before.items():
            buffers[name].copy_(value)
