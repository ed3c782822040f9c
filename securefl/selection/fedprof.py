"""FedProf's selection (Wu et al., section 4): clients whose data look like the server's.

    λ_k = exp(-α_k div(RP_k, RP_B)),    Eq. (7)

and K clients are drawn by λ_k / Λ, Λ = Σ λ_k. Tensor names end with their axes: K clients.

Theorem 1 has α_k = -ln(Λ ρ_k) / div_k, with ρ_k the data shares. Put into Eq. (7) it gives
λ_k = Λ ρ_k: divergence and Λ cancel, and clients are drawn by data share. That is what the
theorem's proof needs, and no selection by data quality.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from securefl.errors import ConfigError
from securefl.selection.selector import Selector, Standing
from securefl.settings.axes import Replaceable
from securefl.types import PROFILE, SIZE

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from securefl.settings.tables import Config

Alpha = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False, strict=True)]
THEOREM_1 = "theorem1"


class FedProf(Replaceable, Selector):
    """Clients by the score of their profile."""

    name: Literal["fedprof"] = "fedprof"
    alpha: Alpha | Literal["theorem1"] = 10.0
    """Penalty factor α, 25 for the paper's CIFAR-10; 0 selects at random, `theorem1` by data share,
    as its proof needs."""
    alpha_by_client: dict[str, Alpha] = Field(default_factory=dict)
    """In the place of `alpha`, by client: `{client-3 = 25.0}`."""
    layer: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The layer that is profiled; where absent the first dense one, or the last block."""
    asks: ClassVar[tuple[str, ...]] = (PROFILE,)

    @property
    def asked(self) -> tuple[str, ...]:
        """See `SelectorChoice`; Theorem 1 draws by data share."""
        return (SIZE,) if self.alpha == THEOREM_1 else self.asks

    @property
    def tells(self) -> str:
        """See `SelectorChoice`."""
        return "" if self.asks_for_profiles else "numbers of records"

    @property
    def profiled_layer(self) -> str | None:
        """See `SelectorChoice`."""
        return self.layer

    def require_clients(self, clients: Sequence[str]) -> None:
        """See `SelectorChoice`."""
        if strangers := sorted(self.alpha_by_client.keys() - set(clients)):
            raise ConfigError(
                f"selection.alpha_by_client names {', '.join(strangers)}, and the clients are "
                f"{clients[0]} to {clients[-1]}: name some of these"
            )

    def clashes(self, config: Config) -> Iterator[str]:
        """See `Choice.clashes`."""
        if "profiles" in config.exchange.encrypt and not self.asks_for_profiles:
            yield (
                f'exchange.encrypt = "profiles" with selection.alpha = "{self.alpha}": clients are '
                "drawn by data share and send no profile; give a number, or leave "
                '"profiles" out'
            )

    def select(self, standing: Standing, n: int, rng: torch.Generator) -> tuple[str, ...]:
        """See `Selector.select`; it goes by `divergence`, with `theorem1` by `n_samples`."""
        from securefl.selection.draw import Replacement, draw

        log_scores_K = self._log_scores(standing)
        return draw(standing.clients, log_scores_K, n, rng, Replacement(self.replacement))

    def scores(self, standing: Standing) -> dict[str, float]:
        """Return λ_k by client, for the log and the heat map."""
        scores_K = self._log_scores(standing).exp()
        return dict(zip(standing.clients, scores_K.tolist(), strict=True))

    def _log_scores(self, standing: Standing) -> Tensor:
        import torch

        from securefl.selection.draw import log_shares

        if isinstance(self.alpha, str):
            return log_shares(standing)
        alphas = [self.alpha_by_client.get(client, self.alpha) for client in standing.clients]
        return -torch.tensor(alphas, dtype=torch.float64) * standing.values("divergence")
