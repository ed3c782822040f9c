"""The lowest clients, found from histograms: each learns of itself, nobody of another.

A histogram is a sum over clients of a one at each client's own level. It shows how many clients
have which level and not who. A client that took others' ones away, so that more had a place and
fewer hid each other's values in what follows, is found out by those whose own is missing; of two
at one level neither misses a single one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from securefl.errors import MessageRefused
from securefl.exchange.sums import Exchange
from securefl.types import Kind, MessageSpec, Weighing


@dataclass(frozen=True, slots=True)
class TieBreak:
    """A second level, for clients whose first is equal."""

    name: str
    n_levels: int
    level: int


def histogram_message(name: str, n_levels: int) -> MessageSpec:
    """Return a histogram's entry in a plan."""
    return MessageSpec(name, Kind.STATISTICS, n_levels, Weighing.EQUAL)


def histogram(
    exchange: Exchange, name: str, n_levels: int, level: int | None
) -> Int64[Tensor, " n_levels"]:
    """Count the clients at each level; None takes part in the sum and is at none.

    Raises:
        MessageRefused: this client's one is missing, a count is negative, or there are more ones
            than clients.
    """
    own = torch.zeros(n_levels, dtype=torch.float64)
    if level is not None:
        own[level] = 1
    total = exchange.sum(name, {"levels": own})
    # An encrypted total is exact to a few bits after the point.
    counts = (total.values["levels"] * total.n_clients).round().to(torch.int64)
    missing = level is not None and counts[level] < 1
    if missing or (counts < 0).any() or counts.sum() > total.n_clients:
        raise MessageRefused(f"{name!r} counts no clients by level: a client sent rubbish")
    return counts


def noisily_among_lowest(
    exchange: Exchange, name: str, n_levels: int, level: int, places_of: Callable[[int], int]
) -> bool:
    """Return True where a client is among the lowest, by a histogram with noise; one sum.

    All clients of a level have a place, or none: those below the level, maybe the lowest, where the
    noisy count comes nearest to the places that there are, `places_of` the clients in the sum.
    """
    own = torch.zeros(n_levels, dtype=torch.float64)
    own[level] = 1
    total = exchange.sum(name, {"levels": own})
    counts = total.values["levels"] * total.n_clients
    below = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    off = (below - places_of(total.n_clients)).abs()
    return level < int(off.argmin())


def places(share: float, n_clients: int) -> int:
    """Return ⌊n p⌋, where a share written in decimals is not exact: 0.29 of 100 clients are 29."""
    return math.floor(share * n_clients + 1e-9)


def among_lowest(
    exchange: Exchange, n_places: int, counts: Tensor, level: int, tie_break: TieBreak
) -> bool:
    """Return True where a client at `level` has one of `n_places`; one sum over clients more.

    `counts` is the histogram of the levels. Clients of the level at which places run out are told
    apart by the tie-break's level, the lowest first; whom that does not tell apart either has no
    place, so that no more than `n_places` clients have one.
    """
    left = n_places - int(counts[:level].sum())
    tied = 0 < left < int(counts[level])
    finer = tie_break.level if tied else None
    counts = histogram(exchange, tie_break.name, tie_break.n_levels, finer)
    if tied:
        left -= int(counts[: tie_break.level].sum())
        return int(counts[tie_break.level]) <= left
    return left > 0
