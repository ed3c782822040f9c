"""Workspace: a model that simulated clients train on, one after the other or side by side."""

import copy
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

from securefl.algorithms.algorithm import (
    Loss,
    Replay,
    Target,
    averaged_tensors,
    load_into,
    targets_of,
)
from securefl.simulation.graphed import GraphedPasses
from securefl.simulation.stacked.model import parts
from securefl.types import State

ALIGNED = 64
"""Alignment in bytes, as torch aligns its own tensors; the last bit of a sum may depend on it."""
TENSOR_CORE_CHANNELS = 8
"""Number of channels of which a GPU's tensor cores take multiples."""
CPU_CHANNELS = 8
"""Channels that a CPU's kernels of channels_last take at a time."""


@dataclass(slots=True, eq=False)
class Workspace:
    """Model that clients train on, one after the other."""

    model: nn.Module
    """Copy of the model given, which training changes."""
    n_clients: int = 1
    """Number of clients that train on it at a time, side by side."""
    _flat: "FlatTensors | None" = field(init=False, default=None)
    """The model in one vector, for one client at a time."""
    _travelling: list[Target] = field(init=False)
    _constants: list[tuple[Tensor, Tensor]] = field(init=False)
    _passes: GraphedPasses | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        # The run's model is shared by all workspaces and stays as it was before the first round.
        self.model = copy.deepcopy(self.model)
        if self.n_clients == 1 or _fill_tensor_cores(self.model, self.n_clients):
            _lay_out(self.model)
        if self.n_clients == 1:
            self._flat = FlatTensors(self.model)
        found, k = targets_of(self.model), self.n_clients
        self._travelling = [(kind, name, parts(value, k)) for kind, name, value in found]
        travelling = {name for _, name, _ in found}
        self._constants = [
            (buffer, buffer.clone())
            for name, buffer in self.model.named_buffers()
            if name not in travelling
        ]

    def replay(self, loss: Loss) -> Replay:
        """Return the replay of the model's passes on a GPU, captured with the first loss given."""
        if self._passes is None:
            self._passes = GraphedPasses(self.model, loss)
        return self._passes.replay

    def load(self, state: State) -> None:
        """Load the state's tensors, and reset buffers that do not travel (counters).

        Nothing that one client or round has left in those reaches the next.
        """
        if self._flat:
            self._flat.load(state)
        else:
            load_into(self._travelling, state)
        with torch.no_grad():
            for buffer, first in self._constants:
                buffer.copy_(first)


def _lay_out(model: nn.Module) -> None:
    """Lay out convolutions' weights for the fastest kernels, on CPU and GPU; values stay."""
    convolutions = _convolutions(model)
    if any(map(_spoils_memory, convolutions)):
        return
    for layer in convolutions:
        if layer.weight.dtype is torch.float32:
            layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last)


def _fill_tensor_cores(model: nn.Module, n_clients: int) -> bool:
    """Return whether each client's channels are as many as a GPU's tensor cores take at a time.

    For those cuDNN has kernels of channels_last, and transposes whatever lies otherwise, which can
    take longer than all else (docs/results/gpu.md: rounds of few clients).
    """
    of_each = {layer.out_channels // n_clients for layer in _convolutions(model)}
    on_gpu = next(model.parameters()).device.type == "cuda"
    return on_gpu and not any(channels % TENSOR_CORE_CHANNELS for channels in of_each)


def _spoils_memory(layer: nn.Conv2d) -> bool:
    """Return whether torch's kernel of channels_last writes beyond its memory in the backward pass.

    So does that of a CPU with AVX2 (torch 2.13) for strided 1 x 1 convolutions of fewer than eight
    channels: the process is aborted, or hangs. Other numbers that are no multiple of eight are
    taken for such, too.
    """
    few = layer.in_channels // layer.groups % CPU_CHANNELS != 0
    on_cpu = layer.weight.device.type == "cpu"
    return on_cpu and few and max(layer.kernel_size) == 1 and max(layer.stride) > 1


def _convolutions(model: nn.Module) -> list[nn.Conv2d]:
    return [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]


@final
class FlatTensors:
    """Tensors of a model that travel, moved into one vector for each type and device.

    The model's parameters and buffers are the same objects as before, with the same strides, and
    each is aligned as torch aligns it. A tensor that shares memory with another, or has gaps, stays
    in its own memory and is loaded by itself.
    """

    def __init__(self, model: nn.Module) -> None:
        """Move the tensors of `model`, which nothing else may hold."""
        self._vectors = [_laid_end_to_end(of) for of in _alike(model)]
        self._targets = targets_of(model)
        inside = {vector.untyped_storage() for vector in self._vectors}
        self._apart = [one for one in self._targets if one[-1].untyped_storage() not in inside]
        self._state: weakref.ref[State] | None = None
        """State of the last load."""
        self._origins: list[Tensor] = []
        """Vectors of that state, once it has been loaded twice."""

    def load(self, state: State) -> None:
        """Load the state's values; the same object must always hold the same values."""
        again = self._state is not None and self._state() is state
        with torch.no_grad():
            if again and self._origins:
                for vector, origin in zip(self._vectors, self._origins, strict=True):
                    vector.copy_(origin)
                load_into(self._apart, state)
                return
            load_into(self._targets, state)
            # A client that has the model to itself loads each state once, and needs no origin.
            self._origins = [vector.clone() for vector in self._vectors] if again else []
        self._state = weakref.ref(state)


def _alike(model: nn.Module) -> Iterator[list[Tensor]]:
    """Yield the parameters and buffers that can be moved, by type and device."""
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    looking = [v for m in model.modules() for v in vars(m).values() if isinstance(v, Tensor)]
    # A storage with two users, such as tied weights, would come apart if one of them moved.
    users = Counter(tensor.untyped_storage() for tensor in (*own.values(), *looking))
    alike = defaultdict[tuple[torch.dtype, torch.device], list[Tensor]](list)
    for named in averaged_tensors(model).values():
        for name in named:
            tensor = own[name]
            is_dense = torch.empty_like(tensor).stride() == tensor.stride()
            if is_dense and users[tensor.untyped_storage()] == 1:
                alike[tensor.dtype, tensor.device].append(tensor)
    yield from alike.values()


def _laid_end_to_end(tensors: list[Tensor]) -> Tensor:
    """Move tensors of one type and device into one vector, and return it."""
    # In elements; -(-n // step) divides and rounds up, so each tensor begins at a multiple.
    step = ALIGNED // tensors[0].element_size()
    starts = [0]
    for tensor in tensors:
        starts.append(starts[-1] + -(-tensor.numel() // step) * step)
    vector = tensors[0].new_zeros(starts[-1], requires_grad=False)
    for tensor, start in zip(tensors, starts, strict=False):
        # The parameter stays the same object: its storage alone is swapped, for a view of the
        # vector.
        place = vector.as_strided(tensor.shape, tensor.stride(), start)
        tensor.data = place.copy_(tensor.detach())
    return vector
