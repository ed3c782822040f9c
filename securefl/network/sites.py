"""Clients in other processes, as the loop of rounds sees them: asked over their connections.

The loop runs in a thread of its own; connections live in the event loop, and each call waits there.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from securefl.errors import PeerError
from securefl.exchange.blind import BlindTotal
from securefl.federation.contribution import Refused
from securefl.federation.incidents import Incident
from securefl.federation.lineage import Shown
from securefl.federation.message import claimed_name
from securefl.federation.query import Query
from securefl.federation.remote import Begun, Lost, Outcome, RemoteRound, answers, counted
from securefl.federation.round import OpenSum, ServerRound
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
    Request,
)
from securefl.federation.total import total_bytes
from securefl.network import bodies
from securefl.network.authority_line import STOPPED
from securefl.network.frames import Frame, Link
from securefl.network.identity import name_of
from securefl.network.limits import Place, Room
from securefl.network.members import Members
from securefl.network.monitor import TRAIN, WAIT
from securefl.network.saying import Warned
from securefl.network.trust import TrustedBundle
from securefl.types import ClientState, State

Result = TypeVar("Result")


@dataclass(slots=True)
class NetworkSites:
    """`Engine` and `Transport` over connections; each site is one client, by its name."""

    loop: asyncio.AbstractEventLoop
    members: Members
    server: Server
    bundle: Callable[[], TrustedBundle]
    """Function that returns the bundle in force."""
    for_clients: Callable[[], tuple[tuple[int, int], str]]
    """Function that returns the newest bundle for clients, by its age."""
    quorum: int
    """Number of clients without whom no round begins."""
    wait_s: float
    """Seconds that a round waits for them; infinite where it waits as long as it takes."""
    joining_s: float
    """Seconds for all clients to join, before the first round, or each of a reproducible run."""
    reproducible: bool
    """True where the run goes on with all its clients, or ends where it can be resumed."""
    say: Callable[[str], None]
    answer_bytes: Callable[[Query, State, str], int] = lambda *_: 0
    """Function that returns the length of a client's answer."""
    phase: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()
    """Counts the time of a phase."""
    joined: Mapping[str, int] = field(default_factory=dict)
    """First round of each client that has joined in mid-study."""
    since: Callable[[], Mapping[str, int]] = dict
    """The last round of each client whose contributions counted."""
    missing: Callable[[Collection[str]], Sequence[str]] = lambda _here: ()
    """Returns the clients that a round waits for beside a quorum, of those that are here."""
    room: Room = field(default_factory=Room)
    """Room for contributions that come before their turn."""
    in_memory: bool = False
    _stopped: bool = False
    _call: asyncio.Task[Any] | None = None
    """Call that the loop of rounds waits for."""
    _home: dict[str, str] = field(default_factory=dict)
    _has: dict[str, tuple[Link, State]] = field(default_factory=dict)
    """State that each client was sent last, and the connection."""
    _shown: dict[str, tuple[Link, int]] = field(default_factory=dict)
    """Round up to which each client knows the models of rounds, and the connection."""
    _encoded: tuple[State | None, State, bytes] | None = None
    """Two states, and the bytes of their difference, as they were sent last."""
    _begun: bool = False

    # The loop of rounds calls these, from its thread.

    @property
    def client_states(self) -> Mapping[str, ClientState]:
        """States of clients, of which each keeps its own: see `Engine.client_states`."""
        return {}

    def restore(self, client_states: Mapping[str, ClientState]) -> None:
        """Restore nothing, as each client has its own: see `Engine.restore`."""

    def present(self, round_number: int, names: Sequence[str]) -> Sequence[str]:
        """Return the present clients, see `Engine.present`, after giving them keys and roster.

        Raises:
            PeerError: the server is being stopped, or a client of a reproducible run is missing.
        """
        with self.phase(WAIT):
            here = set(self._waited(self._present(round_number, names)))
        return [name for name in names if name in here]

    def connected(self) -> list[str]:
        """Return the clients that are connected now, in the roster's order."""
        return self._waited(self._connected())

    def train(self, ongoing: ServerRound, open_sum: OpenSum) -> None:
        """Train the round: see `Engine.train`."""
        RemoteRound(self, self._home, ongoing, open_sum).run()

    def counted(self, ongoing: ServerRound) -> None:
        """Keep the new states: see `Engine.counted`."""
        counted(self, ongoing, self._home)

    def answers(
        self, run: str, query: Query, state: State, names: Collection[str]
    ) -> Mapping[str, bytes | Refused]:
        """Answer a query: see `Engine.answers`."""
        return answers(
            self,
            self._home,
            Ask(run, query, state, names, self._last_rounds(names), self.server.job),
        )

    def _last_rounds(self, names: Collection[str]) -> dict[str, int]:
        return {name: self.since().get(name, 0) for name in names}

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Leave clients out: see `Engine.leave_out`."""
        self._waited(self._send_home(reasons))

    def close(self) -> None:
        """Close, see `Engine.close`: whoever has opened the door closes it."""

    def call(
        self,
        requests: Mapping[str, Request],
        heard: Callable[[str, Outcome], None],
        ongoing: ServerRound | None = None,
    ) -> None:
        """Call the sites: see `Transport.call`."""
        replies = SimpleQueue[tuple[str, Outcome] | None]()

        def hear_next() -> bool:  # the reply is let go of before the next is waited for
            if (reply := replies.get()) is not None:
                heard(*reply)
            return reply is not None

        if ongoing:
            self.loop.call_soon_threadsafe(self.room.begin, ongoing.awaited)
        with self.phase(TRAIN):
            called = self._submitted(self._called(requests, ongoing, replies))
            called.add_done_callback(lambda _: replies.put(None))
            while hear_next():
                if ongoing and self.room.keep_for(ongoing.awaited):
                    self.loop.call_soon_threadsafe(self.room.wake)
            called.result()

    def _waited(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._submitted(work).result()

    def _submitted(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        return asyncio.run_coroutine_threadsafe(self._unless_stopped(work), self.loop)

    # In the event loop.

    async def stop(self) -> None:
        """End what is waited for, and refuse whatever comes after it."""
        self._stopped = True
        if self._call:
            self._call.cancel()
            await asyncio.wait({self._call})  # until nobody reads from a connection any more

    async def _unless_stopped(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._stopped:
            work.close()
            raise PeerError(STOPPED)
        self._call = call = self.loop.create_task(work)
        try:
            return await call
        except asyncio.CancelledError:
            raise PeerError(STOPPED) from None

    async def _present(self, round_number: int, names: Sequence[str]) -> list[str]:
        members, first = self.members, not self._begun
        self.server.roster = self.bundle().clients()
        later = {name for name, number in self.joined.items() if number > round_number}
        due = [name for name in names if name not in later]
        awaited = [name for name in due if name in self.server.roster.names]
        if first or self.reproducible:
            self._begun = True
            await members.all_here(awaited, self.joining_s)
        if math.isinf(self.wait_s) or not (first or self.reproducible):
            await self._wait_on(round_number, awaited)
        here = members.here()
        await self._send_home({n: f"{n}: left out of this run" for n in here if n not in names})
        here, gone = {n: link for n, link in here.items() if n in names}, dict[str, str]()
        here = {n: link for n, link in here.items() if n not in later}
        for name, link in here.items():
            try:
                name_of(self.bundle().transport_holder, link.certificate, "client")
            except PeerError as error:
                gone[name] = str(error)
        await self._send_home(gone)
        here = {name: link for name, link in here.items() if name not in gone}
        if first:
            gone = {}  # who is none at first takes no part
            if missing := sorted(set(names) - later - here.keys()):
                self.say(Warned(f"Beginning without {', '.join(missing)}"))
        lost = await members.bring_up_to(here, *self.for_clients())
        for name, why in (gone | {name: what.reason for name, what in lost.items()}).items():
            self.server.report(Incident(round_number, "model", name, f"{name}: {why}"))
        self._home = {name: name for name in names}
        present = [name for name in here if name not in lost]
        absent = [name for name in awaited if name not in present]
        if self.reproducible and absent:
            raise cannot_go_on(f"{', '.join(absent)}: not connected")
        if len(present) >= self.quorum:  # else the round passes or ends, and says of whom
            for name in absent:
                if name not in lost and name not in gone:
                    self.server.report(_away(round_number, name))
        return present

    async def _wait_on(self, round_number: int, awaited: Sequence[str]) -> None:
        """Wait for a quorum, or for all clients of a reproducible run."""
        members, wanted = self.members, len(awaited) if self.reproducible else self.quorum
        if not members.are_here(awaited, wanted):
            away = ", ".join(name for name in awaited if name not in members.here())
            long = "as long as it takes" if math.isinf(self.wait_s) else f"{self.wait_s:g} s"
            whom = "all clients" if self.reproducible else "a quorum"
            self.say(Warned(f"Round {round_number} waits {long} for {whom}; away: {away}"))
            await members.all_here(awaited, self.wait_s, wanted)
        here = [name for name in awaited if name in members.here()]
        missing = await asyncio.to_thread(self.missing, here)  # a search of lists takes long
        if missing := [name for name in missing if name in awaited]:
            self.say(
                Warned(
                    f"Round {round_number} waits for {', '.join(missing)}: totals at this model "
                    "were opened with them, and without them show too few"
                )
            )
            await members.all_here(missing, self.wait_s)

    async def _connected(self) -> list[str]:
        return list(self.members.here())

    async def _send_home(self, reasons: Mapping[str, str]) -> None:
        for name, why in reasons.items():
            if link := self.members.links.get(name):
                await self.members.send_home({name: link}, why)

    async def _called(
        self,
        requests: Mapping[str, Request],
        ongoing: ServerRound | None,
        replies: SimpleQueue[tuple[str, Outcome] | None],
    ) -> None:
        async def one(name: str, request: Request) -> None:
            def said(outcome: Outcome) -> None:
                replies.put((name, outcome))

            if isinstance(outcome := await self._one(name, request, ongoing, said), Lost):
                self.room.let_go(name)
            said(outcome)

        await asyncio.gather(*(one(*item) for item in requests.items()))

    async def _one(
        self,
        name: str,
        request: Request,
        ongoing: ServerRound | None,
        said: Callable[[Outcome], None],
    ) -> Outcome:
        link = self.members.links.get(name)
        if link is None:
            return Lost(f"{name}: is not connected")
        lost = await self._sent(name, link, request)
        self._encoded = None  # whoever is still being sent it has it
        if lost:
            return lost
        if isinstance(request, Counted):
            return Kept()
        if isinstance(request, Ask):
            size = self.answer_bytes(request.query, request.state, name)
            answer = await self.members.next_message(name, link, size)
            if isinstance(answer, Lost):
                return answer
            return Answers({name: answer})
        if ongoing is None:
            raise RuntimeError("clients train in no round")
        return await self._trained(name, link, ongoing, said)

    async def _sent(self, name: str, link: Link, request: Request) -> Lost | None:
        tensors = b""
        match request:
            case Begin():
                whole, tensors = self._tensors(name, link, request.state)
                after, shown = self._models(name, link, request.state.round + 1)
                begins = bodies.RoundBegins(
                    round=request.state.round + 1,
                    times=request.times[name],
                    since=request.since[name],
                    whole=whole,
                    after=after,
                    shown=len(shown),
                    signature=self.server.lineage.signature if self.server.lineage else "",
                )
                frame, body = Frame.ROUND, bodies.headed(begins) + bodies.shown_bytes(shown)
            case Ask():
                whole, tensors = self._tensors(name, link, request.state)
                question = bodies.QuestionBody(
                    round=request.state.round + 1,
                    name=request.query.name,
                    unit=request.query.unit,
                    since=request.since[name],
                    whole=whole,
                )
                frame, body = Frame.QUESTION, bodies.headed(question)
            case Continue():
                opened, frame = request.answer.opened, Frame.TOTAL
                if isinstance(opened, BlindTotal):
                    body = opened.for_client(name)
                else:
                    body = total_bytes(opened, self.server.plain.dtype)
            case Counted():
                frame, body = Frame.COUNTED, b""
        return (await self.members.send({name: link}, frame, body, tensors)).get(name)

    def _models(self, name: str, link: Link, round_number: int) -> tuple[int, Sequence[Shown]]:
        """Return the models of earlier rounds that a client lacks, and after which round."""
        there, known = self._shown.get(name, (link, 0))
        after = known if there is link else 0
        self._shown[name] = link, round_number
        lineage = self.server.lineage
        return after, lineage.between(after, round_number) if lineage else ()

    def _tensors(self, name: str, link: Link, state: State) -> tuple[bool, bytes]:
        """Return whether all tensors are sent, and those that are."""
        known = None
        if name in self._has and self._has[name][0] is link:
            known = self._has[name][1]
        # Older states are let go of: whoever has one is sent everything.
        self._has = {n: of for n, of in self._has.items() if of[1].round >= state.round - 1}
        self._has[name] = link, state
        if self._encoded is None or self._encoded[0] is not known or self._encoded[1] is not state:
            self._encoded = known, state, bodies.state_bytes(state, known)
        return known is None, self._encoded[2]

    async def _trained(
        self, name: str, link: Link, ongoing: ServerRound, said: Callable[[Outcome], None]
    ) -> Outcome:
        """Return what a client sends next: for a sum, or all messages of its update."""
        possible, update, asked = ongoing.possible, ongoing.context.plan.update, ""

        def begins(beginning: bytes, to_come_bytes: int) -> None:
            nonlocal asked
            claimed = claimed_name(beginning)
            if claimed not in {spec.name for spec in possible}:
                raise _other_message(name)
            asked = "" if update and claimed == update[0].name else claimed
            if to_come_bytes:
                said(Begun(asked))

        place, size = Place(self.room, name, link, begins), ongoing.most_bytes(name, possible)
        first = await self.members.next_message(name, link, size, place)
        if isinstance(first, Lost):
            return first
        if asked:
            return Asked(asked, {name: [first]})
        if update and not first:
            self.members.drop(name, link)
            return Lost(str(_other_message(name)))
        sent = [first] if first else []
        for spec in update[1:]:
            size = ongoing.most_bytes(name, [spec])
            message = await self.members.next_message(name, link, size, place)
            if isinstance(message, Lost):
                return message
            sent.append(message)
        return Done({name: sent})


def cannot_go_on(without: str) -> PeerError:
    """Return the error that ends a reproducible run, which would end elsewhere without a client."""
    return PeerError(
        f"{without}: run.reproducible goes on with all clients or not at all: start those that "
        "have ended, then this server, each with the same command"
    )


def _away(round_number: int, name: str) -> Incident:
    return Incident(round_number, "round", name, f"{name}: is not connected as the round begins")


def _other_message(name: str) -> PeerError:
    return PeerError(f"{name}: sent another message")
