"""Active federated learning (Goetz et al., 2019): clients on whose data the model is worst.

A client's valuation is v_k = (1/√n_k) Σ loss over its n_k samples, so √n_k times its mean loss.
Of m clients,
    1. the α1 N clients of least value lose their chance,
    2. (1 - α3) m are drawn by p_k ∝ exp(α2 v_k) from the others,
    3. α3 m are drawn uniformly from all that are left, those of step 1 among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from securefl.selection.selector import Selector, Standing
from securefl.settings.axes import DrawnSelector
from securefl.settings.table import ClosedShare, NotNegative
from securefl.types import LOSS, SIZE

if TYPE_CHECKING:
    import torch


class Afl(DrawnSelector, Selector):
    """Clients by their loss; the defaults are the paper's.

    Where step 1 leaves too few clients for step 2, step 3 fills up.
    """

    name: Literal["afl"] = "afl"
    excluded: ClosedShare = 0.75
    """α1, the share of clients of lowest value that have no chance by it."""
    sharpness: NotNegative = 0.01
    """α2, how much a valuation counts."""
    uniform: ClosedShare = 0.1
    """α3, the share of the selected that are drawn at random."""
    asks: ClassVar[tuple[str, ...]] = (LOSS, SIZE)
    told: ClassVar[str] = "losses and numbers of records"

    def select(self, standing: Standing, n: int, rng: torch.Generator) -> tuple[str, ...]:
        """See `Selector.select`; it goes by `loss` and `n_samples`."""
        from securefl.selection.draw import draw, equal_weights, in_order

        clients = standing.clients
        n = min(n, len(clients))
        valuation_K = standing.values("loss") * standing.values("n_samples").sqrt()
        kept = valuation_K.argsort()[int(self.excluded * len(clients)) :]
        n_by_value = min(n - round(self.uniform * n), len(kept))
        drawn: tuple[str, ...] = ()
        if n_by_value:
            candidates = in_order(clients, kept.tolist())
            log_weights_K = self.sharpness * valuation_K[kept.sort().values]
            drawn = draw(candidates, log_weights_K, n_by_value, rng)
        others = tuple(client for client in clients if client not in drawn)
        if n > len(drawn):
            drawn += draw(others, equal_weights(others), n - len(drawn), rng)
        return in_order(clients, map(clients.index, drawn))
