"""Where the clients of a run live, as the loop of rounds sees it: in this process, or elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from securefl.exchange.base import OpenedSum
from securefl.federation.contribution import Refused
from securefl.federation.query import Query
from securefl.federation.round import OpenSum, ServerRound
from securefl.federation.server import SumRequest
from securefl.types import Memory, MessageSpec, State


class Engine(Protocol):
    """Has clients train and answer. Every engine gives the same result, within rounding."""

    in_memory: bool
    """Whether messages in the clear can be handed over in memory."""

    def present(self, round_number: int, names: Sequence[str]) -> Sequence[str]:
        """Return the clients of these that can take part in a round."""

    def train(self, ongoing: ServerRound, open_sum: OpenSum) -> None:
        """Have the clients of the round train, and hand in what they send."""

    def counted(self, ongoing: ServerRound) -> None:
        """Let those whose contributions count keep what they keep from round to round."""

    def answers(
        self, run: str, query: Query, state: State, names: Collection[str]
    ) -> Mapping[str, bytes | Refused]:
        """Return the signed answers of these clients, or why one has none."""

    @property
    def memories(self) -> Mapping[str, Memory]:
        """What clients keep between rounds, where it is kept here; empty where elsewhere."""

    def restore(self, memories: Mapping[str, Memory]) -> None:
        """Take up what clients kept when a checkpoint was written."""

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Part with clients for the rest of the run."""

    def close(self) -> None:
        """Let go of processes, threads and connections; safe to call twice."""


class Opener(Protocol):
    """The authority, as the loop of rounds reaches it."""

    def be_ready_for(self, round_number: int, specs: Sequence[MessageSpec]) -> None:
        """Have a key in force that can open all sealed sums of a round; raises KeyWornOut."""

    def open(self, request: SumRequest) -> OpenedSum:
        """Open a sum; raises OpeningRefused, TotalRefused."""


class InTheClear:
    """No authority: nothing is sealed."""

    def be_ready_for(self, round_number: int, specs: Sequence[MessageSpec]) -> None:
        """Do nothing."""

    def open(self, request: SumRequest) -> OpenedSum:
        """Refuse: there is nothing to open."""
        raise RuntimeError(f"{request.expected.name!r}: there is no authority in this run")
