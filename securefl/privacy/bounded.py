"""Named tensors clipped to an L2 norm, together or each by itself."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from securefl.privacy.clipping import Clipping
from securefl.types import NamedTensors


@dataclass(frozen=True, slots=True)
class Bounded:
    """Tensors whose joint norm is at most C."""

    values: dict[str, Tensor]
    within: bool
    """Whether nothing had to be clipped."""


def clipped(named: NamedTensors, clip: float, clipping: Clipping) -> Bounded:
    """The tensors scaled to at most `clip` in L2 norm.

    Per layer, each is scaled by itself, to clip / √(number of tensors). What is not finite becomes
    NaN, for the channel to refuse.
    """
    sizes = {name: float(torch.linalg.vector_norm(value)) for name, value in named.items()}
    if clipping is Clipping.PER_LAYER:
        bounds = dict.fromkeys(named, clip / sqrt(len(named)))
    else:
        sizes = dict.fromkeys(named, sqrt(sum(size * size for size in sizes.values())))
        bounds = dict.fromkeys(named, clip)
    scaled = {n: v * min(1.0, bounds[n] / sizes[n]) if sizes[n] else v for n, v in named.items()}
    return Bounded(scaled, all(sizes[name] <= bounds[name] for name in named))
