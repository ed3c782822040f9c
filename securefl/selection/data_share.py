"""Selection by data share: Li et al., "Federated Optimization in Heterogeneous Networks", 2020.

FedProx draws client k with probability p_k = |D_k| / Σ |D_j|.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from securefl.selection.selector import Selector, Standing
from securefl.settings.axes import Replaceable
from securefl.types import SIZE

if TYPE_CHECKING:
    import torch


class ByDataShare(Replaceable, Selector):
    """Every client with the probability that a sample is its own."""

    name: Literal["data-share"] = "data-share"
    asks: ClassVar[tuple[str, ...]] = (SIZE,)
    told: ClassVar[str] = "numbers of records"

    def select(self, standing: Standing, n: int, rng: torch.Generator) -> tuple[str, ...]:
        """See `Selector.select`; it goes by `n_samples`."""
        from securefl.selection.draw import Replacement, draw, log_shares

        return draw(standing.clients, log_shares(standing), n, rng, Replacement(self.replacement))
