"""Selection by data share: Li et al., "Federated Optimization in Heterogeneous Networks", 2020.

FedProx draws client k with probability p_k = |D_k| / Σ |D_j|.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from securefl.errors import DataError
from securefl.selection.draw import Replacement, draw
from securefl.selection.selector import Standing


@final
@dataclass(frozen=True, slots=True)
class ByDataShare:
    """Every client with the probability that a sample is its own."""

    replacement: Replacement = Replacement.WITHOUT

    def select(self, standing: Standing, n: int, rng: torch.Generator) -> tuple[str, ...]:
        """See `Selector.select`; it goes by `n_samples`."""
        return draw(standing.clients, log_shares(standing), n, rng, self.replacement)


def log_shares(standing: Standing) -> Float64[Tensor, " K"]:
    """Return the logarithm of each p_k.

    Raises:
        DataError: a client without samples.
    """
    n_samples_K = standing.values("n_samples")
    if (n_samples_K <= 0).any():
        client = standing.clients[int(n_samples_K.argmin())]
        raise DataError(f"{client}: n_samples = {float(n_samples_K.min())}: must be above 0")
    return (n_samples_K / n_samples_K.sum()).log()
