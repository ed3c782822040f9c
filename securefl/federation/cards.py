"""Cards of a session: each client is asked for its own once, before anything of it is sealed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from securefl.errors import MessageRefused
from securefl.federation.contribution import Refused
from securefl.federation.incidents import Incident
from securefl.federation.ledger import AUTHORITY, SERVER, Entry
from securefl.federation.message import CARD, card_expected, n_message_bytes
from securefl.federation.query import Query
from securefl.federation.server import Server
from securefl.federation.survey import Survey
from securefl.types import Kind, State

if TYPE_CHECKING:
    from securefl.federation.engine import Engine, Opener


@dataclass(slots=True)
class Cards:
    """Cards that the authority has of clients, under the keys in force."""

    server: Server
    engine: Engine
    opener: Opener
    _key_id: str = ""
    _known: set[str] = field(default_factory=set)
    """Clients whose cards for the keys of this id the authority has taken."""

    def holders(self, state: State, clients: Collection[str]) -> list[str]:
        """Return those of the clients that have cards, after asking the others for theirs.

        All of them where nothing is sealed. Whoever has none is an incident of the round after
        `state`.
        """
        keys = self.opener.card_keys
        if keys is None:
            return list(clients)
        if self._key_id != keys.key_id:
            self._key_id, self._known = keys.key_id, set()
        if new := [client for client in clients if client not in self._known]:
            given = self._asked(state, new)
            refused = self.opener.take_cards(self.server.run, given) if given else {}
            for client, reason in refused.items():
                self._without(state, client, reason)
            self._known |= given.keys() - refused.keys()
        return [client for client in clients if client in self._known]

    def _asked(self, state: State, clients: Collection[str]) -> dict[str, bytes]:
        """Return the cards that are of the right form, signed by their clients."""
        server, keys = self.server, self.opener.card_keys
        assert keys is not None  # noqa: S101 -- for mypy
        survey = Survey(server.roster, card_expected(server.run, keys), keys.card_bytes, clients)
        answers = self.engine.answers(server.run, Query(CARD), state, clients)
        given: dict[str, bytes] = {}
        for client, answer in answers.items():
            try:
                if isinstance(answer, Refused):
                    raise MessageRefused(answer.reason)  # noqa: TRY301
                self._note(state, (client, SERVER), answer)
                survey.admit(answer, client)
            except MessageRefused as error:
                self._without(state, client, str(error))
            else:
                given[client] = answer
                self._note(state, (SERVER, AUTHORITY), answer)
        return given

    def n_bytes(self, client: str) -> int:
        """Return the length in bytes of a client's cards; 0 where nothing is sealed."""
        if (keys := self.opener.card_keys) is None:
            return 0
        return n_message_bytes(card_expected(self.server.run, keys), client, keys.card_bytes)

    def _without(self, state: State, client: str, reason: str) -> None:
        why = reason if reason.startswith(f"{client}:") else f"{client}: {reason}"
        self.server.report(Incident(state.round + 1, CARD, client, why))

    def _note(self, state: State, way: tuple[str, str], message: bytes) -> None:
        sender, receiver = way
        entry = Entry(
            round=state.round + 1,
            exchange=0,
            name=CARD,
            kind=Kind.CARDS,
            sender=sender,
            receiver=receiver,
            form="ciphertext",
            n_values=1,
            bytes=len(message),
        )
        self.server.ledger.note(entry, message)
