"""Strata of samples by their targets: what is alike but for having been trained on.

Samples are compared within a stratum, so that an attack that tells targets apart learns nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST_KINDS = 20
"""Number of different targets up to which each is a stratum of its own."""
PARTS = 5
"""Number of equal parts of the samples, ordered by their targets, where these are numbers."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Strata:
    """Stratum of each sample, by its target."""

    noun: str
    """Name of a stratum; empty where all samples are in one."""
    of_S: NDArray[np.int64]


def strata(targets: Sequence[Tensor]) -> Strata:
    """Return the strata of all samples, in the order of these parts.

    Classes, and combinations of labels or other numbers of which there are few, are strata. Other
    numbers are divided into fifths by the mean of their standardised values. Targets such as a
    class for each pixel are in one stratum.
    """
    y = torch.cat(list(targets)).detach().cpu()
    if not y.is_floating_point():
        if y.dim() > 1:
            return Strata("", np.zeros(len(y), np.int64))
        return Strata("label", y.numpy().astype(np.int64))
    flat = y.double().reshape(len(y), -1)
    kinds, of_S = torch.unique(flat, dim=0, return_inverse=True)
    if len(kinds) <= MOST_KINDS:
        return Strata("combination of targets", of_S.numpy().astype(np.int64))
    spread = flat.std(0, correction=0)
    along_S = ((flat - flat.mean(0)) / torch.where(spread > 0, spread, 1.0)).mean(1)
    ends = along_S.quantile(torch.linspace(0, 1, PARTS + 1, dtype=torch.float64)[1:-1])
    return Strata("fifth of the targets", torch.bucketize(along_S, ends).numpy().astype(np.int64))
