"""What an engine is: a way of carrying out the local training of a round's clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from securefl.engines.open_round import OpenRound
from securefl.errors import DataError
from securefl.types import NamedTensors, Total


class Engine(Protocol):
    """Trains clients. Every engine gives the same result, within rounding."""

    def train(self, ongoing: OpenRound) -> None:
        """Have all clients of the round train, and hand in what they send."""

    def close(self) -> None:
        """Let go of processes and threads; safe to call twice."""


@dataclass(frozen=True, slots=True)
class End:
    """One client's end of the exchange."""

    weight: float
    ask: Callable[[str, NamedTensors], Total]

    def sum(self, name: str, values: NamedTensors) -> Total:
        """See `Exchange.sum`."""
        return self.ask(name, values)


def no_sum(name: str, values: NamedTensors) -> Total:
    """What a client hears in a round without sums."""
    del values
    raise DataError(f"the algorithm asks for the sum {name!r} that its plan() does not list")
