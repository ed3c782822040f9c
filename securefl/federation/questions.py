"""What clients are asked for before a selection, and what becomes of the answers.

An answer that is refused is an incident: its client counts as not selected, and the round goes on.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Protocol

from torch import nn

from securefl.algorithms.base import Loss, load_tensors
from securefl.data.samples import Samples
from securefl.errors import MessageRefused
from securefl.evaluation.evaluate import mean_loss
from securefl.federation import message as wire
from securefl.federation.delivery import Delivery
from securefl.federation.incidents import Incident
from securefl.federation.ledger import SERVER, Entry
from securefl.federation.survey import NumberRange
from securefl.selection.base import Quantity
from securefl.types import Kind, State

SIZE, LOSS = "selection/size", "selection/loss"
ALLOWED = {SIZE: NumberRange(1, 2**40, whole=True), LOSS: NumberRange(-1e30, 1e30)}
"""Beyond, sums over clients and exponentials would leave the finite numbers."""


class Question(Protocol):
    """One quantity that a selector goes by."""

    @property
    def quantity(self) -> Quantity:
        """What the answers are."""

    @property
    def reads_data(self) -> bool:
        """Whether a client passes over its data for it.

        Then it is asked again whenever it is selected; else once is enough.
        """

    @property
    def asked_bytes(self) -> int:
        """What a client is sent with it, beside the model that it passes over its data with."""

    def ask(self, state: State, clients: Collection[str]) -> dict[str, float]:
        """The answers that count, by client; the round after `state` is to come."""

    def n_bytes(self, state: State, client: str) -> int:
        """Length of an answer."""


class SizeQuestion:
    """How many samples each client has, in the clear."""

    quantity: Quantity = "n_samples"
    reads_data = False
    asked_bytes = 0

    def __init__(self, delivery: Delivery, data: Mapping[str, Samples]) -> None:
        self._delivery = delivery
        self._data = data

    def ask(self, state: State, clients: Collection[str]) -> dict[str, float]:
        """See `Question.ask`."""
        sizes = {name: float(len(self._data[name])) for name in clients}
        return _numbers(self._delivery, state, SIZE, sizes)

    def n_bytes(self, state: State, client: str) -> int:
        """See `Question.n_bytes`."""
        return _number_bytes(self._delivery, state, SIZE, client)


class LossQuestion:
    """The global model's mean loss over a client's data, in the clear."""

    quantity: Quantity = "loss"
    reads_data = True
    asked_bytes = 0

    def __init__(
        self, delivery: Delivery, data: Mapping[str, Samples], model: nn.Module, loss: Loss
    ) -> None:
        """`model` is copied, not changed."""
        self._delivery = delivery
        self._data = data
        self._model = copy.deepcopy(model)
        self._loss = loss

    def ask(self, state: State, clients: Collection[str]) -> dict[str, float]:
        """See `Question.ask`."""
        load_tensors(self._model, state)
        losses = {c: mean_loss(self._model, self._data[c], self._loss) for c in clients}
        return _numbers(self._delivery, state, LOSS, losses)

    def n_bytes(self, state: State, client: str) -> int:
        """See `Question.n_bytes`."""
        return _number_bytes(self._delivery, state, LOSS, client)


def _numbers(
    delivery: Delivery, state: State, name: str, numbers: Mapping[str, float]
) -> dict[str, float]:
    """One number of each client: sent, written down, and checked."""
    round_number, found = state.round + 1, {}
    survey = delivery.server.ask_number(round_number, name, ALLOWED[name], numbers)
    for client, number in numbers.items():
        message = delivery.clients[client].send_number(delivery.run, round_number, name, number)
        about = round_number, 0, name, Kind.SELECTION, client, SERVER
        delivery.ledger.note(Entry(*about, "plaintext", 1, len(message)), message)
        try:
            found[client] = survey.receive(message)
        except MessageRefused as error:
            delivery.report(Incident(round_number, name, client, str(error)))
    return found


def _number_bytes(delivery: Delivery, state: State, name: str, client: str) -> int:
    expected = wire.number_expected(delivery.run, state.round + 1, name)
    return wire.n_bytes(expected, client, wire.NUMBER.size)
