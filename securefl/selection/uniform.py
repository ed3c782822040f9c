"""Random selection, as in FedAvg; with partial aggregation it is FedAvg-RP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from securefl.selection.draw import Replacement, draw
from securefl.selection.selector import Standing


@final
@dataclass(frozen=True, slots=True)
class Random:
    """Every client with the same probability."""

    replacement: Replacement = Replacement.WITHOUT

    def select(self, standing: Standing, n: int, rng: torch.Generator) -> tuple[str, ...]:
        """See `Selector.select`."""
        equal_K = torch.zeros(len(standing.clients), dtype=torch.float64)
        return draw(standing.clients, equal_K, n, rng, self.replacement)
