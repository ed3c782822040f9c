"""Clients drawn by weights, which are given as logarithms.

FedProf's λ = exp(-α div) underflows at α div = 745, and a client must not lose its chance for that.
"""

from collections.abc import Iterable
from enum import StrEnum

import torch
from jaxtyping import Float64
from torch import Tensor

from securefl.errors import DataError
from securefl.selection.selector import Standing


class Replacement(StrEnum):
    """Drawing with or without replacement within one round."""

    WITHOUT = "without"
    WITH = "with"


def draw(
    clients: tuple[str, ...],
    log_weights_K: Float64[Tensor, " K"],
    n: int,
    rng: torch.Generator,
    replacement: Replacement = Replacement.WITHOUT,
) -> tuple[str, ...]:
    """Draw `n` clients, each by its weight over the sum of the weights still in the draw.

    Without replacement these are the n largest of log w_k + G_k with independent Gumbel G_k
    (Yellott, 1977), which has the law of drawing one by one; with replacement, the largest of n
    such rows. Equal weights give the same clients whatever the weight. Where there are not more
    than `n` clients, a draw without replacement is all of them.
    """
    if not clients:
        return ()
    n_rows = n if replacement is Replacement.WITH else 1
    exponential = torch.empty(n_rows, len(clients), dtype=torch.float64)
    # Relative to the largest, equal weights are 0 exactly, and no rounding tells them apart.
    scaled_K = log_weights_K - log_weights_K.max()
    keys = scaled_K - exponential.exponential_(generator=rng).log()
    if replacement is Replacement.WITH:
        return in_order(clients, keys.argmax(dim=1).tolist())
    return in_order(clients, keys[0].topk(min(n, len(clients))).indices.tolist())


def in_order(clients: tuple[str, ...], chosen: Iterable[int]) -> tuple[str, ...]:
    """Return the clients at these indices, in their own order."""
    return tuple(clients[k] for k in sorted(chosen))


def equal_weights(clients: tuple[str, ...]) -> Float64[Tensor, " K"]:
    """Return the logarithms of equal weights."""
    return torch.zeros(len(clients), dtype=torch.float64)


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
