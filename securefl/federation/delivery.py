"""Carries messages between the roles in one process, and writes each into the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from securefl.errors import MessageRefused, TooFewContributions
from securefl.exchange.base import OpenedSum
from securefl.exchange.layout import gains_of, unpack
from securefl.exchange.plain import PlainChannel
from securefl.federation.client import Client
from securefl.federation.contribution import HandedRows, HandedSum, Parcel, Unsent, Way
from securefl.federation.incidents import BOOKKEEPING_BYTES, Incident, nobody_left
from securefl.federation.ledger import AUTHORITY, SERVER, Content, Entry, Form, Ledger
from securefl.federation.outgoing import Sent
from securefl.federation.sealing import Sealing
from securefl.federation.server import Server
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
        about: tuple[int, str],
        exchange: int,
        ways: tuple[Way, ...],
    ) -> OpenExchange:
        """Start the sums of messages that travel together, of a round and its model's digest."""
        return OpenExchange(self, about, exchange, ways)

    def ways(self, specs: Sequence[MessageSpec]) -> tuple[Way, ...]:
        """How each of these messages goes to the server."""
        return tuple(Way(s, handed=not (self.sealed(s) or self.ledger.tap)) for s in specs)


class OpenExchange:
    """Sums while contributions arrive; what a client delivers is added at once and not kept."""

    def __init__(
        self,
        delivery: Delivery,
        about: tuple[int, str],
        exchange: int,
        ways: tuple[Way, ...],
    ) -> None:
        self._delivery = delivery
        self._round, state = about
        self._exchange = exchange
        self._ways = ways
        self._sent = {
            way.spec.name: delivery.server.start(self._round, way.spec, state)
            for way in ways
            if not way.handed
        }
        self._handed = {
            way.spec.name: HandedSum(delivery.plain, delivery.server.roster, way.spec.n_values)
            for way in ways
            if way.handed
        }
        self._like: Mapping[str, NamedTensors] = {}
        self._refused: list[Incident] = []
        self._diverged = False

    def take(self, name: str, sent: Sent) -> bool:
        """Add what a client has sent of each message; False if any was refused.

        All are admitted before the first is added: a client counts in all of them or in none.
        """
        if isinstance(sent.parcels, Unsent):
            self._nothing_from(name, sent.parcels)
            return False
        additions = []
        for way, parcel in zip(self._ways, sent.parcels, strict=True):
            try:
                additions.append(self._admitted(name, way, parcel, sent.like))
            except MessageRefused as error:
                self._leave_out(way.spec.name, name, str(error))
                return False
        for add in additions:
            add()
        self._like = sent.like
        return True

    def take_rows(self, handed: HandedRows) -> list[str]:
        """`take` of clients side by side, of one message; those whose values count."""
        (spec,) = (way.spec for way in self._ways)
        total, like, n_values = self._handed[spec.name], handed.rows.like, handed.rows.n_values
        counted = []
        for i, (name, weight) in enumerate(zip(handed.names, handed.weights, strict=True)):
            if name in handed.unsent:
                self._nothing_from(name, handed.unsent[name])
                continue
            self._note_handed(spec, name, like)
            try:
                total.check(name, weight, n_values)
            except MessageRefused as error:
                self._leave_out(spec.name, name, str(error))
            else:
                counted.append(i)
        if counted:
            total.add_rows(handed, counted)
            self._like = {spec.name: like}
        return [handed.names[i] for i in counted]

    def _admitted(
        self, name: str, way: Way, parcel: Parcel, like: Mapping[str, NamedTensors]
    ) -> Callable[[], None]:
        spec = way.spec
        if isinstance(parcel, bytes):
            self._note(spec, (name, SERVER), self._form(spec), parcel)
            return self._sent[spec.name].admit(parcel)
        self._note_handed(spec, name, like[spec.name])
        return self._handed[spec.name].admit(name, parcel)

    def _nothing_from(self, name: str, unsent: Unsent) -> None:
        self._diverged = True
        self._leave_out(unsent.name, name, unsent.reason)

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
            # Sealed ones first: the authority writes down why it opens nothing.
            ways = sorted(self._ways, key=lambda way: not self._delivery.sealed(way.spec))
            return {way.spec.name: self._open(way.spec, receivers) for way in ways}
        except TooFewContributions as error:
            if not self._refused:
                raise
            first = self._refused[0].reason
            raise TooFewContributions(f"{error}. Refused before: {first}") from error

    def _open(self, spec: MessageSpec, receivers: Sequence[str]) -> Total:
        opened = self._opened(spec)
        gains = gains_of(spec) if self._delivery.sealed(spec) else 1.0
        values = unpack(opened.values / gains, self._like[spec.name])
        n_bytes = self._delivery.total_bytes(spec)
        for receiver in receivers:
            self._note(spec, (SERVER, receiver), "plaintext", values, n_bytes)
        return Total(values, opened.weight, opened.n_clients)

    def _opened(self, spec: MessageSpec) -> OpenedSum:
        if spec.name in self._handed:
            return self._handed[spec.name].opened()
        request, sealing = self._sent[spec.name].request(), self._delivery.sealing
        if sealing is None or not self._delivery.sealed(spec):
            return self._delivery.plain.open(request.total, spec.n_values)
        self._note(spec, (SERVER, AUTHORITY), "ciphertext", request.as_bytes())
        opened = sealing.authority.open(request)
        self._sent[spec.name].check_weight(opened)
        self._note(spec, (AUTHORITY, SERVER), "plaintext", opened.as_bytes())
        return opened

    def _form(self, spec: MessageSpec) -> Form:
        return "ciphertext" if self._delivery.sealed(spec) else "plaintext"

    def _note_handed(self, spec: MessageSpec, name: str, like: NamedTensors) -> None:
        size = self._delivery.server.n_bytes(self._round, spec, name)
        self._note(spec, (name, SERVER), "plaintext", like, size)

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
