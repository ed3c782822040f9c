"""A bound on the rounds that any client waits, around any selector."""

from dataclasses import dataclass, replace
from typing import final

import torch

from securefl.errors import ConfigError
from securefl.selection.draw import in_order
from securefl.selection.selector import Selects, Standing


@final
@dataclass(frozen=True, slots=True)
class FairnessFloor:
    """A selector around which clients that have waited `rounds` rounds come first, longest first.

    The selector fills what is left of the round. Of N clients that can all be selected, n a round,
    none waits longer than rounds + ⌈N / n⌉.

    Raises:
        ConfigError: `rounds` is below 1.
    """

    selector: Selects
    rounds: int

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"rounds = {self.rounds}: must be at least 1")

    def select(self, standing: Standing, n: int, rng: torch.Generator) -> tuple[str, ...]:
        """See `Selector.select`; it goes by `rounds_waited` and what the selector goes by."""
        waited_K = standing.values("rounds_waited").tolist()
        places = range(len(standing.clients))
        due = sorted((k for k in places if waited_K[k] >= self.rounds), key=lambda k: -waited_K[k])
        chosen = {standing.clients[k] for k in due[:n]}
        others = tuple(client for client in standing.clients if client not in chosen)
        drawn: tuple[str, ...] = ()
        if others and n > len(chosen):
            drawn = self.selector.select(replace(standing, clients=others), n - len(chosen), rng)
        return in_order(standing.clients, map(standing.clients.index, (*chosen, *drawn)))
