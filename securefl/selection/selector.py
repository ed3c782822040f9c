"""Selectors, and the numbers that they may see.

Tensor names end with their axes: K clients.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from securefl.errors import DataError
from securefl.settings.axes import SelectorChoice

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float64
    from torch import Tensor

Quantity: TypeAlias = Literal["divergence", "n_samples", "loss", "time_s", "rounds_waited"]


@dataclass(frozen=True, slots=True)
class Standing:
    """The server's knowledge of the clients before a round; each selector takes what it needs."""

    clients: tuple[str, ...]
    """Clients that can be selected, in an order that does not change from round to round."""
    divergence: Mapping[str, float] = field(default_factory=dict)
    """div(RP_k, RP_B), of profiles of the same version."""
    n_samples: Mapping[str, float] = field(default_factory=dict)
    """Sizes |D_k|, or any multiple of the data shares."""
    loss: Mapping[str, float] = field(default_factory=dict)
    """Mean loss of the global model over a client's data, when it was last asked."""
    time_s: Mapping[str, float] = field(default_factory=dict)
    """Duration of a client's round."""
    rounds_waited: Mapping[str, int] = field(default_factory=dict)
    """Rounds since a client was last selected, or since the start; 0 for one of the last round."""

    def values(self, quantity: Quantity) -> Float64[Tensor, " K"]:
        """Return a quantity in the order of the clients.

        Raises:
            DataError: a client has none, or one that is not finite.
        """
        import torch

        known: Mapping[str, float] = getattr(self, quantity)
        for client in self.clients:
            if not math.isfinite(known.get(client, math.nan)):
                raise DataError(
                    f"{client}: {quantity} = {known.get(client)}: must be a finite number for "
                    "every client that can be selected; leave out the clients that have none"
                )
        return torch.tensor([known[client] for client in self.clients], dtype=torch.float64)


class Selects(Protocol):
    """Selectors, alone or with another one around them."""

    def select(self, standing: Standing, n: int, rng: torch.Generator) -> tuple[str, ...]:
        """See `Selector`."""


class Selector(SelectorChoice):
    """A selector with its settings: the fields of its class are keys of the table `[selection]`.

    The same standing and random state give the same clients.

    Examples:
        >>> class LongestAway(securefl.Selector):
        ...     def select(self, standing, n, rng):
        ...         waited = standing.rounds_waited
        ...         return tuple(sorted(standing.clients, key=lambda c: -waited.get(c, 0))[:n])
        >>> task = securefl.Task(model, clients, test, choices=[LongestAway()])
        >>> securefl.run(config, task).participants[0].selected  # how often each counts
        {'north': 1, 'south': 1, 'east': 1}
    """

    @abstractmethod
    def select(self, standing: Standing, n: int, rng: torch.Generator) -> tuple[str, ...]:
        """Choose `n` clients, in the order of `standing.clients`, or all where there are no more.

        One that is drawn with replacement stands there as often as it was drawn.

        Raises:
            DataError: the standing lacks what the selector goes by.
        """

    def scores(self, standing: Standing) -> dict[str, float]:
        """Return the score by which each client is drawn; empty where there are none to record."""
        del standing
        return {}
