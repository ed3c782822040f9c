"""What an algorithm is: three steps over frozen values, and the list of sums that it asks for.

`update` sees totals alone, so no algorithm can look at one client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from securefl.errors import DataError
from securefl.exchange.base import Exchange
from securefl.norms.find import statistics
from securefl.types import Contribution, Kind, MessageSpec, NamedTensors, State, Total

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Solver:
    """SGD as a client runs it in one round."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    keep_momentum: bool = False
    """Whether the momentum buffers outlive the round (FixBN's `local` momentum)."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a client has for one round; its model already holds the global tensors."""

    model: nn.Module
    batches: Iterable[tuple[Tensor, Tensor]]
    """One (x, y) per local step."""
    loss: Loss
    solver: Solver
    memory: NamedTensors
    """What this client's last contribution asked to keep."""


@runtime_checkable
class Algorithm(Protocol):
    """Rounds of federated training.

    A user's own algorithm is any object with these four methods.
    """

    def messages(self, model: nn.Module) -> Sequence[MessageSpec]:
        """Sums that a client asks for within its round, besides its contribution."""

    def init(self, model: nn.Module) -> State:
        """The state before the first round."""

    def client(self, state: State, work: Work, exchange: Exchange) -> Contribution:
        """One client's round."""

    def update(self, state: State, totals: Mapping[Kind, Total]) -> State:
        """The next state, from the sums of the contributions."""


def averaged_tensors(model: nn.Module) -> dict[Kind, dict[str, Tensor]]:
    """The tensors of a model that FedAvg averages, {w, S}; references, not copies.

    Integer buffers (`num_batches_tracked`), non-persistent ones and frozen parameters stay out.

    Raises:
        DataError: the model has nothing to train.
    """
    running = statistics(model)
    parameters = {name: p.data for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise DataError("the model has no parameter that requires a gradient")
    persistent = model.state_dict(keep_vars=True).keys()
    buffers = {
        name: buffer
        for name, buffer in model.named_buffers()
        if name not in running and name in persistent and buffer.is_floating_point()
    }
    tensors = {Kind.PARAMETERS: parameters | buffers, Kind.STATISTICS: running}
    return {kind: named for kind, named in tensors.items() if named}


def snapshot(tensors: Mapping[Kind, NamedTensors]) -> dict[Kind, NamedTensors]:
    """Copies that no later training step changes."""
    return {
        kind: {name: value.detach().clone() for name, value in named.items()}
        for kind, named in tensors.items()
    }


def load_tensors(model: nn.Module, tensors: Mapping[Kind, NamedTensors]) -> None:
    """Write a state's tensors into a model of the same architecture."""
    with torch.no_grad():
        for kind, named in averaged_tensors(model).items():
            for name, target in named.items():
                target.copy_(tensors[kind][name])


def update_messages(state: State) -> list[MessageSpec]:
    """The messages of a contribution: one for each kind of tensor."""
    return [
        MessageSpec(f"update/{kind}", kind, sum(value.numel() for value in named.values()))
        for kind, named in state.tensors.items()
    ]
