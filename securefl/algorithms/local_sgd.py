"""SGD whose step is one kernel."""

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from securefl.algorithms.algorithm import Sgd

_DEVICES, _TYPES = {"cpu", "cuda"}, {torch.float32, torch.float64}
"""Devices and types that have the kernel. Of torch 2.13 it leaves most of a CPU's shorter floats as
they are."""


def local_sgd(parameters: Collection[nn.Parameter], settings: Sgd) -> torch.optim.SGD:
    """Build SGD of a round. A momentum buffer that is given must lie in memory as its parameter."""
    fused = all(_walkable(parameter) for parameter in parameters)
    optimiser = torch.optim.SGD(
        parameters,
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        fused=fused or None,
    )
    if fused:
        optimiser.register_step_pre_hook(_prepare)
    return optimiser


def _walkable(parameter: nn.Parameter) -> bool:
    known = parameter.device.type in _DEVICES and parameter.dtype in _TYPES
    return known and torch.empty_like(parameter).stride() == parameter.stride()  # without gaps


def _prepare(optimiser: torch.optim.Optimizer, *_: Any) -> None:
    """Lay gradients and buffers out for a kernel that looks at no stride, and takes all or none."""
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.is_sparse or gradient.stride() != parameter.stride():
                parameter.grad = torch.empty_like(parameter).copy_(gradient.to_dense())
            if group["momentum"] and "momentum_buffer" not in optimiser.state[parameter]:
                buffer = torch.zeros_like(parameter, requires_grad=False)
                optimiser.state[parameter]["momentum_buffer"] = buffer
