"""Questions of the server to clients before a selection, and the checks of their answers.

An answer that is refused is an incident: its client counts as not selected, and the round goes on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal, Protocol

from securefl.errors import MessageRefused
from securefl.federation.contribution import Refused
from securefl.federation.incidents import Incident
from securefl.federation.ledger import SERVER, Entry
from securefl.federation.message import (
    NUMBER,
    SCORE_LOSS,
    SCORE_VALUE,
    n_message_bytes,
    number_expected,
)
from securefl.federation.query import Query
from securefl.federation.server import Server
from securefl.federation.survey import NumberRange
from securefl.types import LOSS, SIZE, Kind, State

if TYPE_CHECKING:
    from securefl.federation.engine import Engine


Quantity = Literal["divergence", "loss", "n_samples"]
"""Quantity of single clients that selectors go by."""
ALLOWED = {
    SIZE: NumberRange(1, 2**40, whole=True),
    LOSS: NumberRange(-1e30, 1e30),
    SCORE_VALUE: NumberRange(-1e30, 1e30, or_none=True),
    SCORE_LOSS: NumberRange(-1e30, 1e30),
}
"""Range of each answer; outside, sums over clients and exponentials would not be finite."""
_QUANTITIES: dict[str, Quantity] = {SIZE: "n_samples", LOSS: "loss"}


class Question(Protocol):
    """Question for one quantity that a selector goes by."""

    @property
    def quantity(self) -> Quantity:
        """Quantity that is asked for."""

    @property
    def reads_data(self) -> bool:
        """True where a client passes over its data for the answer.

        It is then asked again whenever it is selected; otherwise once.
        """

    @property
    def asked_bytes(self) -> int:
        """Number of bytes that a client is sent with the question, beside the model."""

    def ask(self, state: State, clients: Collection[str]) -> dict[str, float]:
        """Return the answers that count, by client, before the round after `state`."""

    def n_bytes(self, state: State, client: str) -> int:
        """Return the length in bytes of a client's answer."""


class NumberQuestion:
    """Question for one number in the clear: a client's samples, or the global model's mean loss."""

    asked_bytes = 0

    def __init__(
        self, server: Server, engine: Engine, name: str, allowed: NumberRange | None = None
    ) -> None:
        """Take the number's name, and the range of answers that count; that of `ALLOWED` if None.

        The name is `SIZE` or `LOSS`, or one of `SCORES`.
        """
        self._server = server
        self._engine = engine
        self._name = name
        self._allowed = allowed or ALLOWED[name]

    @property
    def quantity(self) -> Quantity:
        """Quantity that is asked for: see `Question.quantity`."""
        return _QUANTITIES[self._name]

    @property
    def reads_data(self) -> bool:
        """True where a client passes over its data: see `Question.reads_data`."""
        return self._name == LOSS

    def ask(self, state: State, clients: Collection[str]) -> dict[str, float]:
        """Ask for numbers: see `Question.ask`."""
        server, number, found = self._server, state.round + 1, dict[str, float]()
        survey = server.ask_number(number, self._name, self._allowed, clients)
        for client, answer in self._engine.answers(
            server.run, Query(self._name), state, clients
        ).items():
            try:
                if isinstance(answer, Refused):
                    raise MessageRefused(answer.reason)  # noqa: TRY301
                entry = Entry(
                    round=number,
                    exchange=0,
                    name=self._name,
                    kind=Kind.SELECTION,
                    sender=client,
                    receiver=SERVER,
                    form="plaintext",
                    n_values=1,
                    bytes=len(answer),
                )
                server.ledger.note(entry, answer)
                found[client] = survey.receive(answer, client)
            except MessageRefused as error:
                diverged = isinstance(answer, Refused) and answer.diverged
                server.report(Incident(number, self._name, client, str(error), diverged))
        return found

    def n_bytes(self, state: State, client: str) -> int:
        """Return the length of an answer: see `Question.n_bytes`."""
        return number_bytes(self._server.run, self._name, state, client)


def number_bytes(run: str, name: str, state: State, client: str) -> int:
    """Return the length in bytes of a client's message with the number of this name."""
    expected = number_expected(run, state.round + 1, name)
    return n_message_bytes(expected, client, NUMBER.size)
