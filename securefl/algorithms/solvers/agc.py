"""Adaptive gradient clipping (Brock, De, Smith, Simonyan, ICML 2021, arXiv 2102.06171).

    G_i ← λ ‖W_i‖* G_i / ‖G_i‖   where   ‖G_i‖ > λ ‖W_i‖*,    ‖W_i‖* = max(‖W_i‖, ε),  ε = 1e-3

i is a unit: an output channel's weights, and a vector, such as a bias, is one unit, as in the
authors' code. The last linear layer is not clipped; a model that ends otherwise is clipped as a
whole. Weight decay comes after it. With model.norm = "scaled-ws" this is FedWon (Zhuang, Lyu,
ICLR 2024). Clients train one after the other: side by side all their vectors would be one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from securefl.algorithms.solvers.solver import End, Solver, Start, StepContext, trained
from securefl.settings.table import Positive

if TYPE_CHECKING:
    from torch import Tensor

EPS = 1e-3
LEAST_NORM = 1e-6
"""Least norm of a gradient that is divided by."""


class AdaptiveClipping(Solver):
    """SGD whose gradients are no longer than a share of the weights that they move."""

    name: Literal["agc"] = "agc"
    clip: Positive = 0.16
    """λ. The smaller the batch, the larger it may be: NFNets take 0.01 with batches of 4096."""
    holds_to_global: ClassVar[bool] = False

    def begin(self, start: Start) -> _Session:
        """Begin a round; nothing is remembered."""
        from securefl.algorithms.features import last_linear
        from securefl.errors import DataError

        model = start.work.model
        try:
            unclipped = {id(p) for p in last_linear(model).parameters()}
        except DataError:
            unclipped = set()
        clipped = [name for name, p in start.parameters.items() if id(p) not in unclipped]
        return _Session(start, self.clip, clipped)


@dataclass(frozen=True, slots=True)
class _Session:
    start: Start
    clip: float
    clipped: Collection[str]
    """Names of the parameters whose gradients are clipped, those that stay at a client included."""

    def gradients(self, around: StepContext) -> None:
        self.start.backward(around)
        for name in self.clipped:
            w = self.start.parameters[name]
            if w.grad is not None:
                most = self.clip * unit_norms(w.detach()).clamp(min=EPS)
                norms = unit_norms(w.grad)
                w.grad.mul_((most / norms.clamp(min=LEAST_NORM)).where(norms > most, 1.0))

    def end(self) -> End:
        return End(trained(self.start), {}, {})


def unit_norms(value: Tensor) -> Tensor:
    """Return ‖·‖ of each output channel, with axes of size one; of a vector, one number."""
    import torch

    axes = tuple(range(1, value.dim())) if value.squeeze().dim() > 1 else None
    norms: Tensor = torch.linalg.vector_norm(value, dim=axes, keepdim=axes is not None)
    return norms
