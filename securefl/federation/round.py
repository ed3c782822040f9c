"""Server's side of a round, without input or output of its own.

It lists the messages that may come and their sizes, takes those that have come, reports each that
does not count, lists the sums to be opened, is given the opened sums, and ends with the totals. A
driver carries the messages: in memory, to worker processes, or to sites. In the clear the bits of a
total depend on the order in which contributions are taken: drivers take them in the order of
`RoundContext.times`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from securefl.errors import (
    ClientLost,
    DataError,
    MessageRefused,
    PeerError,
    TooFewContributions,
)
from securefl.exchange.blind import BlindTotal
from securefl.exchange.layout import gains_of, unpack
from securefl.exchange.sums import OpenedSum
from securefl.federation.clients_round import Answer, RoundContext
from securefl.federation.contribution import PlainContribution, PlainRows, Refused, Sent
from securefl.federation.incidents import Incident, nobody_left
from securefl.federation.ledger import AUTHORITY, SERVER, Content, Entry, Form
from securefl.federation.left_out import ListsOfModel
from securefl.federation.server import InMemorySum, Server, ServerSum, SumRequest
from securefl.federation.total import as_sent, with_total
from securefl.types import Kind, MessageSpec, NamedTensors, Total

OpenSum = Callable[[SumRequest], OpenedSum | BlindTotal]
"""Function that has a sealed sum opened; raises OpeningRefused, TotalRefused."""


def _tensor(of: OpenedSum | PlainContribution) -> Tensor:
    return torch.from_numpy(of.values)


@dataclass(slots=True)
class _Collecting:
    """Sums of messages that travel together, while contributions arrive."""

    specs: tuple[MessageSpec, ...]
    signed: dict[str, ServerSum]
    in_memory: dict[str, InMemorySum]
    counted: list[str] = field(default_factory=list)
    blind: frozenset[str] = frozenset()
    """Names of the messages whose totals come sealed for clients."""
    opened: dict[str, OpenedSum | BlindTotal] = field(default_factory=dict)
    like: dict[str, NamedTensors] = field(default_factory=dict)
    """Layouts from contributions in memory, by message, where the plan has none."""


class ServerRound:
    """Round after a state; a client that is out of it stays out."""

    def __init__(
        self, server: Server, context: RoundContext, lists: ListsOfModel | None = None
    ) -> None:
        """Begin a round.

        Args:
            server: the server's name, keys and logs.
            context: terms of the round.
            lists: lists of clients of sealed totals that were opened at this model before; None
                where they are not held against each other.
        """
        self.context = context
        self.server = server
        self._present = dict.fromkeys(context.times)
        self._due = {spec.name: spec for spec in context.plan.sums}
        self._exchange = 0
        self._collecting: _Collecting | None = None
        self._refused: list[Incident] = []
        self._diverged = False
        self.lists = lists
        """Lists of clients at this round's model."""
        self._alike: frozenset[str] | None = None
        """Clients of this round's sealed totals; None before the first."""
        self._told = context.told
        """Digest of what all clients were sent, and of the totals since."""

    def received_by(self, client: str) -> str:
        """Return the digest that a client's header names now: of what it was sent, on its terms."""
        return self.context.terms(client).bind(self._told)

    @property
    def present(self) -> tuple[str, ...]:
        """Clients that are still in the round, in order."""
        return tuple(self._present)

    @property
    def awaited(self) -> tuple[str, ...]:
        """Clients that are in the round and not in the sums that were begun last, in order."""
        taken = set(self._collecting.counted) if self._collecting else ()
        return tuple(name for name in self._present if name not in taken)

    @property
    def due(self) -> bool:
        """True where a sum may come before the update."""
        return bool(self._due)

    @property
    def possible(self) -> tuple[MessageSpec, ...]:
        """Messages of which one may come next; of the update's, only the first."""
        return (*self._due.values(), *self.context.plan.update[:1])

    def most_bytes(self, client: str, specs: Sequence[MessageSpec]) -> int:
        """Return the length in bytes of the longest of these messages of a client."""
        number = self.context.number
        return max((self.server.n_bytes(number, spec, client) for spec in specs), default=0)

    # Contributions.

    def begin_sum(self, name: str) -> None:
        """Begin the sum that clients ask for by this name; raises DataError for one not due."""
        if name not in self._due:
            raise DataError(f"clients ask for the sum {name!r}, which is not due")
        spec = self._due.pop(name)
        self._begin((spec,), blind=self.server.is_blind(spec))

    def begin_update(self) -> None:
        """Begin the sums at the round's end; raises DataError where a planned one was left out."""
        # Where nothing before a layer learns (BN on the input), no gradient is asked for.
        left = {name for name, spec in self._due.items() if spec.kind is not Kind.GRADIENTS}
        if left:
            raise DataError(
                f"no client asked for the planned sums {sorted(left)}: is a BN layer "
                "never called, or used by another way than its own forward?"
            )
        self._due = {}
        self._begin(self.context.plan.update)

    def take(self, client: str, sent: Sent) -> bool:
        """Add a client's messages; returns False if any was refused.

        All are admitted before the first is added: a client counts in all sums or in none.
        """
        if isinstance(sent, Refused):
            self.lose(client, sent.name, sent.reason, diverged=sent.diverged)
            return False
        now = self._now
        additions = []
        for spec, message in zip(now.specs, sent, strict=True):
            try:
                additions.append(self._admitted(client, spec, message))
            except MessageRefused as error:
                self.lose(client, spec.name, str(error))
                return False
        for add in additions:
            add()
        now.counted.append(client)
        return True

    def take_rows(self, sent: PlainRows) -> None:
        """Add one message in memory of several stacked clients; see `take`."""
        now = self._now
        (spec,) = now.specs
        total, n_values, counted = now.in_memory[spec.name], sent.rows.n_values, []
        for i, (client, weight) in enumerate(zip(sent.names, sent.weights, strict=True)):
            if refused := sent.refused.get(client):
                self.lose(client, refused.name, refused.reason, diverged=refused.diverged)
                continue
            self._note_in_memory(client, spec, sent.rows.like)
            try:
                total.check(client, weight, n_values)
            except MessageRefused as error:
                self.lose(client, spec.name, str(error))
            else:
                counted.append(i)
        if counted:
            total.add_rows(sent, counted)
        now.counted += [sent.names[i] for i in counted]

    def lose(self, client: str, what: str, reason: str, *, diverged: bool = False) -> None:
        """Go on without a client; `diverged` where its values cannot be sent."""
        self._present.pop(client, None)
        self._diverged = self._diverged or diverged
        self._refused.append(Incident(self.context.number, what, client, reason, diverged))
        self.server.report(self._refused[-1])

    # Totals.

    def requests(self) -> Iterator[SumRequest]:
        """Yield the sealed sums, each to be opened and given to `opened` before the next.

        Raises:
            Diverged: every client's contribution was refused, values among them.
            TooFewContributions: every client's message was refused.
            ClientLost: a client is in one total of this round, or at this model, and not in
                another.
        """
        now = self._now
        if not now.specs:
            return
        self.require_somebody()
        if not now.counted:
            raise self._nobody()
        for spec in now.specs:
            if spec.kind in self.server.sealed and spec.name in now.signed:
                self._require_alike(spec.name)
                request = now.signed[spec.name].request(blind=spec.name in now.blind)
                self._note(spec, (SERVER, AUTHORITY), "ciphertext", request.as_bytes())
                yield request

    def _require_alike(self, name: str) -> None:
        counted = frozenset(self._now.counted)
        enough = len(counted) >= self.server.plain.min_clients  # else none is opened anyway
        if self._alike is None:
            self._alike, others = counted, sorted(self.context.times.keys() - counted)
            terms = {client: self.context.terms(client) for client in self._now.counted}
            if enough and self.lists and not self.lists.allow(terms):
                raise ClientLost(
                    f"{', '.join(others):.200}: lost before {name!r}, and totals at this model "
                    "were opened in another round; the difference could show its values",
                    others,
                )
        others = sorted(self._alike ^ counted)
        if others and enough:
            raise ClientLost(
                f"{', '.join(others):.200}: not in each total of this round, up to that of "
                f"{name!r}, and the difference could show its values",
                sorted(self._alike - counted),
            )

    def opened(self, name: str, total: OpenedSum | BlindTotal) -> None:
        """Take the opened total of a sealed sum, or one that is sealed for clients.

        Raises:
            TotalRefused: its weight is not that of its clients; of a blind one, the authority says.
            PeerError: it is in the clear, and should be sealed for clients, or the other way round.
        """
        now = self._now
        (spec,) = (spec for spec in now.specs if spec.name == name)
        if isinstance(total, BlindTotal) != (name in now.blind):
            due = "sealed for its clients" if name in now.blind else "in the clear"
            raise PeerError(f"the authority's total of {name!r} is not {due}")
        form: Form = "ciphertext"
        if isinstance(total, OpenedSum):
            now.signed[name].check_weight(total)
            form = "plaintext"
        self._note(spec, (AUTHORITY, SERVER), form, total.as_bytes())
        now.opened[name] = total

    def open_all(self, open_sum: OpenSum) -> None:
        """Have all sealed sums opened that clients have contributed to.

        Raises:
            Diverged, TooFewContributions: no contribution counts.
            OpeningRefused, TotalRefused: see `open_sum`.
        """
        for request in self.requests():
            try:
                total = open_sum(request)
            except TooFewContributions as error:
                raise self._explained(error) from error
            self.opened(request.expected.name, total)

    def answer(self) -> Answer:
        """End a sum in the middle of the round; returns the total for all clients still present.

        Raises:
            TooFewContributions: fewer contributions than any total may have.
        """
        now, dtype = self._now, self.server.plain.dtype
        (spec,) = now.specs
        blind = now.opened[spec.name] if spec.name in now.blind else None
        answer = Answer(
            blind if isinstance(blind, BlindTotal) else as_sent(self._read(spec), dtype),
            tuple(now.counted),
        )
        if self._told:
            self._told = with_total(self._told, answer.to_all(dtype))
        for client in now.counted:
            self._note_answer(spec, client, answer)
        self._collecting = None
        return answer

    def totals(self) -> dict[Kind, Total]:
        """End the round; returns the totals by kind.

        Raises:
            TooFewContributions: fewer contributions than any total may have.
            DataError: a total's layout is unknown.
        """
        if self._collecting is None and not self.context.plan.update:
            return {}
        return {spec.kind: self._total(spec) for spec in self._now.specs}

    @property
    def counted(self) -> tuple[str, ...]:
        """Clients whose contributions are in the sums that were begun last."""
        return tuple(self._now.counted)

    def require_somebody(self) -> None:
        """Raise Diverged or TooFewContributions where no client is left."""
        if not self._present:
            raise self._nobody()

    def _explained(self, error: TooFewContributions) -> TooFewContributions:
        """Return the error, with the reason why the first client does not count if there is one."""
        first = f". Refused before: {self._refused[0].reason}" if self._refused else ""
        return TooFewContributions(f"{error}{first}")

    def _nobody(self) -> Exception:
        first = self._refused[0].reason if self._refused else "no client is there"
        return nobody_left(self.context.number, first, diverged=self._diverged)

    @property
    def _now(self) -> _Collecting:
        if self._collecting is None:
            self.begin_update()
        assert self._collecting is not None  # noqa: S101 -- for mypy
        return self._collecting

    def _begin(self, specs: tuple[MessageSpec, ...], *, blind: bool = False) -> None:
        number, server, in_memory = self.context.number, self.server, self.context.in_memory
        terms = {name: self.context.terms(name) for name in self._present}
        self._exchange += 1
        self._collecting = _Collecting(
            specs,
            {
                s.name: server.start(number, s, self._told, terms, self.context.model)
                for s in specs
                if s.name not in in_memory
            },
            {
                s.name: InMemorySum(server.plain, server.roster, s.n_values)
                for s in specs
                if s.name in in_memory
            },
            blind=frozenset(s.name for s in specs if blind and s.name not in in_memory),
        )

    def _admitted(
        self, client: str, spec: MessageSpec, message: bytes | PlainContribution
    ) -> Callable[[], None]:
        now = self._now
        if isinstance(message, bytes):
            form: Form = "ciphertext" if spec.kind in self.server.sealed else "plaintext"
            self._note(spec, (client, SERVER), form, message)
            # With its last message, so that all of them are written down.
            if client in self.context.uncounted and spec in self.context.plan.update[-1:]:
                raise MessageRefused(f"{client}: did not count in the round that is played again")
            return now.signed[spec.name].admit(message, client)
        if message.like is not None:
            now.like.setdefault(spec.name, message.like)
        self._note_in_memory(client, spec, {"values": _tensor(message)})
        return now.in_memory[spec.name].admit(client, message)

    def _read(self, spec: MessageSpec) -> OpenedSum:
        """Return a total, divided by its gains."""
        now = self._now
        try:
            if spec.name in now.in_memory:
                return now.in_memory[spec.name].opened()
            if spec.name not in now.opened:
                request = now.signed.pop(spec.name).request()  # large, and read once
                return self.server.plain.open(request.total, spec.n_values)
        except TooFewContributions as error:
            raise self._explained(error) from error
        found = now.opened[spec.name]
        assert isinstance(found, OpenedSum)  # noqa: S101 -- for mypy: the others are relayed
        return OpenedSum(found.values / gains_of(spec), found.weight, found.n_clients)

    def _total(self, spec: MessageSpec) -> Total:
        opened, like = self._read(spec), spec.like or self._now.like.get(spec.name)
        if like is None:
            like = self.context.state.tensors.get(spec.kind, {})
        if sum(value.numel() for value in like.values()) != spec.n_values:
            raise DataError(
                f"the plan's {spec.name!r} has {spec.n_values} values and the state's {spec.kind} "
                "others: say in MessageSpec.like which tensors they are"
            )
        return Total(unpack(opened.values, like), opened.weight, opened.n_clients)

    def _note_answer(self, spec: MessageSpec, client: str, answer: Answer) -> None:
        way, opened = (SERVER, client), answer.opened
        if isinstance(opened, BlindTotal):
            self._note(spec, way, "ciphertext", opened.for_client(client))
            return
        size = self.server.total_bytes(spec)
        self._note(spec, way, "plaintext", {"total": _tensor(opened)}, size)

    def _note_in_memory(self, client: str, spec: MessageSpec, content: NamedTensors) -> None:
        size = self.server.n_bytes(self.context.number, spec, client)
        self._note(spec, (client, SERVER), "plaintext", content, size)

    def _note(
        self,
        spec: MessageSpec,
        way: tuple[str, str],
        form: Form,
        content: Content,
        n_bytes: int | None = None,
    ) -> None:
        """Write a message down; `n_bytes` is its length as sent, where `content` has no bytes."""
        sender, receiver = way
        entry = Entry(
            round=self.context.number,
            exchange=self._exchange,
            name=spec.name,
            kind=spec.kind,
            sender=sender,
            receiver=receiver,
            form=form,
            n_values=spec.n_values,
            bytes=len(content) if n_bytes is None else n_bytes,
        )
        self.server.ledger.note(entry, content)
