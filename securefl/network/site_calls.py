"""Requests to sites, and what they reply, as bytes: kinds of frames, bodies, and their limits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from securefl.errors import PeerError
from securefl.exchange.blind import BlindTotal
from securefl.federation.lineage import Shown
from securefl.federation.message import claimed_name
from securefl.federation.query import Query
from securefl.federation.remote import Begun, Said
from securefl.federation.round import ServerRound
from securefl.federation.server import Server
from securefl.federation.site import (
    Answers,
    Ask,
    Asked,
    Begin,
    Continue,
    Counted,
    Done,
    Kept,
    Reply,
    Request,
)
from securefl.federation.total import total_bytes
from securefl.federation.transport import Lost, Parts, SiteCall
from securefl.network import bodies
from securefl.network.frames import SMALL, Frame, require_allowed
from securefl.types import MessageSpec, State


@dataclass(slots=True)
class SiteCalls:
    """Maker of sites' calls. Each site is one client, and is sent of models what it lacks."""

    server: Server
    answer_bytes: Callable[[Query, State, str], int] = lambda *_: 0
    """Function that returns the length of a client's answer."""
    _has: dict[str, tuple[object, State]] = field(default_factory=dict)
    """State that each client was sent last, and the connection."""
    _shown: dict[str, tuple[object, int]] = field(default_factory=dict)
    """Round up to which each client knows the models of rounds, and the connection."""

    def of(
        self, requests: Mapping[str, Request], ongoing: ServerRound | None
    ) -> dict[str, SiteCall[Said]]:
        """Return the call of each request; `ongoing` is the round where clients train."""
        tensors = _Tensors()
        return {name: self._call(name, of, ongoing, tensors) for name, of in requests.items()}

    def _call(
        self, name: str, request: Request, ongoing: ServerRound | None, tensors: "_Tensors"
    ) -> SiteCall[Said]:
        match request:
            case Counted():
                return _Notice()
            case Ask():
                size = self.answer_bytes(request.query, request.state, name)
                asked = partial(self._ask, name, request, tensors)
                return _Answered(name, asked, _Answer(name, size))
            case Begin():
                encode = partial(self._begin, name, request, tensors)
            case Continue():
                encode = partial(self._total, name, request)
        if ongoing is None:
            raise RuntimeError("clients train in no round")
        return _Answered(name, encode, _Contributions(name, ongoing, ongoing.possible))

    def _begin(self, name: str, request: Begin, tensors: "_Tensors", connection: object) -> Parts:
        whole, sent = self._lacked(name, connection, request.state, tensors)
        after, shown = self._models(name, connection, request.state.round + 1)
        head = bodies.RoundBegins(
            round=request.state.round + 1,
            times=request.times[name],
            since=request.since[name],
            whole=whole,
            after=after,
            shown=len(shown),
            signature=self.server.lineage.signature if self.server.lineage else "",
        )
        return _kind(Frame.ROUND), bodies.headed(head) + bodies.shown_bytes(shown), sent

    def _ask(self, name: str, request: Ask, tensors: "_Tensors", connection: object) -> Parts:
        whole, sent = self._lacked(name, connection, request.state, tensors)
        head = bodies.QuestionBody(
            round=request.state.round + 1,
            name=request.query.name,
            unit=request.query.unit,
            since=request.since[name],
            whole=whole,
        )
        return _kind(Frame.QUESTION), bodies.headed(head), sent

    def _total(self, name: str, request: Continue, _connection: object) -> Parts:
        opened = request.answer.opened
        if isinstance(opened, BlindTotal):
            return _kind(Frame.TOTAL), opened.for_client(name)
        return _kind(Frame.TOTAL), total_bytes(opened, self.server.plain.dtype)

    def _models(
        self, name: str, connection: object, round_number: int
    ) -> tuple[int, Sequence[Shown]]:
        """Return the models of earlier rounds that a client lacks, and after which round."""
        there, known = self._shown.get(name, (connection, 0))
        after = known if there is connection else 0
        self._shown[name] = connection, round_number
        lineage = self.server.lineage
        return after, lineage.between(after, round_number) if lineage else ()

    def _lacked(
        self, name: str, connection: object, state: State, tensors: "_Tensors"
    ) -> tuple[bool, bytes]:
        """Return whether all tensors are sent, and those that are."""
        known = None
        if name in self._has and self._has[name][0] is connection:
            known = self._has[name][1]
        # Older states are let go of: whoever has one is sent everything.
        self._has = {n: of for n, of in self._has.items() if of[1].round >= state.round - 1}
        self._has[name] = connection, state
        return known is None, tensors.encoded(state, known)


@dataclass(slots=True)
class _Tensors:
    """Tensors as they were encoded last: the same for most of the sites that are called at once."""

    _last: tuple[State | None, State, bytes] | None = None

    def encoded(self, state: State, known: State | None) -> bytes:
        if self._last is None or self._last[0] is not known or self._last[1] is not state:
            self._last = known, state, bodies.state_bytes(state, known)
        return self._last[2]


class _Notice:
    """Call that says whose contributions count, which nobody answers."""

    unanswered = Kept()

    def request(self, _connection: object) -> Parts:
        return (_kind(Frame.COUNTED),)

    def begins(self, _beginning: Parts, _n_bytes: int) -> None:
        raise RuntimeError("nobody answers")

    def read(self, _message: Parts) -> None:
        raise RuntimeError("nobody answers")


class _Messages(Protocol):
    """Messages by which a site answers."""

    @property
    def most_bytes(self) -> int:
        """Most bytes of the next one."""

    def begins(self, start: bytes) -> Begun | None:
        """Take the start of the next one: see `SiteCall.begins`."""

    def read(self, message: bytes) -> Reply | None:
        """Take it, empty where the site has nothing to send: see `SiteCall.read`."""


@dataclass(slots=True)
class _Answered:
    """Call that a site answers by messages, or by leaving the round."""

    name: str
    encode: Callable[[object], Parts] | None
    """Function that returns the request; let go of as it is sent, with what it holds."""
    messages: _Messages
    unanswered: None = field(default=None, init=False)

    def request(self, connection: object) -> Parts:
        encode, self.encode = self.encode, None
        if encode is None:
            raise RuntimeError("a request is sent once")
        return encode(connection)

    def begins(self, beginning: Parts, n_bytes: int) -> Begun | None:
        kind, start = map(bytes, beginning)
        allowed = {Frame.MESSAGE: self.messages.most_bytes, Frame.LEAVE: SMALL, Frame.DONE: 0}
        frame = require_allowed(self.name, kind[0], n_bytes - len(kind), allowed)
        if frame is not Frame.MESSAGE:
            return None
        return self.messages.begins(start)

    def read(self, message: Parts) -> Reply | Lost | None:
        kind, body = map(bytes, message)
        if kind[0] != Frame.LEAVE:
            return self.messages.read(body)
        told = bodies.parsed(bodies.Reason, body, self.name)
        return Lost(f"{self.name}: leaves the round: {told.reason}", diverged=told.diverged)


@dataclass(slots=True)
class _Answer:
    """The one message that answers a question."""

    name: str
    most_bytes: int

    def begins(self, _start: bytes) -> None:
        pass

    def read(self, message: bytes) -> Reply:
        return Answers({self.name: message})


@dataclass(slots=True)
class _Contributions:
    """The message for a sum in mid-round, or all those of the update."""

    name: str
    ongoing: ServerRound
    possible: Sequence[MessageSpec]
    """Messages of which one may come first."""
    asked: str = ""
    """Sum in mid-round that the message is for, as it says."""
    sent: list[bytes] = field(default_factory=list)
    """Messages of the update that have come."""

    @property
    def most_bytes(self) -> int:
        specs = [self._update[len(self.sent)]] if self.sent else self.possible
        return self.ongoing.most_bytes(self.name, specs)

    @property
    def _update(self) -> Sequence[MessageSpec]:
        return self.ongoing.context.plan.update

    def begins(self, start: bytes) -> Begun | None:
        if self.sent:
            return None
        claimed = claimed_name(start)
        if claimed not in {spec.name for spec in self.possible}:
            raise self._other()
        self.asked = "" if self._update and claimed == self._update[0].name else claimed
        return Begun(self.asked)  # also where all has come: it may have to wait for room

    def read(self, message: bytes) -> Reply | None:
        if self.asked:
            return Asked(self.asked, {self.name: [message]})
        if self._update:
            if not (message or self.sent):
                raise self._other()
            self.sent.append(message)
        if len(self.sent) < len(self._update):
            return None
        sent, self.sent = self.sent, []
        return Done({self.name: sent})

    def _other(self) -> PeerError:
        return PeerError(f"{self.name}: sent another message")


def _kind(frame: Frame) -> bytes:
    return bytes([frame])
