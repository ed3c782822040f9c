"""One round at the server: the model goes out, sums come in, the authority opens them.

Clients are added up in the roster's order, whoever is first: so totals in the clear are, bit for
bit, those of a run in one process.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from securefl.algorithms.base import update_messages
from securefl.errors import DataError, MessageRefused, TotalRefused
from securefl.exchange.base import OpenedSum
from securefl.exchange.layout import gains_of, unpack
from securefl.exchange.plain import PlainChannel
from securefl.federation import message as wire
from securefl.federation.incidents import BOOKKEEPING_BYTES, Incident, nobody_left
from securefl.federation.ledger import AUTHORITY, SERVER, Entry, Form, Ledger
from securefl.federation.network import bodies
from securefl.federation.network.frames import Frame, Link
from securefl.federation.network.members import Lost, Members
from securefl.federation.network.opening import ask_to_open
from securefl.federation.network.party import Common
from securefl.federation.server import Server, ServerSum
from securefl.federation.state_digest import state_digest, with_total
from securefl.types import Kind, MessageSpec, Plan, State, Total


@dataclass(frozen=True, slots=True)
class Desk:
    """What the server's rounds are made with."""

    common: Common
    server: Server
    members: Members
    authority: Link | None
    """None where nothing is encrypted."""
    plain: PlainChannel
    sealed: frozenset[Kind]
    ledger: Ledger
    report: Callable[[Incident], None]


@dataclass(slots=True)
class ServerRound:
    """The round after `state`; who is out of it stays out."""

    desk: Desk
    state: State
    plan: Plan
    present: dict[str, Link]
    _refused: list[Incident] = field(default_factory=list)
    _diverged: bool = False
    _sent: str = ""
    """Digest of the state that clients are sent, and of the totals since."""

    @property
    def number(self) -> int:
        """From 1."""
        return self.state.round + 1

    async def run(self) -> State:
        """The next state.

        Raises:
            Diverged, TooFewContributions: nobody's contributions can be used.
            TotalRefused: a client has spoiled a total; the round can be `passed`.
            OpeningRefused: the authority does not open a total.
            PeerError: the authority is gone.
        """
        await self._broadcast()
        exchange, due = 1, {spec.name: spec for spec in self.plan.sums}
        while True:
            possible = [*due.values(), *self.plan.update[:1]]
            arrived = await self._next(possible)
            name = await self._agreed(arrived, {spec.name for spec in possible})
            if name not in due:
                break
            spec = due.pop(name)
            opened = await self._add([spec], {c: [m] for c, m in arrived.items()}, exchange)
            await self._answer(spec, opened[name], exchange)
            exchange += 1
        if left := sorted(n for n, spec in due.items() if spec.kind is not Kind.GRADIENTS):
            raise DataError(f"no client asked for the planned sums {left}")
        return await self._update(arrived, exchange)

    async def passed(self, refused: TotalRefused) -> State:
        """The state after a round whose total was refused: as before, and nobody's work counts."""
        among = ", ".join(self.present)
        why = f"{refused}; one of {among} has spoiled it, or several"
        await self._leave_out("total", {name: Lost(f"{name}: {why}") for name in [*self.present]})
        return replace(self.state, round=self.number)

    async def _broadcast(self) -> None:
        body, self._sent = bodies.state_bytes(self.state), state_digest(self.state)
        begins = bodies.RoundBegins(round=self.number).to_bytes()
        for frame, content in ((Frame.ROUND, begins), (Frame.MODEL, body)):
            await self._leave_out(
                "model", await self.desk.members.send(self.present, frame, content)
            )
        sizes = {kind: _n_bytes(named) for kind, named in self.state.tensors.items()}
        for name in self.present:
            for spec in update_messages(self.state.tensors):
                to = SERVER, name
                self._write(spec, f"model/{spec.kind}", to, sizes[spec.kind], 0, "plaintext")

    async def _next(self, possible: Sequence[MessageSpec]) -> dict[str, bytes]:
        """What each client sends next, in the roster's order; who sends nothing usable is out."""
        sizes = {
            name: max(self.desk.server.n_bytes(self.number, spec, name) for spec in possible)
            for name in self.present
        }
        heard = await self.desk.members.next_messages(self.present, sizes)
        lost = {name: what for name, what in heard.items() if isinstance(what, Lost)}
        await self._leave_out(possible[0].name, lost)
        self._require_somebody()
        return {name: what for name, what in heard.items() if isinstance(what, bytes)}

    async def _agreed(self, arrived: dict[str, bytes], possible: Collection[str]) -> str:
        """The sum that most of them contribute to, which all must; others are out."""
        names = {client: _claimed_name(message) for client, message in arrived.items()}
        votes = Counter(name for name in names.values() if name in possible)
        name = votes.most_common(1)[0][0] if votes else ""
        strays = {c: Lost(f"{c}: sent another message") for c, n in names.items() if n != name}
        for client in strays:  # who knows what else it has sent
            del arrived[client]
            self.desk.members.drop(client, self.present[client])
        await self._leave_out(name, strays)
        self._require_somebody()
        return name

    async def _add(
        self, specs: Sequence[MessageSpec], messages: Mapping[str, Sequence[bytes]], exchange: int
    ) -> dict[str, OpenedSum]:
        """Add and open sums that travel together: a client counts in all of them or in none."""
        sums = {spec.name: self.desk.server.start(self.number, spec, self._sent) for spec in specs}
        lost: dict[str, Lost] = {}
        for client, sent in messages.items():
            additions = []
            try:
                for spec, message in zip(specs, sent, strict=True):
                    form = self._form(spec)
                    self._write(spec, spec.name, (client, SERVER), len(message), exchange, form)
                    # In a thread, as all that may take long: heartbeats go on meanwhile.
                    add = await asyncio.to_thread(_admitted, client, sums[spec.name], message)
                    additions.append(add)
            except MessageRefused as error:
                lost[client] = Lost(str(error))
                continue
            for add in additions:
                add()
        await self._leave_out(specs[0].name, lost)
        self._require_somebody()
        opened = {}
        # Sealed ones first: the authority writes down why it opens nothing.
        for spec in sorted(specs, key=lambda spec: spec.kind not in self.desk.sealed):
            request = await asyncio.to_thread(sums[spec.name].request)
            if self._form(spec) == "plaintext" or self.desk.authority is None:
                opened[spec.name] = self.desk.plain.open(request.total, spec.n_values)
                continue
            n_bytes = len(bodies.open_request(request)) + len(request.total)
            to = SERVER, AUTHORITY
            self._write(spec, spec.name, to, n_bytes, exchange, "ciphertext")
            opened[spec.name] = await ask_to_open(self.desk.authority, request)
            sums[spec.name].check_weight(opened[spec.name])
            n_bytes = opened[spec.name].values.nbytes + BOOKKEEPING_BYTES
            self._write(spec, spec.name, (AUTHORITY, SERVER), n_bytes, exchange, "plaintext")
        return opened

    async def _answer(self, spec: MessageSpec, opened: OpenedSum, exchange: int) -> None:
        body = bodies.total_bytes(opened, self.desk.common.precision)
        self._sent = with_total(self._sent, body)
        for name in self.present:
            self._write(spec, spec.name, (SERVER, name), len(body), exchange, "plaintext")
        lost = await self.desk.members.send(self.present, Frame.TOTAL, body)
        await self._leave_out(spec.name, lost)
        self._require_somebody()

    async def _update(self, first: Mapping[str, bytes], exchange: int) -> State:
        messages = {client: [message] for client, message in first.items()}
        for spec in self.plan.update[1:]:
            arrived = await self._next([spec])
            messages = {client: [*messages[client], arrived[client]] for client in arrived}
        opened = await self._add(self.plan.update, messages, exchange)
        totals = {spec.kind: self._total(spec, opened[spec.name]) for spec in self.plan.update}
        await self.desk.members.send(self.present, Frame.COUNTED, b"")
        return self.desk.common.algorithm.update(self.state, totals)

    def _total(self, spec: MessageSpec, opened: OpenedSum) -> Total:
        like = self.state.tensors[spec.kind]
        if sum(value.numel() for value in like.values()) != spec.n_values:
            raise DataError(f"the plan sends a part of {spec.kind} alone, which no process can yet")
        gains = gains_of(spec) if spec.kind in self.desk.sealed else 1.0
        return Total(unpack(opened.values / gains, like), opened.weight, opened.n_clients)

    async def _leave_out(self, what: str, lost: Mapping[str, Lost]) -> None:
        for name, why in lost.items():
            link = self.present.pop(name)
            incident = Incident(self.number, what, name, why.reason)
            self._refused.append(incident)
            self._diverged = self._diverged or why.diverged
            self.desk.report(incident)
            if self.desk.members.links.get(name) is link and not why.diverged:
                told = bodies.reason(why.reason)  # who leaves by itself knows
                await self.desk.members.send({name: link}, Frame.LEAVE, told)

    def _require_somebody(self) -> None:
        if self.present:
            return
        first = self._refused[0].reason if self._refused else "no client is connected"
        raise nobody_left(self.number, first, diverged=self._diverged)

    def _form(self, spec: MessageSpec) -> Form:
        return "ciphertext" if spec.kind in self.desk.sealed else "plaintext"

    def _write(
        self,
        spec: MessageSpec,
        name: str,
        way: tuple[str, str],
        n_bytes: int,
        exchange: int,
        form: Form,
    ) -> None:
        self.desk.ledger.entries.append(
            Entry(self.number, exchange, name, spec.kind, *way, form, spec.n_values, n_bytes)
        )


def _admitted(client: str, running: ServerSum, message: bytes) -> Callable[[], None]:
    if (sender := _claimed_sender(message)) != client:
        raise MessageRefused(f"{client}: sent a message of {sender!r:.100}")
    return running.admit(message)


def _n_bytes(named: Mapping[str, object]) -> int:
    return sum(value.numel() * value.element_size() for value in named.values())  # type: ignore[attr-defined]


def _claimed_name(message: bytes) -> str:
    """What a message says that it is, which nobody believes before its signature is verified."""
    header = _claimed(message)
    return header.name if header else ""


def _claimed_sender(message: bytes) -> str:
    header = _claimed(message)
    return header.sender if header else ""


def _claimed(message: bytes) -> wire.Header | None:
    try:
        signed, _ = wire.split(message, len(message))
    except MessageRefused:
        return None
    return signed.header
