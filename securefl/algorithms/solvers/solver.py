"""A local solver fills in the gradients of each local step; SGD then takes the step.

w̄ is the model that the round began with, w_i this client's, K its number of local steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from securefl.errors import ConfigError
from securefl.settings.axes import SolverChoice
from securefl.types import NamedTensors

if TYPE_CHECKING:
    from torch import Tensor, nn

    from securefl.algorithms.algorithm import Work

StepContext: TypeAlias = "Callable[[], AbstractContextManager[None]]"
"""Function that makes the context of a step's forward and backward pass; called once a step."""
ExtraLoss: TypeAlias = "Callable[[Tensor], Tensor]"
"""A term beside the loss, from the batch's x, asked for once the model has seen it."""
Gradients: TypeAlias = "Callable[[StepContext, ExtraLoss | None], None]"
"""Function that leaves a step's gradients, of loss and term beside it, in the parameters.

The only place where training looks at data.
"""


@dataclass(frozen=True, slots=True)
class Start:
    """A solver's means when a client's round begins."""

    work: Work
    parameters: Mapping[str, nn.Parameter]
    """All that this round trains; SGD moves them between the steps."""
    origin: NamedTensors
    """w̄ of the parameters that travel, a copy; a client's own parameters have no w̄."""
    control: NamedTensors
    """The total of what clients sent in the round before, by the names of `Solver.control`."""
    from_data: Gradients | None = None
    """Function that makes gradients in another way than from the next batch: privately."""

    def backward(self, around: StepContext, beside: ExtraLoss | None = None) -> None:
        """Leave gradients of the loss on the next batch; those of before are cleared."""
        import torch

        if self.from_data:
            self.from_data(around, beside)
            return
        work = self.work
        for parameter in self.parameters.values():
            parameter.grad = None
        x, y = next(work.batches)
        context = around()
        plain = beside is None and isinstance(context, nullcontext)
        if plain and work.replay and work.replay(work.model, work.loss, x, y):
            return
        # Backward runs in this thread: a client that waits there for a sum must not keep the
        # autograd engine's own threads from serving the client that it waits for.
        with context, torch.autograd.set_multithreading_enabled(False):
            loss = work.loss(work.model(x), y)
            (loss + beside(x) if beside else loss).backward()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what SGD will step along, of the parameters that travel; to be changed in place.

        Without those that the loss does not reach: SGD leaves them alone, weight decay included.
        """
        for name in self.origin:
            gradient = self.parameters[name].grad
            if gradient is not None:
                yield name, gradient

    def remembered(self) -> dict[str, Tensor]:
        """Return what the solver's last round left of the parameters that travel, or zeros."""
        kept = self.work.client_state.solver
        return {name: kept.get(name, zero) for name, zero in self.zeros().items()}

    def zeros(self) -> dict[str, Tensor]:
        """Return zeros in the form of the parameters that travel."""
        return zeros_like(self.origin)

    def moved(self) -> dict[str, Tensor]:
        """Return w_i - w̄."""
        return {name: self.parameters[name].detach() - w for name, w in self.origin.items()}


@dataclass(frozen=True, slots=True)
class End:
    """Result of a solver's round at a client."""

    parameters: NamedTensors
    """Tensors that are averaged as this client's w_i; the names of `Start.origin`."""
    control: NamedTensors
    client_state: NamedTensors
    personal: NamedTensors = field(default_factory=dict)
    """All tensors of a model of the client's own beside w_i, by which it is scored."""


class LocalSession(Protocol):
    """One client's round."""

    def gradients(self, around: StepContext) -> None:
        """Leave one local step's gradients in the parameters."""

    def end(self) -> End:
        """Return what the client hands in, after the last step."""


class LocalSolver(Protocol):
    """Solvers, alone or with another one around them."""

    def control(self, model: nn.Module) -> NamedTensors:
        """See `Solver`."""

    def begin(self, start: Start) -> LocalSession:
        """See `Solver`."""


class SameSteps:
    """Base of solvers around another whose local steps stay as that one takes them."""

    solver: LocalSolver


def innermost(solver: LocalSolver) -> LocalSolver:
    """Return the solver that takes the local steps, and whose traits count."""
    while isinstance(solver, SameSteps):
        solver = solver.solver
    return solver


class Solver(SolverChoice):
    """A solver with its settings: the fields of its class are keys of the table `[solver]`.

    Examples:
        >>> from securefl.algorithms.solvers.solver import End, trained
        >>> class ClientsRound:
        ...     def __init__(self, start):
        ...         self.start = start
        ...     def gradients(self, around):  # of one local step; SGD then takes it
        ...         self.start.backward(around)
        ...         for _, gradient in self.start.gradients():
        ...             gradient.clamp_(-0.1, 0.1)
        ...     def end(self):
        ...         return End(trained(self.start), {}, {})
        >>> class Clamped(securefl.Solver):
        ...     def begin(self, start):
        ...         return ClientsRound(start)
        >>> result = securefl.run(config, securefl.Task(model, clients, test, choices=[Clamped()]))
    """

    def control(self, model: nn.Module) -> NamedTensors:
        """Return what clients exchange beside the model, as it is before the first round.

        Raises:
            DataError: the solver cannot train this model.
        """
        del model
        return {}

    @abstractmethod
    def begin(self, start: Start) -> LocalSession:
        """Begin one client's round; what its last one left is `start.work.client_state.solver`."""

    def followed(self, client_state: NamedTensors, moved: NamedTensors) -> NamedTensors:
        """Return what a client remembers whose model FNR-FL refined after its last local step.

        Asked of solvers of the trait `follows_refinement` alone.

        Args:
            client_state: `End.client_state` of the round.
            moved: the refined model less that of the last local step, by parameter.

        Raises:
            ConfigError: the class has the trait, and does not define this.
        """
        del client_state, moved
        raise ConfigError(
            f'solver.name = "{self.name}" with FNR-FL: its class sets follows_refinement and '
            "lacks followed; define it, or leave follows_refinement out"
        )


def trained(start: Start) -> dict[str, Tensor]:
    """Return w_i, as most solvers send it; references, not copies."""
    return {name: start.parameters[name].detach() for name in start.origin}


def zeros_like(named: NamedTensors) -> dict[str, Tensor]:
    """Return zeros in the form of these tensors."""
    import torch

    return {name: torch.zeros_like(value) for name, value in named.items()}


def zeros_of(model: nn.Module) -> dict[str, Tensor]:
    """Return zeros in the form of all that a model trains."""
    from securefl.algorithms.algorithm import trained_parameters

    return zeros_like(trained_parameters(model))
