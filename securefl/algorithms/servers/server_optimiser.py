"""A server optimiser takes the global model's step from the average of the clients' models.

w̄ is the model that the round began with, Δ = Σ p_i w_i - w̄ the clients' mean move, or what takes
the place of a negative gradient (Reddi et al., "Adaptive Federated Optimization", ICLR 2021).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from securefl.settings.axes import ServerChoice
from securefl.types import NamedTensors

if TYPE_CHECKING:
    from torch import Tensor


Stepped: TypeAlias = "tuple[NamedTensors, NamedTensors]"
"""The next model, and what the server keeps now."""


@dataclass(frozen=True, slots=True)
class Averaged:
    """Result of a round; the names are those that travelled in it."""

    last: NamedTensors
    """w̄"""
    mean: NamedTensors
    """Σ p_i w_i"""
    control: NamedTensors
    """The total of what the solver exchanges beside the model."""
    share: float
    """P, the weight of the clients whose models these are, as a share of all clients'."""

    def moves(self) -> dict[str, Tensor]:
        """Return Δ, by name."""
        return {name: w - self.last[name] for name, w in self.mean.items()}


class ServerSteps(Protocol):
    """Server optimisers, those of a solver's own among them; they see what the server may see."""

    def init(self, parameters: NamedTensors) -> NamedTensors:
        """See `ServerOptimiser`."""

    def step(self, averaged: Averaged, kept: NamedTensors) -> Stepped:
        """See `ServerOptimiser`."""


class ServerOptimiser(ServerChoice):
    """A server optimiser with its settings: its fields are keys of the table `[server]`.

    Examples:
        >>> class HalfStep(securefl.ServerOptimiser):
        ...     lr: float = 0.5  # `server.lr` in settings
        ...     def step(self, averaged, kept):
        ...         last, moves = averaged.last, averaged.moves()
        ...         return {name: last[name] + self.lr * moves[name] for name in moves}, kept
        >>> task = securefl.Task(model, clients, test, choices=[HalfStep(lr=0.7)])
        >>> securefl.run(config, task).config.server.lr
        0.7
    """

    def init(self, parameters: NamedTensors) -> NamedTensors:
        """Return what the server keeps, as it is before the first round."""
        del parameters
        return {}

    @abstractmethod
    def step(self, averaged: Averaged, kept: NamedTensors) -> Stepped:
        """Return the next model, and what is kept for the step after."""
