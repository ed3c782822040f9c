"""Clients in this process, whose contributions go straight to the server's round."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from securefl.federation.client import Client
from securefl.federation.clients_round import Answer, ClientsRound
from securefl.federation.contribution import PlainRows, Refused, Sent
from securefl.federation.query import Query, Respondent
from securefl.federation.round import OpenSum, ServerRound
from securefl.federation.site import Trainer
from securefl.simulation.client_state import ClientStates
from securefl.types import ClientState, State


@dataclass(slots=True)
class _Handover:
    """`Outlet` to the server's round in the same process."""

    ongoing: ServerRound
    open_sum: OpenSum
    staged: dict[str, ClientState] = field(default_factory=dict)
    """States that clients keep once the round's totals are in."""

    def ask(self, name: str, sent: Mapping[str, Sent] | PlainRows) -> Answer:
        self.ongoing.begin_sum(name)
        if isinstance(sent, PlainRows):
            self.ongoing.take_rows(sent)
        else:
            for client, own in sent.items():
                self.ongoing.take(client, own)
        self.ongoing.open_all(self.open_sum)
        return self.ongoing.answer()

    def hand_in(self, client: str, sent: Sent, client_state: ClientState) -> None:
        if self.ongoing.take(client, sent):
            self.staged[client] = client_state

    def leave(self, client: str, refused: Refused) -> None:
        self.ongoing.take(client, refused)


class InMemory:
    """`Engine` whose clients are trained in this process, by one trainer."""

    in_memory = True

    def __init__(
        self, trainer: Trainer, clients: Mapping[str, Client], respondent: Respondent
    ) -> None:
        self._trainer = trainer
        self._clients = clients
        self._respondent = respondent
        self._client_states = ClientStates(clients)
        self._staged: dict[str, ClientState] = {}

    @property
    def client_states(self) -> Mapping[str, ClientState]:
        """States of clients: see `Engine.client_states`."""
        return self._client_states

    def present(self, round_number: int, names: Sequence[str]) -> Sequence[str]:
        """Return all of them: see `Engine.present`."""
        del round_number
        return names

    def train(self, ongoing: ServerRound, open_sum: OpenSum) -> None:
        """Train the round: see `Engine.train`."""
        handover = _Handover(ongoing, open_sum)
        precision = ongoing.server.plain.dtype
        self._trainer.train(
            ClientsRound(ongoing.context, self._clients, self._client_states, handover, precision)
        )
        if ongoing.due:
            ongoing.require_somebody()
        ongoing.open_all(open_sum)
        self._staged = handover.staged

    def counted(self, ongoing: ServerRound) -> None:
        """Keep the new states: see `Engine.counted`."""
        del ongoing
        for name, client_state in self._staged.items():
            self._client_states[name] = client_state
        self._staged = {}

    def answers(
        self, run: str, query: Query, state: State, names: Collection[str]
    ) -> Mapping[str, bytes | Refused]:
        """Answer a query: see `Engine.answers`."""
        return self._respondent.answers(run, query, state, names)

    def restore(self, client_states: Mapping[str, ClientState]) -> None:
        """Restore states: see `Engine.restore`."""
        for name, client_state in client_states.items():
            self._client_states[name] = client_state

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Leave out nobody, as no client waits here: see `Engine.leave_out`."""

    def close(self) -> None:
        """Close: see `Engine.close`."""
        self._trainer.close()
