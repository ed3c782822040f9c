"""Samples of all clients in one tensor, so that one operation takes the batches of many."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor, nn

from securefl.data.samples import Samples, TensorSamples

MOST_CPU_BYTES = 2**28
"""Most bytes of a second copy in main memory; a GPU may have a quarter of what is free."""


@dataclass(frozen=True, slots=True, eq=False)
class Resident:
    """Samples of all clients, one client's after the other's."""

    x: Tensor
    y: Tensor
    start: Mapping[str, int]
    """Place where each client's samples begin."""
    _room: dict[int, Tensor] = field(default_factory=dict)
    """Room for x, by the number of samples: fresh memory would cost as much as the samples."""

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples of these indices, of shape (n,), on the samples' device.

        The next call for as many writes over this one's x.
        """
        n = len(index)
        if n not in self._room:
            self._room.clear()
            self._room[n] = self.x.new_empty((n, *self.x.shape[1:]))
        # Written into the room of the call before, whose batch is done with by then.
        x = torch.index_select(self.x, 0, index, out=self._room[n])
        return x, self.y.index_select(0, index)


def resident(data: Mapping[str, Samples], device: torch.device) -> Resident | None:
    """Return the samples on this device; None where they are not tensors alike, or too many."""
    tensors = [(d.x, d.y) for d in data.values() if isinstance(d, TensorSamples)]
    kinds = {(x.dtype, x.shape[1:], y.dtype, y.shape[1:]) for x, y in tensors}
    if len(tensors) < len(data) or len(kinds) > 1:
        return None
    if _n_bytes(tensors) > _most_bytes(device):
        return None
    ends = accumulate((len(y) for _, y in tensors), initial=0)
    return Resident(
        torch.cat([x for x, _ in tensors]).to(device),
        torch.cat([y for _, y in tensors]).to(device),
        dict(zip(data, ends, strict=False)),
    )


def near(data: Mapping[str, Samples], model: nn.Module) -> dict[str, Samples]:
    """Return the samples, on the model's GPU where it has one, they are tensors and few enough."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if device.type == "cpu":
        return dict(data)
    tensors = [(d.x, d.y) for d in data.values() if isinstance(d, TensorSamples)]
    if _n_bytes(tensors) > _most_bytes(device):
        return dict(data)

    def moved(of: Samples) -> Samples:
        if not isinstance(of, TensorSamples):
            return of
        return TensorSamples(of.x.to(device), of.y.to(device))

    return {name: moved(of) for name, of in data.items()}


def _n_bytes(tensors: Iterable[tuple[Tensor, Tensor]]) -> int:
    return sum(x.numel() * x.element_size() for x, _ in tensors)


def _most_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 4
    return MOST_CPU_BYTES
