"""SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1, option II).

    y_i ← y_i - η (g_i(y_i) - c_i + c),    c_i⁺ = c_i - c + (w̄ - y_i) / (K η),    c = Σ p_i c_i

For plain SGD c_i⁺ is the mean of the K mini-batch gradients. SecureFL computes it as that mean,
which holds with momentum and weight decay too. A client sends c + c_i⁺ - c_i, so that c moves by
the mean difference, whoever is in the sum; where not all clients are in a round, it moves by the
share that they are of all (`algorithms.participation`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from securefl.algorithms.solvers.solver import End, Solver, Start, StepContext, trained, zeros_of
from securefl.types import NamedTensors

if TYPE_CHECKING:
    from torch import nn


class Scaffold(Solver):
    """SGD whose gradients are corrected by what other clients' were."""

    name: Literal["scaffold"] = "scaffold"
    elementwise: ClassVar[bool] = True
    corrected: ClassVar[bool] = True

    def control(self, model: nn.Module) -> NamedTensors:
        """Return c, zero at first."""
        return zeros_of(model)

    def begin(self, start: Start) -> _Session:
        """Begin a round; c_i is remembered."""
        return _Session(start, start.remembered(), start.zeros())


@dataclass(frozen=True, slots=True)
class _Session:
    start: Start
    own: NamedTensors
    """c_i"""
    gradient_sum: NamedTensors

    def gradients(self, around: StepContext) -> None:
        self.start.backward(around)
        for name, gradient in self.start.gradients():
            self.gradient_sum[name].add_(gradient)
            gradient.add_(self.start.control[name]).sub_(self.own[name])

    def end(self) -> End:
        k = self.start.work.local_steps
        own = {name: value / k for name, value in self.gradient_sum.items()}
        control = {name: self.start.control[name] + c - self.own[name] for name, c in own.items()}
        return End(trained(self.start), control, own)
