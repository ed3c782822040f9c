"""A round as those see it who train its clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from securefl.errors import DataError
from securefl.exchange.layout import Rows
from securefl.types import Contribution, Memory, NamedTensors, Plan, State, Total


class Ongoing(Protocol):
    """The clients of a round, what each begins with, and where what it sends goes."""

    @property
    def state(self) -> State:
        """What all begin with."""

    @property
    def plan(self) -> Plan:
        """What they are going to send."""

    @property
    def times(self) -> Mapping[str, int]:
        """Who they are, in order, and how often each counts."""

    @property
    def memories(self) -> Mapping[str, Memory]:
        """What each has kept."""

    def weight(self, name: str) -> float:
        """A client's, before it is divided by the sum of weights."""

    def sum(self, asks: Mapping[str, tuple[str, NamedTensors]]) -> tuple[Total, list[str]]:
        """See `OpenRound.sum`."""

    def sum_rows(self, name: str, clients: Sequence[str], rows: Rows) -> tuple[Total, list[str]]:
        """See `OpenRound.sum_rows`."""

    def finish(self, name: str, contribution: Contribution) -> None:
        """See `OpenRound.finish`."""


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
