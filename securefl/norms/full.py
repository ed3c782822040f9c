"""Full precision, where autocast has made values coarse."""

from __future__ import annotations

import torch
from torch import Tensor


def full(y: Tensor) -> Tensor:
    """What autocast has made coarse of float32, exact enough for moments."""
    coarse = y.dtype is torch.bfloat16 and torch.is_autocast_enabled(y.device.type)
    return y.float() if coarse else y
