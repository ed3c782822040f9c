"""Site: clients that live in one place, behind one function: a request in, its reply out.

It has its clients' data, models, identities, and the state that they keep between rounds. A worker
process of a simulation is a site of several clients, a process of a consortium one of a single
client.
"""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from securefl.errors import PeerError
from securefl.federation.client import Client
from securefl.federation.clients_round import Answer, ClientsRound, RoundContext
from securefl.federation.contribution import PlainRows, Refused, Sent
from securefl.federation.message import SCORE_MEAN, SCORES
from securefl.federation.pausable import Pausable, Waiting
from securefl.federation.query import Query, Respondent
from securefl.types import ClientState, Floats, Plan, State

# Requests.


@dataclass(frozen=True, slots=True)
class Begin:
    """Request to train clients from a state."""

    run: str
    state: State
    times: Mapping[str, int]
    """Number of times that each client counts; the keys are the site's clients in order."""
    since: Mapping[str, int] = field(default_factory=dict)
    """Last round in which each client counted; it goes on from the state that it kept then."""
    in_memory: frozenset[str] = frozenset()
    """Names of messages that need not be signed."""
    job: str = ""
    """Id of the job: see `RoundContext.job`."""
    past: str = ""
    """Lineage of the models before: see `RoundContext.past`."""


@dataclass(frozen=True, slots=True)
class Continue:
    """Request to go on, with the total that clients have asked for."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Counted:
    """Request to keep the new states of clients whose contributions count."""

    round: int
    names: Collection[str]


@dataclass(frozen=True, slots=True)
class Ask:
    """Request to answer a query under a state."""

    run: str
    query: Query
    state: State
    names: Collection[str]
    since: Mapping[str, int] = field(default_factory=dict)
    """Last rounds: see `Begin.since`."""
    job: str = ""
    """Id of the job: see `RoundContext.job`."""


Request = Begin | Continue | Counted | Ask

# Replies.


@dataclass(frozen=True, slots=True)
class Asked:
    """Reply that clients ask for a sum in the middle of their round."""

    name: str
    sent: Mapping[str, Sent]


@dataclass(frozen=True, slots=True)
class Done:
    """Reply that all clients have trained."""

    sent: Mapping[str, Sent]
    """Contribution of each client, or its refusal; of one that has left before, nothing."""
    client_states: Mapping[str, ClientState] = field(default_factory=dict)
    """States that clients keep once they count; they leave no site of a consortium."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Reply with the clients' answers to a query, by name."""

    answers: Mapping[str, bytes | Refused]


@dataclass(frozen=True, slots=True)
class Kept:
    """Reply that the clients' new states are kept."""


Reply = Asked | Done | Answers | Kept


class Trainer(Protocol):
    """Trainer of clients in this process. All trainers give the same result, within rounding."""

    def train(self, ongoing: ClientsRound) -> None:
        """Have all clients of the round train, and hand in their contributions."""

    def close(self) -> None:
        """End all threads; safe to call twice."""


class Store(Protocol):
    """Storage of the states that a site's clients keep between rounds."""

    def of_rounds(self, since: Mapping[str, int]) -> Mapping[str, ClientState]:
        """Return each client's state of the round in `since`, in which it last counted.

        Raises:
            RunFolderError: a state is lost.
        """

    def stage(self, round_number: int, client_states: Mapping[str, ClientState]) -> None:
        """Store clients' new states of this round, before anything leaves the site."""

    def keep(self, round_number: int, names: Collection[str]) -> None:
        """Keep the staged states of clients whose contributions to this round count."""


@dataclass(slots=True)
class _Outlet:
    """Outlet that pauses the clients' work where they ask, and collects their contributions."""

    stop: Callable[[Asked], Answer]
    sent: dict[str, Sent] = field(default_factory=dict)
    client_states: dict[str, ClientState] = field(default_factory=dict)

    def ask(self, name: str, sent: Mapping[str, Sent] | PlainRows) -> Answer:
        if isinstance(sent, PlainRows):
            raise TypeError("clients side by side have no site of their own")
        left, self.sent = self.sent, {}  # of clients that have left since the sum before
        return self.stop(Asked(name, {**left, **sent}))

    def hand_in(self, client: str, sent: Sent, client_state: ClientState) -> None:
        self.sent[client] = sent
        self.client_states[client] = client_state

    def leave(self, client: str, refused: Refused) -> None:
        self.sent[client] = refused


class Site:
    """Clients of one site, behind `handle`, which takes one request at a time."""

    def __init__(
        self,
        clients: Mapping[str, Client],
        trainer: Trainer,
        respondent: Respondent,
        plan: Callable[[State], Plan],
        precision: Floats,
        store: Store,
    ) -> None:
        """Take the clients, before any request.

        Args:
            clients: clients by name, which seal and sign.
            trainer: trains them.
            respondent: answers queries.
            plan: returns the messages of the round after a state.
            precision: type of the values of totals.
            store: keeps the clients' states between rounds.
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
        """Return the reply to a request.

        Raises:
            PeerError: the request does not follow from those before.
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
        """End the round and all threads."""
        self.abandon()
        self._trainer.close()
        self._pool.shutdown()

    def _begin(self, request: Begin) -> Reply:
        self.abandon()
        plan = self._plan(request.state)
        who = request.times, request.since, request.in_memory, request.job
        context = RoundContext(request.run, request.state, plan, *who, past=request.past)
        client_states = self._store.of_rounds(request.since)

        def train(ask: Callable[[Asked], Answer]) -> Done:
            outlet = _Outlet(ask)
            self._trainer.train(
                ClientsRound(context, self._clients, client_states, outlet, self._precision)
            )
            self._store.stage(context.number, outlet.client_states)
            return Done(outlet.sent, outlet.client_states)

        return self._moved(Pausable(self._pool, train))

    def _answers(self, request: Ask) -> dict[str, bytes | Refused]:
        client_states: Mapping[str, ClientState] = {}
        if request.query.name in {SCORE_MEAN, *SCORES}:
            client_states = self._store.of_rounds(request.since)
        if request.query.name == SCORE_MEAN:
            of_round = request.run, request.state, request.since, request.job
            return self._respondent.scores(*of_round, client_states)
        about = request.run, request.query, request.state, request.names
        return self._respondent.answers(*about, client_states)

    def _moved(self, work: Pausable[Asked, Answer, Done], answer: Answer | None = None) -> Reply:
        self._work = None
        outcome = work.resume(answer)
        if isinstance(outcome, Waiting):
            self._work = work
            return outcome.question
        return outcome.result
