"""Named tensors as one vector of doubles, and back."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from securefl.errors import ValueRefused
from securefl.exchange.base import Values
from securefl.types import NamedTensors


def pack(message: str, tensors: NamedTensors, max_value: float) -> Values:
    """All values in one vector, each finite and within ±`max_value`.

    Raises:
        ValueRefused: naming the first tensor, index and value that is not.
    """
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors.values()])
    values: Values = flat.cpu().numpy().astype(np.float64)
    # Written so that NaN, which compares false with everything, is refused.
    if not (-max_value <= values.min() and values.max() <= max_value):
        raise _first_refused(message, tensors, max_value)
    return values


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
