"""A site: clients that live in one place, behind one function: a request in, its reply out.

It has data, models, identities, and what its clients keep between rounds. A worker process of a
simulation is a site of several clients, a process of a consortium one of a single client.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from securefl.errors import PeerError
from securefl.federation.client import Client
from securefl.federation.clients_round import Answer, ClientsRound, RoundContext
from securefl.federation.contribution import PlainRows, Refused, Sent
from securefl.federation.pausable import Pausable, Waiting
from securefl.federation.query import SCORES, Query, Respondent
from securefl.types import Floats, Memory, Plan, State

# Requests.


@dataclass(frozen=True, slots=True)
class Begin:
    """Train these clients from this state."""

    run: str
    state: State
    times: Mapping[str, int]
    """Clients of this site, in order, and how often each counts."""
    since: Mapping[str, int] = field(default_factory=dict)
    """The last round in which each counted: what it kept then, it goes on from."""
    in_memory: frozenset[str] = frozenset()
    """Names of messages that need not be signed."""


@dataclass(frozen=True, slots=True)
class Continue:
    """Hear the sum that was asked for, and go on."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Counted:
    """The contributions of these clients count: keep what they keep."""

    round: int
    names: Collection[str]


@dataclass(frozen=True, slots=True)
class Ask:
    """Answer a query under this state."""

    run: str
    query: Query
    state: State
    names: Collection[str]
    since: Mapping[str, int] = field(default_factory=dict)
    """See `Begin.since`."""


Request = Begin | Continue | Counted | Ask

# Replies.


@dataclass(frozen=True, slots=True)
class Asked:
    """These clients ask for a sum in the middle of their round."""

    name: str
    sent: Mapping[str, Sent]


@dataclass(frozen=True, slots=True)
class Done:
    """All clients have trained."""

    sent: Mapping[str, Sent]
    """But of those who have left the round."""
    memories: Mapping[str, Memory] = field(default_factory=dict)
    """What they will keep once they count; it leaves no site of a consortium."""


@dataclass(frozen=True, slots=True)
class Answers:
    """To a query, by client."""

    answers: Mapping[str, bytes | Refused]


@dataclass(frozen=True, slots=True)
class Kept:
    """What clients keep is kept."""


Reply = Asked | Done | Answers | Kept


class Trainer(Protocol):
    """Trains clients in this process. Every trainer gives the same result, within rounding."""

    def train(self, ongoing: ClientsRound) -> None:
        """Have all clients of the round train, and hand in what they send."""

    def close(self) -> None:
        """Let go of threads; safe to call twice."""


class Store(Protocol):
    """What a site's clients keep between rounds."""

    def of_rounds(self, since: Mapping[str, int]) -> Mapping[str, Memory]:
        """Return what clients have kept, each of the round that it last counted in.

        Raises:
            RunFolderError: it is lost.
        """

    def stage(self, round_number: int, memories: Mapping[str, Memory]) -> None:
        """Store what clients will keep once this round counts, before anything leaves them."""

    def keep(self, round_number: int, names: Collection[str]) -> None:
        """Hear whose contributions to this round count."""


@dataclass(slots=True)
class _Outlet:
    """Stops the clients' work where they ask, and collects what they hand in."""

    stop: Callable[[Asked], Answer]
    sent: dict[str, Sent] = field(default_factory=dict)
    memories: dict[str, Memory] = field(default_factory=dict)

    def ask(self, name: str, sent: Mapping[str, Sent] | PlainRows) -> Answer:
        if isinstance(sent, PlainRows):
            raise TypeError("clients side by side have no site of their own")
        return self.stop(Asked(name, sent))

    def hand_in(self, client: str, sent: Sent, memory: Memory) -> None:
        self.sent[client] = sent
        self.memories[client] = memory


class Site:
    """Answers one request at a time."""

    def __init__(
        self,
        clients: Mapping[str, Client],
        trainer: Trainer,
        respondent: Respondent,
        plan: Callable[[State], Plan],
        precision: Floats,
        store: Store,
    ) -> None:
        """Nothing has been asked yet.

        Args:
            clients: who seals and signs, by name.
            trainer: trains them.
            respondent: answers queries.
            plan: what clients send in the round after a state.
            precision: that totals travel in.
            store: what clients keep between rounds.
        """
        self._clients = clients
        self._trainer = trainer
        self._respondent = respondent
        self._plan = plan
        self._precision = precision
        self._store = store
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="site")
        self._work: Pausable[Asked, Answer, Done] | None = None

    def handle(self, request: Request) -> Reply:
        """Return the reply.

        Raises:
            PeerError: it does not fit what was asked before.
            SecureFLError: the clients' work failed.
        """
        match request:
            case Begin():
                return self._begin(request)
            case Continue():
                if self._work is None:
                    raise PeerError("a total that no client has asked for")
                return self._moved(self._work, request.answer)
            case Counted():
                self._store.keep(request.round, request.names)
                return Kept()
            case Ask():
                return Answers(self._answers(request))

    def abandon(self) -> None:
        """End a round that goes on without this site's clients; harmless where there is none."""
        work, self._work = self._work, None
        if work:
            work.dismiss()
            work.wait()

    def close(self) -> None:
        """Let go of threads."""
        self.abandon()
        self._trainer.close()
        self._pool.shutdown()

    def _begin(self, request: Begin) -> Reply:
        self.abandon()
        plan = self._plan(request.state)
        who = request.times, request.since
        context = RoundContext(request.run, request.state, plan, *who, request.in_memory)
        memories = self._store.of_rounds(request.since)

        def train(ask: Callable[[Asked], Answer]) -> Done:
            outlet = _Outlet(ask)
            self._trainer.train(
                ClientsRound(context, self._clients, memories, outlet, self._precision)
            )
            self._store.stage(context.number, outlet.memories)
            return Done(outlet.sent, outlet.memories)

        return self._moved(Pausable(self._pool, train))

    def _answers(self, request: Ask) -> dict[str, bytes | Refused]:
        memories: Mapping[str, Memory] = {}
        if request.query.name in SCORES:
            memories = self._store.of_rounds(request.since)
        about = request.run, request.query, request.state, request.names
        return self._respondent.answers(*about, memories)

    def _moved(self, work: Pausable[Asked, Answer, Done], answer: Answer | None = None) -> Reply:
        self._work = None
        outcome = work.resume(answer)
        if isinstance(outcome, Waiting):
            self._work = work
            return outcome.question
        return outcome.result
