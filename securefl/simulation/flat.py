"""A model's tensors in one vector, so that a round's state is loaded by one copy."""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor, nn

from securefl.algorithms.base import averaged_tensors, load_into, targets_of
from securefl.simulation.processes.ipc import ALIGNED
from securefl.types import State


@final
class FlatTensors:
    """What a state has of a model, moved into one vector for each type and device.

    The model's parameters and buffers are the same objects as before, with the same strides, and
    each begins where torch could have put it by itself. What shares memory with another tensor, or
    has gaps, stays where it is and is loaded by itself.
    """

    def __init__(self, model: nn.Module) -> None:
        """`model` is nobody else's."""
        self._vectors = [_laid_end_to_end(of) for of in _alike(model)]
        self._targets = targets_of(model)
        inside = {vector.untyped_storage() for vector in self._vectors}
        self._apart = [one for one in self._targets if one[-1].untyped_storage() not in inside]
        self._state: weakref.ref[State] | None = None
        """Of the last load."""
        self._origins: list[Tensor] = []
        """The vectors as that state has them, once it has been loaded twice."""

    def load(self, state: State) -> None:
        """The state's values, which stay as they are as long as the state is the same object."""
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
    """The parameters and buffers that can be moved, by type and device."""
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    looking = [v for m in model.modules() for v in vars(m).values() if isinstance(v, Tensor)]
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
    """The vector that these, of one type and device, lie in from now on."""
    step = ALIGNED // tensors[0].element_size()
    starts = [0]
    for tensor in tensors:
        starts.append(starts[-1] + -(-tensor.numel() // step) * step)
    vector = tensors[0].new_zeros(starts[-1], requires_grad=False)
    for tensor, start in zip(tensors, starts, strict=False):
        place = vector.as_strided(tensor.shape, tensor.stride(), start)
        tensor.data = place.copy_(tensor.detach())
    return vector
