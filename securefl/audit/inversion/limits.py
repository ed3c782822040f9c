"""Limits of gradient matching: sizes of samples and of models up to which it ends in time."""

import math

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from securefl.errors import DataError

MOST_FEATURES = 12_288
"""Values of a sample, 64 × 64 pixels in three colours, of which attackers' prior is a matrix."""
MOST_OPERATIONS = 6e9
"""Operations of one step of a search, all its mini-batches together; in a quick audit, minutes for
each attacker."""
OF_A_STEP = 8
"""Operations of one step as multiples of a forward pass: a gradient, and that of its distance."""


def require_within(shape: torch.Size) -> None:
    """Refuse samples of a shape that these attacks do not try; DataError says why."""
    if (n := math.prod(shape)) > MOST_FEATURES:
        raise DataError(
            f"a sample has {n:,} values, and these attacks are of {MOST_FEATURES:,} at most: none "
            "was tried, which says nothing for such samples"
        )


def most_matched(model: nn.Module, x: Tensor) -> int:
    """Return of how many samples together gradients are matched, by the cost of one, x (1, …)."""
    resting, count = model.training, FlopCounterMode(display=False)
    model.eval()
    try:
        with torch.no_grad(), count:
            model(x)
    finally:
        model.train(resting)
    return int(MOST_OPERATIONS // (OF_A_STEP * max(1, count.get_total_flops())))
