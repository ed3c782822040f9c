"""Active federated learning (Goetz et al., 2019): clients on whose data the model is worst.

A client's valuation is v_k = (1/√n_k) Σ loss over its n_k samples, so √n_k times its mean loss.
Of m clients,
    1. the α1 N clients of least value lose their chance,
    2. (1 - α3) m are drawn by p_k ∝ exp(α2 v_k) from the others,
    3. α3 m are drawn uniformly from all that are left, those of step 1 among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from securefl.errors import ConfigError
from securefl.selection.draw import draw, in_order
from securefl.selection.selector import Standing


@final
@dataclass(frozen=True, slots=True)
class Afl:
    """Clients by their loss; the defaults are the paper's.

    Where step 1 leaves too few clients for step 2, step 3 fills up.

    Raises:
        ConfigError: α1 or α3 is no share, or α2 is negative.
    """

    excluded: float = 0.75
    """α1, the share of clients that step 1 takes out."""
    sharpness: float = 0.01
    """α2, how much a valuation counts."""
    uniform: float = 0.1
    """α3, the share of the selected that are drawn uniformly."""

    def __post_init__(self) -> None:
        for name, share in {"excluded": self.excluded, "uniform": self.uniform}.items():
            if not 0 <= share <= 1:
                raise ConfigError(f"{name} = {share}: must be a share, in 0..1")
        if not 0 <= self.sharpness < float("inf"):
            raise ConfigError(f"sharpness = {self.sharpness}: must be a finite number from 0 on")

    def select(self, standing: Standing, n: int, rng: torch.Generator) -> tuple[str, ...]:
        """See `Selector.select`; it goes by `loss` and `n_samples`."""
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
            equal_K = torch.zeros(len(others), dtype=torch.float64)
            drawn += draw(others, equal_K, n - len(drawn), rng)
        return in_order(clients, map(clients.index, drawn))
