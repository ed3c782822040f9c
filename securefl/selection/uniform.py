"""Random selection, as in FedAvg; with partial aggregation it is FedAvg-RP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from securefl.selection.selector import Selector, Standing
from securefl.settings.axes import Replaceable

if TYPE_CHECKING:
    import torch


class Random(Replaceable, Selector):
    """Every client with the same probability."""

    name: Literal["random"] = "random"

    def select(self, standing: Standing, n: int, rng: torch.Generator) -> tuple[str, ...]:
        """See `Selector.select`."""
        from securefl.selection.draw import Replacement, draw, equal_weights

        equal_K = equal_weights(standing.clients)
        return draw(standing.clients, equal_K, n, rng, Replacement(self.replacement))
