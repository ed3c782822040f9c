"""FedProf's selection (Wu et al., section 4): clients whose data look like the server's.

    λ_k = exp(-α_k div(RP_k, RP_B)),    Eq. (7)

and K clients are drawn by λ_k / Λ, Λ = Σ λ_k. Tensor names end with their axes: K clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float64
from torch import Tensor

from securefl.errors import ConfigError, DataError
from securefl.selection.data_share import log_shares
from securefl.selection.draw import Replacement, draw
from securefl.selection.selector import Standing


@runtime_checkable
class Penalty(Protocol):
    """Scores of clients from the divergences of their profiles."""

    def log_scores(self, standing: Standing) -> Float64[Tensor, " K"]:
        """Return the logarithm of each λ_k."""


@final
@dataclass(frozen=True, slots=True)
class Alpha:
    """The penalty factor α, of all clients or of each; 10 in the paper, 25 for its CIFAR-10.

    Raises:
        ConfigError: a factor that is negative or not finite.
    """

    alpha: float
    by_client: Mapping[str, float] = field(default_factory=dict)
    """Factors that replace `alpha` for the clients named here."""

    def __post_init__(self) -> None:
        for owner, alpha in {"alpha": self.alpha, **self.by_client}.items():
            if not (math.isfinite(alpha) and alpha >= 0):
                raise ConfigError(
                    f"{owner} = {alpha}: a penalty factor is a finite number from 0 on; 0 selects "
                    "at random"
                )

    def log_scores(self, standing: Standing) -> Float64[Tensor, " K"]:
        """Return -α_k div_k."""
        alphas = [self.by_client.get(client, self.alpha) for client in standing.clients]
        return -torch.tensor(alphas, dtype=torch.float64) * standing.values("divergence")


@final
@dataclass(frozen=True, slots=True)
class Theorem1:
    """Theorem 1's α_k = -ln(Λ ρ_k) / div_k, with ρ_k the data shares.

    Put into Eq. (7) it gives λ_k = Λ ρ_k: divergence and Λ cancel, and clients are drawn by data
    share. That is what the theorem's proof needs, and no selection by data quality.
    """

    def log_scores(self, standing: Standing) -> Float64[Tensor, " K"]:
        """Return the logarithm of each ρ_k: the score for Λ = 1."""
        return log_shares(standing)


@final
@dataclass(frozen=True, slots=True)
class FedProf:
    """Clients by the score of their profile."""

    penalty: Penalty
    replacement: Replacement = Replacement.WITHOUT

    def select(self, standing: Standing, n: int, rng: torch.Generator) -> tuple[str, ...]:
        """See `Selector.select`; it goes by `divergence`, with `Theorem1` by `n_samples`."""
        log_scores_K = self.penalty.log_scores(standing)
        return draw(standing.clients, log_scores_K, n, rng, self.replacement)

    def scores(self, standing: Standing) -> dict[str, float]:
        """Return λ_k by client, for the log and the heat map."""
        scores_K = self.penalty.log_scores(standing).exp()
        return dict(zip(standing.clients, scores_K.tolist(), strict=True))


def theorem1(
    divergence_K: Float64[Tensor, " K"], rho_K: Float64[Tensor, " K"], total: float
) -> Float64[Tensor, " K"]:
    """Return Theorem 1's penalty factors α_k, for shares ρ of sum 1 and a sum of scores Λ.

    A factor is negative where Λ ρ_k exceeds 1.

    Raises:
        DataError: a divergence of 0, where no factor gives the score; a share or Λ not above 0.
    """
    if (divergence_K <= 0).any():
        raise DataError(
            f"divergence = {float(divergence_K.min())}: Theorem 1 divides by it; draw by data share"
        )
    if (rho_K <= 0).any() or not total > 0:
        raise DataError(f"shares from {float(rho_K.min())} and Λ = {total}: must be above 0")
    return -(total * rho_K).log() / divergence_K
