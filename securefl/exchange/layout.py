"""Named tensors as one vector, and back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from securefl.errors import ValueRefused
from securefl.exchange.sums import Values
from securefl.exchange.value_range import FAR, are_in_range
from securefl.types import MessageSpec, NamedTensors


def hollow(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return an uninitialised tensor that takes no memory: one element in all places."""
    return torch.empty((), dtype=dtype, device=device).expand(tuple(shape))


@final
class Row(Mapping[str, Tensor]):
    """Tensors that lie in one vector, one after the other."""

    def __init__(self, vector: Tensor, like: NamedTensors) -> None:
        """Take a `vector` without graph; of `like`, names, shapes and types count."""
        self.vector = vector
        self.like = like
        self._named: dict[str, Tensor] | None = None

    def __getitem__(self, name: str) -> Tensor:
        if self._named is None:  # all at once, since most often all are read
            lying = self.vector.split([tensor.numel() for tensor in self.like.values()])
            parts = {n: p.view_as(self.like[n]) for n, p in zip(self.like, lying, strict=True)}
            if any(tensor.dtype is not self.vector.dtype for tensor in self.like.values()):
                parts = {n: part.to(self.like[n].dtype) for n, part in parts.items()}
            self._named = parts
        return self._named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.like)

    def __len__(self) -> int:
        return len(self.like)

    def is_like(self, other: "Row") -> bool:
        """Return whether each of the one's vectors could be the other's."""
        if (self.vector.dtype, self.vector.device) != (other.vector.dtype, other.vector.device):
            return False
        return self.like is other.like or _shapes(self.like) == _shapes(other.like)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the tensors that it is like, which may be larger."""
        return _row, (self.vector, _shapes(self.like))


_Shapes = list[tuple[str, tuple[int, ...], torch.dtype]]


def _shapes(like: NamedTensors) -> _Shapes:
    return [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in like.items()]


def _row(vector: Tensor, shapes: _Shapes) -> Row:
    return Row(vector, {name: hollow(of, dtype, vector.device) for name, of, dtype in shapes})


@dataclass(frozen=True, slots=True)
class Rows:
    """Tensors of several clients, of each in a row."""

    matrix_KN: Tensor
    """Values of all clients, without a graph."""
    like: NamedTensors
    """Tensors of one client: names, shapes and types count."""

    def __iter__(self) -> Iterator[Row]:
        return (Row(row, self.like) for row in self.matrix_KN)

    @property
    def n_values(self) -> int:
        """Number of values of each client."""
        return self.matrix_KN.shape[1]

    def of(self, index: Sequence[int]) -> "Rows":
        """Return the rows of these clients alone."""
        if len(index) == len(self.matrix_KN):
            return self
        chosen = torch.tensor(index, dtype=torch.long, device=self.matrix_KN.device)
        return Rows(self.matrix_KN[chosen], self.like)

    def within(self, max_value: float) -> list[bool]:
        """Return for each client whether all values are finite and within ±`max_value`."""
        fine: list[bool] = (self.matrix_KN.double().abs() <= max_value).all(dim=1).tolist()
        return fine


def pack(
    message: str, tensors: NamedTensors, max_value: float, gains: Values | float = 1.0
) -> NDArray[np.floating]:
    """Pack all values into one vector, times their gains: each finite and within ±`max_value`.

    In the tensors' own precision, at least single, or in double where gains are given; of a `Row`
    no copy is made without. `gains` has shape (n_values,). They narrow a tensor's range to what it
    may become by the state before, so with them a few values may be beyond (`are_in_range`).

    Raises:
        ValueRefused: naming the first tensor, index and value that is not.
    """
    if isinstance(tensors, Row):
        whole = tensors.vector
    else:
        whole = torch.cat([tensor.detach().reshape(-1) for tensor in tensors.values()])
    if not whole.is_floating_point():
        whole = whole.double()
    elif whole.dtype is not torch.float64:
        whole = whole.float()  # numpy has no bfloat16
    values: NDArray[np.floating] = whole.cpu().numpy()
    if isinstance(gains, np.ndarray):
        values = values * gains
    # Written so that NaN, which compares false with everything, is refused.
    if not (-max_value <= float(values.min()) and float(values.max()) <= max_value):
        limits = np.broadcast_to(max_value / gains, values.shape)
        if not isinstance(gains, np.ndarray):
            raise _first_refused(message, tensors, limits)
        if not are_in_range(values, max_value):
            far = not np.abs(values).max() <= FAR * max_value
            raise _first_refused(message, tensors, FAR * limits if far else limits)
    return values


def _first_refused(message: str, tensors: NamedTensors, limits: Values) -> ValueRefused:
    for name, tensor in tensors.items():
        limit, limits = limits[: tensor.numel()], limits[tensor.numel() :]
        values = tensor.detach().double().cpu().numpy()
        refused = ~(np.abs(values) <= limit.reshape(values.shape))
        if refused.any():
            index = np.argwhere(refused)[0].tolist()
            value, within = values[tuple(index)], limit.reshape(values.shape)[tuple(index)]
            rule = f"within ±{within:g}" if np.isfinite(value) else "a finite number"
            way_out = "; normalise the inputs, so that it is" if np.isfinite(value) else ""
            return ValueRefused(f"{message}: {name}{index} = {value:.10g} must be {rule}{way_out}")
    raise AssertionError("called for tensors that are all in range")


def gains_of(spec: MessageSpec) -> Values | float:
    """Return the gains of a sealed message's values, shape (n_values,); 1 where there are none."""
    if not spec.gain_bits:
        return 1.0
    sizes, bits = np.array(spec.gain_bits).T
    return np.asarray(np.exp2(np.repeat(bits, sizes)))


def unpack(values: Values, like: NamedTensors) -> dict[str, Tensor]:
    """Return the vector as tensors of the names, shapes, types and devices of `like`."""
    tensors, start = {}, 0
    for name, tensor in like.items():
        part = torch.from_numpy(values[start : start + tensor.numel()]).reshape(tensor.shape)
        tensors[name] = part.to(tensor.device, tensor.dtype, copy=True)
        start += tensor.numel()
    return tensors
