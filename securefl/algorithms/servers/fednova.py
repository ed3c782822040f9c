"""FedNova (Wang et al., NeurIPS 2020, Eq. (6)): clients of unequal local steps count alike.

    d_i = (w̄ - w_i) / ‖a_i‖₁,    τ_eff = Σ p_i ‖a_i‖₁,    w̄ ← w̄ - τ_eff Σ p_i d_i

‖a_i‖₁ sums the weights with which a client's K gradients have entered its move: K for plain SGD,
(K - m (1 - m^K) / (1 - m)) / (1 - m) with momentum m that begins each round at zero. Both sums go
over clients: ‖a_i‖₁, and w̄ - s d_i in the place of w_i, where s is the last round's τ_eff and at
first the one expected, so that what is sent has the size of a model's move and no digits are lost.

The count is of gradients, whatever solver made them: FedProx's own ‖a_i‖₁, which is
(1 - (1 - ημ)^K) / (ημ), is K as long as ημK is small.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from securefl.algorithms.servers.server_optimiser import Averaged, Stepped
from securefl.algorithms.solvers.solver import (
    End,
    LocalSession,
    LocalSolver,
    SameSteps,
    Start,
    StepContext,
)
from securefl.settings.axes import ServerChoice
from securefl.types import NamedTensors

if TYPE_CHECKING:
    from torch import nn


STEPS = "fednova/steps"


class FedNova(ServerChoice):
    """The settings of FedNova, which has no key of its own."""

    name: Literal["fednova"] = "fednova"
    counts_steps: ClassVar[bool] = True

    def build(self, expected_steps: float) -> NovaServer:
        """See `ServerChoice`."""
        return NovaServer(expected_steps)

    def around(self, solver: LocalSolver, expected_steps: float) -> Normalised:
        """See `ServerChoice`."""
        return Normalised(solver, expected_steps)


@dataclass(frozen=True, slots=True)
class NovaServer:
    """FedNova's half at the server."""

    expected_steps: float = 1.0
    """The first round's s."""

    def init(self, parameters: NamedTensors) -> NamedTensors:
        """Return the first round's s."""
        like = next(iter(parameters.values()))
        return {STEPS: like.new_tensor(self.expected_steps)}

    def step(self, averaged: Averaged, kept: NamedTensors) -> Stepped:
        """Take τ_eff times the mean normalised move."""
        steps = averaged.control[STEPS]
        factor = steps / kept[STEPS]
        model = {name: averaged.last[name] + factor * d for name, d in averaged.moves().items()}
        return model, {STEPS: steps}


@dataclass(frozen=True, slots=True)
class Normalised(SameSteps):
    """FedNova's half at the clients, around any solver."""

    solver: LocalSolver
    expected_steps: float = 1.0
    """The server's `expected_steps`."""

    def control(self, model: nn.Module) -> NamedTensors:
        """Return the solver's own, and τ_eff."""
        from securefl.algorithms.algorithm import trained_parameters

        like = next(iter(trained_parameters(model).values()))
        return {**self.solver.control(model), STEPS: like.new_tensor(self.expected_steps)}

    def begin(self, start: Start) -> LocalSession:
        """Begin the solver's own round, which has the solver's own control."""
        own = {name: value for name, value in start.control.items() if name != STEPS}
        return _Session(start, self.solver.begin(replace(start, control=own)))


@dataclass(frozen=True, slots=True)
class _Session:
    start: Start
    session: LocalSession

    def gradients(self, around: StepContext) -> None:
        self.session.gradients(around)

    def end(self) -> End:
        end, origin = self.session.end(), self.start.origin
        steps = effective_steps(self.start.work.local_steps, self.start.work.sgd.momentum)
        factor = self.start.control[STEPS] / steps
        parameters = {name: w + factor * (end.parameters[name] - w) for name, w in origin.items()}
        like = next(iter(self.start.parameters.values()))
        control = {**end.control, STEPS: like.new_tensor(steps)}
        return replace(end, parameters=parameters, control=control)


def effective_steps(k: int, momentum: float) -> float:
    """Return ‖a_i‖₁ of K steps whose momentum buffer begins empty."""
    m = momentum
    return (k - m * (1 - m**k) / (1 - m)) / (1 - m)
