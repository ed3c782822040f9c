"""Algorithms: three steps over frozen values, and the list of messages that a round sends.

`update` sees totals alone, so no algorithm can look at one client.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from securefl.data.samples import Samples
from securefl.errors import DataError
from securefl.exchange.sums import Exchange
from securefl.norms.find import statistics
from securefl.types import (
    ClientState,
    Contribution,
    Kind,
    MessageSpec,
    NamedTensors,
    Plan,
    State,
    Total,
)

HEADROOM = 64
RANGE_BITS = 13
"""Range of a sealed value without a gain: ±8192."""
LEAST_RANGE_BITS = {Kind.PARAMETERS: 5}
MOST_RANGE_BITS = 60
Loss = Callable[[Tensor, Tensor], Tensor]
Replay = Callable[[nn.Module, Loss, Tensor, Tensor], bool]
"""Function that leaves the gradients of a model's loss on a batch (x, y) in its parameters; False
where it did nothing, and the pass is to be taken."""
Target = tuple[Kind, str, Tensor]
"""A tensor of a model, and by what a state knows it."""


@dataclass(frozen=True, slots=True)
class Sgd:
    """The settings of SGD in one round."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """A client's means for one round; its model already holds the global tensors."""

    model: nn.Module
    data: Samples
    """All of this client's samples."""
    batches: Iterator[tuple[Tensor, Tensor]]
    """(x, y), without end."""
    local_steps: int
    loss: Loss
    sgd: Sgd
    client_state: ClientState
    """State that this client's last contribution asked to keep."""
    rng: torch.Generator
    """This client's for the round, on the CPU; batches are drawn from it."""
    replay: Replay | None = None
    """Stands in for passes of the model, where it can."""


@runtime_checkable
class Algorithm(Protocol):
    """Rounds of federated training.

    A user's own algorithm is any object with these four methods.
    """

    def init(self, model: nn.Module) -> State:
        """Return the state before the first round."""

    def plan(self, state: State, model: nn.Module) -> Plan:
        """Return the messages of the round after `state`; DataError where `model` cannot."""

    def client(self, state: State, work: Work, exchange: Exchange) -> Contribution:
        """Train one client for a round."""

    def update(self, state: State, totals: Mapping[Kind, Total]) -> State:
        """Return the next state, from the sums of the contributions.

        A total's weight comes as a share of all clients' weight.
        """


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that a gradient trains, by name.

    Raises:
        DataError: the model has nothing to train.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise DataError("the model has no parameter that requires a gradient")
    return parameters


def averaged_tensors(model: nn.Module) -> dict[Kind, dict[str, Tensor]]:
    """Return the tensors of a model that FedAvg averages, {w, S}; references, not copies.

    Integer buffers (`num_batches_tracked`), non-persistent ones and frozen parameters stay out.

    Raises:
        DataError: the model has nothing to train.
    """
    parameters = {name: p.data for name, p in trained_parameters(model).items()}
    persistent = model.state_dict(keep_vars=True).keys()
    buffers = {
        name: buffer
        for name, buffer in model.named_buffers()
        if name in persistent and buffer.is_floating_point()
    }
    # BN statistics first, whatever else a model carries behind them.
    tensors = {Kind.PARAMETERS: parameters, Kind.STATISTICS: statistics(model) | buffers}
    return {kind: named for kind, named in tensors.items() if named}


def snapshot(tensors: Mapping[Kind, NamedTensors]) -> dict[Kind, NamedTensors]:
    """Return copies that no later training step changes."""
    return {kind: copied(named) for kind, named in tensors.items()}


def copied(named: NamedTensors) -> dict[str, Tensor]:
    """Return copies without a graph."""
    return {name: value.detach().clone() for name, value in named.items()}


def targets_of(model: nn.Module) -> list[Target]:
    """Return the tensors that a state's model is written into."""
    found = averaged_tensors(model).items()
    return [(kind, name, value) for kind, named in found for name, value in named.items()]


def load_into(targets: Iterable[Target], state: State) -> None:
    """Write what a state has for them."""
    with torch.no_grad():
        for kind, name, target in targets:
            target.copy_(state.tensors[kind][name])


def load_tensors(model: nn.Module, state: State) -> None:
    """Write a state's model into one of its architecture."""
    load_into(targets_of(model), state)


def lay_over(model: nn.Module, own: NamedTensors) -> None:
    """Write a client's own tensors over the global ones."""
    if not own:
        return
    with torch.no_grad():
        for named in averaged_tensors(model).values():
            for name in named.keys() & own.keys():
                named[name].copy_(own[name])


def update_messages(tensors: Mapping[Kind, NamedTensors]) -> tuple[MessageSpec, ...]:
    """Return the messages of a contribution: one for each kind of tensor that there is."""
    return tuple(
        MessageSpec(
            f"update/{kind}",
            kind,
            sum(value.numel() for value in tensors[kind].values()),
            like=tensors[kind],
        )
        for kind in Kind  # always in this order, also in a state that was read from a file
        if tensors.get(kind)
    )


def with_gains(
    specs: Iterable[MessageSpec], tensors: Mapping[Kind, NamedTensors], sealed: frozenset[Kind]
) -> tuple[MessageSpec, ...]:
    """Return the messages, those that are sealed with gains by each tensor's size in the state.

    Sealed, a value has a range and an absolute error. So what is small is multiplied, and what is
    large divided, by a power of two that all parties know. A tensor may become `HEADROOM` times as
    large in a round; parameters may always reach ±32, and anything else ±8192, as far as statistics
    jump from the zeros and ones that they begin as. A few values may be 16 times beyond
    (`exchange.value_range`).
    """
    return tuple(
        replace(spec, gain_bits=_gain_bits(spec.kind, tensors[spec.kind]))
        if spec.kind in sealed
        else spec
        for spec in specs
    )


def _gain_bits(kind: Kind, named: NamedTensors) -> tuple[tuple[int, int], ...]:
    largest = torch.stack([value.detach().abs().max().double() for value in named.values()])
    largest = torch.where(largest == 0, largest.max(), largest)
    at_least = LEAST_RANGE_BITS.get(kind, RANGE_BITS)
    range_bits = (HEADROOM * largest).log2().ceil().clamp(at_least, MOST_RANGE_BITS).tolist()
    sizes = (value.numel() for value in named.values())
    return tuple((n, RANGE_BITS - int(bits)) for n, bits in zip(sizes, range_bits, strict=True))
