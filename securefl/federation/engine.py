"""Interfaces of the loop of rounds to the clients, wherever they live, and to the authority."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from securefl.exchange.blind import BlindTotal
from securefl.exchange.card_keys import CardKeys
from securefl.exchange.sums import OpenedSum
from securefl.federation.contribution import Refused
from securefl.federation.query import Query
from securefl.federation.round import OpenSum, ServerRound
from securefl.federation.server import SumRequest
from securefl.types import ClientState, MessageSpec, State


class Engine(Protocol):
    """Driver of the clients of a run. All engines give the same result, within rounding."""

    in_memory: bool
    """True where messages in the clear can be handed over in memory."""

    def present(self, round_number: int, names: Sequence[str]) -> Sequence[str]:
        """Return those of the named clients that can take part in a round."""

    def train(self, ongoing: ServerRound, open_sum: OpenSum) -> None:
        """Have the clients of the round train, and hand in their contributions."""

    def counted(self, ongoing: ServerRound) -> None:
        """Have the clients whose contributions count keep their new state."""

    def answers(
        self, run: str, query: Query, state: State, names: Collection[str]
    ) -> Mapping[str, bytes | Refused]:
        """Return the signed answer of each client, or the reason why it has none."""

    @property
    def client_states(self) -> Mapping[str, ClientState]:
        """State of each client that is kept in this process; empty where sites keep theirs."""

    def restore(self, client_states: Mapping[str, ClientState]) -> None:
        """Restore the clients' states from a checkpoint."""

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Exclude clients for the rest of the run, for these reasons."""

    def close(self) -> None:
        """End processes, threads and connections; safe to call twice."""


class Opener(Protocol):
    """Interface of the loop of rounds to the authority."""

    def be_ready_for(self, round_number: int, specs: Sequence[MessageSpec]) -> None:
        """Take up the keys and the members that hold for a round with these messages."""

    @property
    def card_keys(self) -> CardKeys | None:
        """Keys that clients make their cards for; None where nothing is sealed."""

    def take_cards(self, run: str, cards: Mapping[str, bytes]) -> Mapping[str, str]:
        """Give the authority clients' signed cards; returns the reason for each that is refused."""

    def open(self, request: SumRequest) -> OpenedSum | BlindTotal:
        """Open a sum, or have it opened for clients alone; raises OpeningRefused, TotalRefused."""


class InTheClear:
    """Stand-in for the authority of a run in which nothing is sealed."""

    def be_ready_for(self, round_number: int, specs: Sequence[MessageSpec]) -> None:
        """Do nothing, as there is no key."""

    card_keys = None

    def take_cards(self, run: str, cards: Mapping[str, bytes]) -> Mapping[str, str]:
        """Raise RuntimeError, as no client has a card."""
        raise RuntimeError(f"{run}: there is no authority in this run to take {len(cards)} cards")

    def open(self, request: SumRequest) -> OpenedSum | BlindTotal:
        """Raise RuntimeError, as there is nothing to open."""
        raise RuntimeError(f"{request.expected.name!r}: there is no authority in this run")
