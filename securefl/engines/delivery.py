"""Carries messages between the roles in one process, and writes each into the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from securefl.engines.incidents import BOOKKEEPING_BYTES, Incident, nobody_left
from securefl.engines.sealing import Sealing
from securefl.errors import MessageRefused, TooFewContributions, ValueRefused
from securefl.exchange.base import OpenedSum
from securefl.exchange.layout import unpack
from securefl.exchange.plain import PlainChannel
from securefl.roles.client import Client
from securefl.roles.ledger import AUTHORITY, SERVER, Content, Entry, Form, Ledger
from securefl.roles.server import Server, ServerSum, SumRequest
from securefl.types import MessageSpec, NamedTensors, Plan, State, Total


@dataclass(frozen=True, slots=True)
class Delivery:
    """The roles of a run and what is written down of their messages."""

    run: str
    clients: Mapping[str, Client]
    server: Server
    sealing: Sealing | None
    """How sums travel as ciphertext; None where none does."""
    plain: PlainChannel
    """What anyone can open: totals in the clear."""
    value_bytes: int
    """Of one value in the model's precision."""
    ledger: Ledger
    report: Callable[[Incident], None]

    def broadcast(self, state: State, news: Sequence[MessageSpec], client: str) -> None:
        """A client gets what is new to it at the start of the round after `state`."""
        for spec in news:
            about = state.round + 1, 0, f"model/{spec.kind}", spec.kind, SERVER, client
            size = spec.n_values, spec.n_values * self.value_bytes
            self.ledger.note(Entry(*about, "plaintext", *size), state.tensors[spec.kind])

    def be_ready_for(self, plan: Plan) -> None:
        """Before a round: its sums travel under one key; raises as `Sealing.be_ready_for`."""
        if self.sealing:
            self.sealing.be_ready_for((*plan.sums, *plan.update))

    def sealed(self, spec: MessageSpec) -> bool:
        """Whether it travels as ciphertext."""
        return self.sealing is not None and spec.kind in self.sealing.kinds

    def total_bytes(self, spec: MessageSpec) -> int:
        """Of a total on its way to a client."""
        return spec.n_values * self.value_bytes + BOOKKEEPING_BYTES

    def begin(
        self,
        round_number: int,
        exchange: int,
        specs: Sequence[MessageSpec],
        times: Mapping[str, int],
    ) -> OpenExchange:
        """Start the sums of messages that travel together; `times` is how often clients count."""
        sums = {spec.name: self.server.start(round_number, spec) for spec in specs}
        return OpenExchange(self, round_number, exchange, tuple(specs), sums, times)


class OpenExchange:
    """Sums while contributions arrive; what a client delivers is added at once and not kept."""

    def __init__(
        self,
        delivery: Delivery,
        round_number: int,
        exchange: int,
        specs: tuple[MessageSpec, ...],
        sums: Mapping[str, ServerSum],
        times: Mapping[str, int],
    ) -> None:
        self._delivery = delivery
        self._round = round_number
        self._exchange = exchange
        self._specs = specs
        self._sums = sums
        self._times = times
        self._like: Mapping[str, NamedTensors] = {}
        self._refused: list[Incident] = []
        self._diverged = False

    def deliver(self, name: str, tensors: Mapping[str, NamedTensors]) -> bool:
        """Seal, send and add one client's tensors of each message; False if any was refused.

        All are sealed before the first is sent, and all are admitted before the first is added: a
        client counts in all of them or in none.
        """
        client, messages, additions = self._delivery.clients[name], [], []
        try:
            for spec in self._specs:
                values, times = tensors[spec.name], self._times[name]
                message = client.contribute(self._delivery.run, self._round, spec, values, times)
                messages.append(message)
            for spec, message in zip(self._specs, messages, strict=True):
                self._note(spec, (name, SERVER), self._form(spec), message)
                additions.append(self._sums[spec.name].admit(message))
        except (ValueRefused, MessageRefused) as error:
            reason = str(error)
            if isinstance(error, ValueRefused):
                self._diverged, reason = True, error.without_value  # the value is the client's
            self._leave_out(spec.name, name, reason)
            return False
        for add in additions:
            add()
        self._like = tensors
        return True

    def refuse(self, name: str, reason: str) -> None:
        """Leave out a client whose own values have diverged."""
        self._leave_out("memory", name, reason)
        self._diverged = True

    def _leave_out(self, what: str, name: str, reason: str) -> None:
        self._refused.append(Incident(self._round, what, name, reason))
        self._delivery.report(self._refused[-1])

    def finish(self, receivers: Sequence[str] = ()) -> dict[str, Total]:
        """Open the sums, and send the totals to `receivers`.

        Raises:
            Diverged: every client's contribution was refused, values among them.
            TooFewContributions: every client's message was refused.
            OpeningRefused: the authority does not open one of them.
            MessageRefused: one is no total, since a client or the server has sent rubbish.
        """
        if not self._like:
            raise nobody_left(self._round, self._refused[0].reason, diverged=self._diverged)
        try:
            return {spec.name: self._open(spec, receivers) for spec in self._specs}
        except TooFewContributions as error:
            if not self._refused:
                raise
            first = self._refused[0].reason
            raise TooFewContributions(f"{error}. Refused before: {first}") from error

    def _open(self, spec: MessageSpec, receivers: Sequence[str]) -> Total:
        request = self._sums[spec.name].request()
        opened = self._opened(spec, request)
        values = unpack(opened.values, self._like[spec.name])
        n_bytes = self._delivery.total_bytes(spec)
        for receiver in receivers:
            self._note(spec, (SERVER, receiver), "plaintext", values, n_bytes)
        return Total(values, opened.weight, opened.n_clients)

    def _opened(self, spec: MessageSpec, request: SumRequest) -> OpenedSum:
        sealing = self._delivery.sealing
        if sealing is None or not self._delivery.sealed(spec):
            return self._delivery.plain.open(request.total, spec.n_values)
        self._note(spec, (SERVER, AUTHORITY), "ciphertext", request.as_bytes())
        opened = sealing.authority.open(request)
        self._note(spec, (AUTHORITY, SERVER), "plaintext", opened.as_bytes())
        return opened

    def _form(self, spec: MessageSpec) -> Form:
        return "ciphertext" if self._delivery.sealed(spec) else "plaintext"

    def _note(
        self,
        spec: MessageSpec,
        way: tuple[str, str],
        form: Form,
        content: Content,
        n_bytes: int | None = None,
    ) -> None:
        """`n_bytes` of what is handed over in memory, as it would be on a wire."""
        length = len(content) if n_bytes is None else n_bytes
        about = spec.name, spec.kind, *way, form, spec.n_values, length
        self._delivery.ledger.note(Entry(self._round, self._exchange, *about), content)
