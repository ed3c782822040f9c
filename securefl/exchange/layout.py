"""Named tensors as one vector, and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from securefl.errors import ValueRefused
from securefl.exchange.base import Values
from securefl.types import NamedTensors


def pack(message: str, tensors: NamedTensors, max_value: float) -> NDArray[np.floating]:
    """All values in one vector, each finite and within ±`max_value`.

    In the tensors' own precision, at least single; no copy where they lie in one piece.

    Raises:
        ValueRefused: naming the first tensor, index and value that is not.
    """
    parts = [tensor.detach() for tensor in tensors.values()]
    whole = _one_piece(parts)
    if whole is None:
        whole = torch.cat([part.reshape(-1) for part in parts])
    if whole.dtype is not torch.float64:
        whole = whole.float()  # numpy has no bfloat16
    values: NDArray[np.floating] = whole.cpu().numpy()
    # Written so that NaN, which compares false with everything, is refused.
    if not (-max_value <= float(values.min()) and float(values.max()) <= max_value):
        raise _first_refused(message, tensors, max_value)
    return values


def _one_piece(parts: Sequence[Tensor]) -> Tensor | None:
    """The vector that these tensors are parts of, one after the other."""
    first, end = parts[0], parts[0].data_ptr()
    for part in parts:
        if part.data_ptr() != end or part.dtype != first.dtype or not part.is_contiguous():
            return None
        end += part.numel() * part.element_size()
    start, n_bytes = first.storage_offset(), first.untyped_storage().nbytes()
    n_values = (end - first.data_ptr()) // first.element_size()
    if (start + n_values) * first.element_size() > n_bytes:
        return None  # neighbours by chance
    return first.as_strided((n_values,), (1,))


def _first_refused(message: str, tensors: NamedTensors, max_value: float) -> ValueRefused:
    for name, tensor in tensors.items():
        refused = ~(tensor.detach().double().abs() <= max_value)
        if refused.any():
            index = refused.nonzero()[0].tolist()
            value = tensor[tuple(index)].item()
            rule = f"within ±{max_value:g}" if np.isfinite(value) else "a finite number"
            way_out = "; normalise the inputs, so that it is" if np.isfinite(value) else ""
            what = f"{message}: {name}{index}"
            return ValueRefused(
                f"{what} = {value:.10g} must be {rule}{way_out}", f"{what} must be {rule}{way_out}"
            )
    raise AssertionError("called for tensors that are all in range")


def unpack(values: Values, like: NamedTensors) -> dict[str, Tensor]:
    """The vector as tensors of the names, shapes, types and devices of `like`."""
    tensors, start = {}, 0
    for name, tensor in like.items():
        part = torch.from_numpy(values[start : start + tensor.numel()].copy())
        tensors[name] = part.reshape(tensor.shape).to(tensor.device, tensor.dtype)
        start += tensor.numel()
    return tensors
