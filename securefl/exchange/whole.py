"""Sums as whole numbers in parts, which every channel carries without error.

In the clear a value has the model's precision, and under keys what the policy releases; sums over
samples that are subtracted or compared need more. So each is a multiple of 2^-40 below 2^40, in
four digits of 20 bits: as many bits as float32 holds, with room for the sum over 4096 clients.
"""

import torch
from torch import Tensor

from securefl.errors import ValueRefused

STEP_BITS = 20
"""Bits of a part."""
PART_BITS = (20, 0, -20, -40)
"""Unit of each part, the coarsest first; the last is that of the sums."""
_SCALE_BITS = 7
"""Parts travel divided by 2^7: within the ±8192 of a message of any length."""


def in_parts(sums: Tensor) -> Tensor:
    """Return the sums, shape (n,), as whole numbers over 2^7, shape (4 x n,).

    Raises:
        ValueRefused: a sum is not finite, or 2^40 or more.
    """
    rest, parts = sums.to("cpu", torch.float64), list[Tensor]()
    if not bool((rest.abs() < 2.0 ** (STEP_BITS + PART_BITS[0])).all()):
        wrong = rest[~(rest.abs() < 2.0 ** (STEP_BITS + PART_BITS[0]))][0]
        raise ValueRefused(
            f"a sum over test samples is {float(wrong):g}, and must be a number within ±2^40: have "
            "smaller targets (samples.units) or fewer samples"
        )
    for bits in PART_BITS:
        scaled = rest * 2.0**-bits
        part = scaled.round() if bits == PART_BITS[-1] else scaled.trunc()
        parts.append(part)
        rest = rest - part * 2.0**bits  # exact: both are multiples of the rest's last bit
    return torch.cat(parts) * 2.0**-_SCALE_BITS


def joined(mean: Tensor, n_clients: int) -> Tensor:
    """Return the sums over clients, shape (n,), of the mean of what `in_parts` gave each."""
    parts = (mean.double() * (n_clients * 2.0**_SCALE_BITS)).round().reshape(len(PART_BITS), -1)
    unit = PART_BITS[-1]
    weights = [2 ** (bits - unit) for bits in PART_BITS]
    whole = (
        sum(int(part) * weight for part, weight in zip(row, weights, strict=True))
        for row in parts.T.tolist()
    )
    return torch.tensor([number / 2**-unit for number in whole], dtype=torch.float64)
