"""What the clients of a run train with, and where each one's round begins."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from securefl.algorithms.base import Algorithm, Target, Work, load_into, targets_of
from securefl.data.samples import Samples, minibatches
from securefl.federation.training import Training, round_generator
from securefl.simulation.flat import FlatTensors
from securefl.simulation.stacked.model import parts
from securefl.types import Memory, State


@dataclass(frozen=True, slots=True, eq=False)
class Clients:
    """All clients of a run. Each has a model only while it trains."""

    algorithm: Algorithm
    model: nn.Module
    """As it was before the first round; it does not change."""
    data: Mapping[str, Samples]
    training: Training
    index: Mapping[str, int]
    """A client's number among all of the run, in which its randomness has its place."""

    @property
    def device(self) -> torch.device:
        """The model's."""
        return next(self.model.parameters()).device

    def casting(self) -> AbstractContextManager[object]:
        """The context of a client's round, in which layers compute in the precision asked for."""
        dtype = self.training.autocast
        if dtype is None:
            return nullcontext()
        # Weights change between the forward passes within, so that no cast of one is kept.
        return torch.autocast(self.device.type, dtype, cache_enabled=False)

    def work(self, name: str, state: State, place: Place, memory: Memory) -> Work:
        """What this client's round after `state` begins with, on the model of `place`."""
        place.load(state)
        training, data = self.training, self.data[name]
        rng = round_generator(training.seed, state.round, self.index[name])
        return Work(
            place.model,
            data,
            minibatches(data, training.batch_size, rng, self.device),
            training.steps(data),
            training.loss,
            training.sgd(state.round),
            memory,
            rng,
        )


def _lay_out(model: nn.Module) -> None:
    """Convolutions' weights in the layout that is fastest, here and on a GPU; values stay."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d) and layer.weight.dtype is torch.float32:
            layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last)


@dataclass(slots=True, eq=False)
class Place:
    """A model that clients train on, one after the other."""

    model: nn.Module
    """A copy of the one given; changed all the time."""
    n_clients: int = 1
    """How many train on it at a time, side by side."""
    _flat: FlatTensors | None = field(init=False, default=None)
    """Of one client at a time."""
    _travelling: list[Target] = field(init=False)
    _constants: list[tuple[Tensor, Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        self.model = copy.deepcopy(self.model)
        if self.n_clients == 1:
            _lay_out(self.model)
            self._flat = FlatTensors(self.model)
        found, k = targets_of(self.model), self.n_clients
        self._travelling = [(kind, name, parts(value, k)) for kind, name, value in found]
        travelling = {name for _, name, _ in found}
        self._constants = [
            (buffer, buffer.clone())
            for name, buffer in self.model.named_buffers()
            if name not in travelling
        ]

    def load(self, state: State) -> None:
        """The state's tensors; buffers that do not travel (counters) are as they were at first.

        What one client or one round has left in those is not handed to the next.
        """
        if self._flat:
            self._flat.load(state)
        else:
            load_into(self._travelling, state)
        with torch.no_grad():
            for buffer, first in self._constants:
                buffer.copy_(first)
