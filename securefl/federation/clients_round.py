"""Clients' side of a round: state in, sums asked for, contributions out.

It seals and signs, and has no input or output of its own: an `Outlet` carries its messages. The
same object serves all clients of a simulation, those of one worker process, and one site.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from securefl.errors import BlindTotalRefused, ConfigError, DataError, ValueRefused
from securefl.exchange.blind import BlindTotal
from securefl.exchange.layout import Row, Rows, unpack
from securefl.exchange.sums import OpenedSum
from securefl.federation.contribution import (
    UPDATE,
    PlainContribution,
    PlainRows,
    Refused,
    Sent,
    cannot_send,
)
from securefl.federation.lineage import Shown, extended
from securefl.federation.total import (
    Terms,
    as_sent,
    state_digest,
    total_bytes,
    with_job,
    with_total,
)
from securefl.types import (
    ClientState,
    Contribution,
    Floats,
    MessageSpec,
    NamedTensors,
    Plan,
    State,
    Total,
)

if TYPE_CHECKING:
    from securefl.federation.client import Client


@dataclass(frozen=True, slots=True)
class RoundContext:
    """Terms of the round after `state`, the same at the server and at every site."""

    run: str
    """Id of the run, 64 hex digits, which every signed header names."""
    state: State
    """State that clients begin with."""
    plan: Plan
    """Messages that they will send."""
    times: Mapping[str, int]
    """Number of times that each client counts; the keys are the clients in order."""
    since: Mapping[str, int] = field(default_factory=dict)
    """Last round in which each client's contributions counted; 0 for a client that is not in it."""
    in_memory: frozenset[str] = frozenset()
    """Names of the messages that are handed over in memory and neither sealed nor signed."""
    job: str = ""
    """Id of the job, the same in all sessions, of which sites have kept files; empty without."""
    uncounted: frozenset[str] = frozenset()
    """Clients whose update is refused, as it did not count in the round that is played again."""
    past: str = ""
    """Lineage of the job's models before this one; empty where nobody keeps it."""
    model: str = field(init=False)
    """Digest of the state alone, which every signed header names; empty where nothing is signed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", state_digest(self.state) if self.signed else "")

    @property
    def number(self) -> int:
        """Number of the round, from 1."""
        return self.state.round + 1

    @property
    def signed(self) -> bool:
        """True where any message of the round is signed bytes."""
        specs = (*self.plan.sums, *self.plan.update)
        return not all(spec.name in self.in_memory for spec in specs)

    @property
    def told(self) -> str:
        """Digest of what all clients are sent at its start; empty where nothing is signed."""
        if self.model and self.past:
            return extended(self.past, Shown(self.number, self.model))
        return with_job(self.model, self.job) if self.model else ""

    def terms(self, name: str) -> Terms:
        """Return the terms on which a client takes part."""
        return Terms(self.times[name], self.since.get(name, 0))


@dataclass(frozen=True, slots=True)
class Answer:
    """Total of a sum in the middle of a round, as it is sent to clients."""

    opened: OpenedSum | BlindTotal
    staying: Sequence[str]
    """Clients that go on, since their values were not refused."""

    def to_all(self, dtype: Floats) -> bytes:
        """Return what all clients are sent of it, values in the clear as this type."""
        opened = self.opened
        return opened.sealed if isinstance(opened, BlindTotal) else total_bytes(opened, dtype)

    def among(self, clients: Collection[str]) -> Answer:
        """Return what a site of these clients is sent: of a sealed total, their keys alone."""
        opened = self.opened
        if isinstance(opened, BlindTotal):
            return replace(self, opened=opened.among(clients))
        return self


class Outlet(Protocol):
    """Carrier of messages from the clients of one round to its server."""

    def ask(self, name: str, sent: Mapping[str, Sent] | PlainRows) -> Answer:
        """Have a sum made of these clients' messages; returns once it is there."""

    def hand_in(self, client: str, sent: Sent, client_state: ClientState) -> None:
        """Carry a contribution; `client_state` is the client's once the contribution counts."""

    def leave(self, client: str, refused: Refused) -> None:
        """Carry a client's refusal to go on with the round."""


class ClientsRound:
    """One round of the clients that train in this process."""

    def __init__(
        self,
        context: RoundContext,
        clients: Mapping[str, Client],
        client_states: Mapping[str, ClientState],
        outlet: Outlet,
        precision: Floats,
    ) -> None:
        """Begin a round in which nothing was sent yet.

        Args:
            context: terms of the round; the clients in its `times` train here.
            clients: clients by name, which seal and sign.
            client_states: states that the clients have kept from earlier rounds.
            outlet: carries their messages.
            precision: type of the values of totals.
        """
        self.context = context
        self.client_states = client_states
        self._clients = clients
        self._outlet = outlet
        self._precision = precision
        self._sums = {spec.name: spec for spec in context.plan.sums}
        self._received = context.told
        """Digest of what all clients were sent, and of the totals since; empty without bytes."""

    @property
    def state(self) -> State:
        """State that all begin with."""
        return self.context.state

    @property
    def plan(self) -> Plan:
        """Messages that they will send."""
        return self.context.plan

    @property
    def times(self) -> Mapping[str, int]:
        """Number of times that each client counts; the keys are the clients in order."""
        return self.context.times

    def weight(self, name: str) -> float:
        """Return a client's weight before it is divided by the sum of weights."""
        return self.times[name] * self._clients[name].weight

    def sum(self, asks: Mapping[str, tuple[str, NamedTensors]]) -> tuple[Total, list[str]]:
        """Return the total of one sum in the middle of the round, and the clients that go on.

        Args:
            asks: name of the sum and values of each client that is still training.

        Raises:
            DataError: clients ask for different sums, or for one that the plan does not list.
        """
        spec = self._due({name for name, _ in asks.values()})
        sent = {
            client: self._sent(client, spec.name, (spec,), {spec.name: values})
            for client, (_, values) in asks.items()
        }
        like = next(iter(asks.values()))[1]
        return self._answered(spec, self._outlet.ask(spec.name, sent), like)

    def sum_rows(self, name: str, clients: Sequence[str], rows: Rows) -> tuple[Total, list[str]]:
        """Return `sum` of stacked clients: in memory one reduction over the client axis."""
        if name not in self.context.in_memory:
            return self.sum({c: (name, row) for c, row in zip(clients, rows, strict=True)})
        spec = self._due({name})
        sent = self._sent_rows(spec, clients, rows)
        return self._answered(spec, self._outlet.ask(name, sent), rows.like)

    def finish(self, name: str, contribution: Contribution) -> None:
        """Send a client's trained tensors, or a refusal where its new state is not finite."""
        if not isinstance(contribution, Contribution):
            raise ConfigError(
                f"the algorithm's client() gave a {type(contribution).__name__}: it must return a "
                "securefl.types.Contribution"
            )
        sent: Sent
        if lost := not_finite(contribution.client_state):
            sent = cannot_send(name, UPDATE, f"{name}: its own {lost} is not finite")
        else:
            tensors = {f"update/{kind}": named for kind, named in contribution.tensors.items()}
            if missing := {spec.name for spec in self.plan.update} - tensors.keys():
                raise ConfigError(
                    "the algorithm's client() gave a Contribution without "
                    f"{', '.join(sorted(missing))}, which its plan() lists: "
                    "it must have tensors of each kind there"
                )
            sent = self._sent(name, UPDATE, self.plan.update, tensors)
        self._outlet.hand_in(name, sent, contribution.client_state)

    def _due(self, names: set[str]) -> MessageSpec:
        if len(names) != 1 or not names <= self._sums.keys():
            raise DataError(f"clients ask for sums {sorted(names)} where one of the plan is due")
        return self._sums[next(iter(names))]

    def _answered(
        self, spec: MessageSpec, answer: Answer, like: NamedTensors
    ) -> tuple[Total, list[str]]:
        if self._received:
            self._received = with_total(self._received, answer.to_all(self._precision))
        opened, staying = self._read(spec, answer)
        total = Total(unpack(opened.values, like), opened.weight, opened.n_clients)
        return total, staying

    def _read(self, spec: MessageSpec, answer: Answer) -> tuple[OpenedSum, list[str]]:
        """Return the total as each client here reads it by itself, and the clients that go on.

        One that cannot read it leaves the round. Where none is left, the total is NaN.
        """
        found = OpenedSum(np.full(spec.n_values, np.nan), np.nan, 0)
        staying, about = list(answer.staying), (self.context.run, self.context.number)
        for name in [name for name in staying if name in self.times]:
            try:
                found = self._clients[name].read_total(*about, spec, answer.opened)
            except BlindTotalRefused as error:
                staying.remove(name)
                why = f"{name}: the total of {spec.name!r} {error}"
                self._outlet.leave(name, Refused(spec.name, why, diverged=False))
        return as_sent(found, self._precision), staying

    def _sent(
        self,
        name: str,
        what: str,
        specs: Sequence[MessageSpec],
        tensors: Mapping[str, NamedTensors],
    ) -> Sent:
        """Return a client's messages that travel together, or the refusal of all of them."""
        client = self._clients[name]
        made = list[bytes | PlainContribution]()
        for spec in specs:
            try:
                made.append(self._message(client, spec, tensors[spec.name]))
            except ValueRefused as error:
                return cannot_send(name, what, str(error))
        return made

    def _message(
        self, client: Client, spec: MessageSpec, values: NamedTensors
    ) -> bytes | PlainContribution:
        times, context = self.times[client.name], self.context
        if spec.name in context.in_memory:
            plain = client.hand_over(spec, values, times)
            return replace(plain, like=values) if spec.like is None else plain
        received = context.terms(client.name).bind(self._received)
        about = context.run, context.number, spec, values, times, received
        return client.contribute(*about, model=context.model)

    def _sent_rows(self, spec: MessageSpec, names: Sequence[str], rows: Rows) -> PlainRows:
        of = [self._clients[name] for name in names]
        limit = min(client.sealers[spec.kind].max_value(rows.n_values) for client in of)
        fine = dict(zip(names, rows.within(limit), strict=True))
        sent = {
            name: self._sent(name, spec.name, (spec,), {spec.name: row})
            for name, row in zip(names, rows, strict=True)
            if not fine[name]
        }
        refused = {name: own for name, own in sent.items() if isinstance(own, Refused)}
        weights = [client.weight_in(spec, self.times[client.name]) for client in of]
        return PlainRows(names, rows, weights, refused)


@dataclass(frozen=True, slots=True)
class ClientExchange:
    """`Exchange` of one client with the others of its round."""

    weight: float
    ask: Callable[[str, NamedTensors], Total]

    def sum(self, name: str, values: NamedTensors) -> Total:
        """Return a total: see `Exchange.sum`."""
        return self.ask(name, values)


def no_sum(name: str, values: NamedTensors) -> Total:
    """Raise DataError for the sum that a client asks for in a round without sums."""
    del values
    raise DataError(f"the algorithm asks for the sum {name!r} that its plan() does not list")


def not_finite(client_state: ClientState) -> str:
    """Return the name of the first tensor with a NaN or an infinity; empty where there is none."""
    parts: list[NamedTensors] = [
        getattr(client_state, field.name) for field in fields(client_state)
    ]
    kept = [named for named in parts if named]
    wholes = chain.from_iterable(
        [named.vector] if isinstance(named, Row) else named.values() for named in kept
    )
    # Zeros, or NaN: one pass, where `isfinite` makes a mask first.
    zeros = [(whole * 0).sum() for whole in wholes]
    # All at once: of a GPU each answer by itself would be waited for.
    if not zeros or (torch.stack([zero.to(zeros[0].device) for zero in zeros]) == 0).all():
        return ""
    tensors = chain.from_iterable(named.items() for named in kept)
    return next(name for name, value in tensors if not torch.isfinite(value).all())
