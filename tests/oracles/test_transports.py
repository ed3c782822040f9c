"""One function of bytes, whoever carries them: the same calls, by each transport."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import pytest
from by_calls import Between
from here import Here
from hired import require_same_bits
from processes import ANY_PORT, SERVER, Site

from securefl.errors import PeerError
from securefl.federation.site import Kept
from securefl.federation.transport import Lost
from securefl.network.connect import Address, connected, listening
from securefl.network.frames import Frame
from securefl.network.identity import name_of
from securefl.network.limits import Room
from securefl.network.loop_work import LoopWork
from securefl.network.members import Members
from securefl.network.site_transport import SiteTransport
from securefl.nvflare.calls import ByCalls, CalledHere
from securefl.simulation import choice
from securefl.simulation.processes import worker_process
from securefl.simulation.processes.engine import Workers
from securefl.simulation.processes.machines import Wanted
from securefl.simulation.processes.transport import WorkerTransport

pytestmark = pytest.mark.usefixtures("quick", "no_hang")
NAMES = ("alice", "bob", "carol")
ASKS, NOTES, SAYS = (bytes([kind]) for kind in (Frame.ROUND, Frame.COUNTED, Frame.MESSAGE))
MIB = 2**20
DIE, LONG = b"die", b"say more"


@dataclass
class Echo:
    """A site that says what it is told."""

    die: object

    def handle(self, message):
        said = b"".join(message[1:])
        if said == DIE:
            return self.die()
        return [SAYS, bytes(5 * MIB) if said == LONG else said]


@dataclass
class Told:
    """A call of one message, and of one that answers, of so many bytes at most."""

    message: tuple[bytes, ...]
    most_bytes: int = 2**24
    unanswered: Kept | None = None
    connections: list = field(default_factory=list)
    begun: list = field(default_factory=list)
    answer: bytes | None = None

    def request(self, connection):
        self.connections.append(connection)
        return NOTES if self.unanswered else ASKS, *self.message

    def begins(self, beginning, n_bytes):
        self.begun.append((bytes(beginning[0]), n_bytes))
        if n_bytes > self.most_bytes:
            raise PeerError(f"{n_bytes} bytes are too many")
        return "so many"

    def read(self, message):
        kind, *parts = message
        assert bytes(kind) == SAYS
        self.answer = b"".join(parts)
        return Kept()


def gone():
    return None


@contextmanager
def by_workers(machines):
    transport = WorkerTransport(machines, lambda _: partial(Echo, partial(os._exit, 3)))
    try:
        yield transport
    finally:
        transport.close()


@contextmanager
def in_this_process(_made):
    yield WorkerTransport(Here(3), lambda _: partial(Echo, gone))


@contextmanager
def by_pipes(_made):
    with by_workers(worker_process.ThisMachine(Wanted(3, 1, 3))) as transport:
        yield transport


@contextmanager
def by_ray(_made):
    cluster = pytest.importorskip("securefl.simulation.ray.cluster", exc_type=ImportError)
    with by_workers(cluster.Cluster(Wanted(3, 1, 3))) as transport:
        yield transport


async def answering(made, name, to):
    """A site at the other end of a connection."""
    link = await connected(made.identity(name), made.bundle("client"), "server", to, 5.0)
    end = Echo(gone)
    with suppress(PeerError):
        while True:
            received = await link.receive({Frame.ROUND: 2**24, Frame.COUNTED: 8})
            answer = end.handle((bytes([received.frame]), received.body))
            if answer is None:
                break
            if received.frame is Frame.ROUND:
                await link.send(Frame(answer[0][0]), *answer[1:])
    link.close()


@contextmanager
def by_connections(made, at, to):
    """Sites that call from this process; connections live in a thread's event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def waited(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    async def begin():
        members = Members("", "", "", {}, NAMES, 20.0, lambda _: None)

        async def serve(link):
            members.links[link.name] = link
            await link.ended()

        named = partial(name_of, made.bundle("server").transport_holder, role="client")
        hub = made.identity(SERVER, "server")
        door = await listening(hub, named, at, serve, lambda _: None)
        sites = [loop.create_task(answering(made, name, to(door, name))) for name in NAMES]
        while len(members.links) < len(NAMES):
            await asyncio.sleep(0.01)
        return members, door, sites

    async def end(door, sites):
        for link in members.links.values():
            link.close()
        await asyncio.gather(*sites)
        await door.stop()

    members, door, sites = waited(begin())
    try:
        yield SiteTransport(members, LoopWork(loop), Room())
    finally:
        waited(end(door, sites))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def by_grpc(made):
    return by_connections(made, ANY_PORT, lambda door, _name: Address.parse(door.at))


def by_nvflare(made):
    """Its calls: a function of the server's, which sites call."""
    betweens = {name: Between(name) for name in NAMES}

    def publish(desk):
        for between in betweens.values():
            between.desk = desk

    return by_connections(made, CalledHere(publish), lambda _door, name: ByCalls(betweens[name]))


CARRIERS = {
    "this process": in_this_process,
    "pipes": by_pipes,
    "Ray": by_ray,
    "gRPC": by_grpc,
    "NVIDIA FLARE": by_nvflare,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Site(tmp_path_factory.mktemp("made") / "site")


@pytest.fixture(scope="module", params=CARRIERS)
def transport(request, made):
    """Sites that have not ended yet: each test that ends one ends another."""
    with CARRIERS[request.param](made) as transport:
        yield transport


def called(transport, calls):
    """What was heard of each, in order."""
    heard = {name: [] for name in calls}
    transport.call(calls, lambda name, outcome: heard[name].append(outcome))
    return heard


PARTS = {
    "nothing": (b"",),
    "a byte": (b"a",),
    "about a chunk": (b"head", b"", bytes(MIB - 9), memoryview(b"tail")),
    "5 MB": (bytes(range(256)) * 20_000,),
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_the_same_bytes_go_and_come_back(transport, parts):
    """Each site has its own; of a reply the length is known before it is read."""
    calls = {name: Told((name.encode(), *parts)) for name in NAMES}
    heard = called(transport, calls)
    for name, call in calls.items():
        sent = name.encode() + b"".join(parts)
        assert call.answer == sent
        assert [(kind[:1], n) for kind, n in call.begun] == [(SAYS, 1 + len(sent))]
        assert heard[name] == ["so many", Kept()]


def test_a_request_whose_reply_says_nothing_has_its_outcome(transport):
    """And no later call has its reply."""
    assert called(transport, {"alice": Told((b"so",), unanswered=Kept())})["alice"] == [Kept()]
    after = Told((b"hello",))
    called(transport, {"alice": after})
    assert after.answer == b"hello"


def test_a_reply_that_is_too_long_is_refused_by_its_beginning(transport):
    """Of a connection a chunk is read and no more; the other site is heard."""
    calls = {"carol": Told((LONG,), most_bytes=MIB), "bob": Told((b"well",))}
    by_connection = isinstance(transport, SiteTransport)
    link = transport.members.links["carol"] if by_connection else None
    before = link.traffic.received_bytes if link else 0
    heard = called(transport, calls)
    assert heard["carol"] == [Lost(f"{5 * MIB + 1} bytes are too many")]
    assert calls["carol"].answer is None
    assert heard["bob"][-1] == Kept()
    assert calls["bob"].answer == b"well"
    if link:
        assert link.traffic.received_bytes - before <= MIB
        assert "carol" not in transport.members.links


def test_a_call_is_let_go_of_with_its_outcome(made):
    """Also of a site that is lost: what it has said before goes with it."""
    made_, alive = {}, {}

    def call(name, message):
        told = Told((message,))
        made_[name] = weakref.ref(told)
        return told

    def heard(name, outcome):
        if not isinstance(outcome, str):
            alive[name] = made_[name]() is not None

    with by_grpc(made) as transport:
        transport.call({name: call(name, m) for name, m in (("alice", DIE), ("bob", b"so"))}, heard)
    assert alive == {"alice": False, "bob": False}


def test_a_site_that_ends_is_lost_and_the_other_is_heard(transport):
    """Nothing is raised; a site that comes back has another connection."""
    first, again = Told((b"hello",)), Told((b"hello",))
    called(transport, {"alice": first})
    called(transport, {"alice": again})
    assert first.connections == again.connections
    calls = {"alice": Told((DIE,)), "bob": Told((b"well",))}
    heard = called(transport, calls)
    (lost,) = heard["alice"]
    assert isinstance(lost, Lost)
    assert "alice" in lost.reason
    assert calls["bob"].answer == b"well"
    after = Told((b"hello",))
    (*_, outcome) = called(transport, {"alice": after})["alice"]
    if isinstance(transport, WorkerTransport):
        assert outcome == Kept()
        assert after.connections[0] is not first.connections[0]
    else:  # a site calls by itself
        assert outcome == Lost("alice: is not connected")


@pytest.mark.parametrize("settings", [("algorithm.name=fedtan",), ("exchange.encrypt=model",)])
def test_a_federation_in_this_process_by_bytes_has_the_bits_of_one_without(monkeypatch, settings):
    """Requests and replies are bytes; no object is shared."""
    monkeypatch.setattr(choice, "ThisMachine", lambda _wanted: Here())
    require_same_bits(settings)


def test_an_engine_that_nobody_holds_any_more_ends_its_workers():
    """Whoever has it closes it; a script's error may have come first."""

    class Echoing(Here):
        def worker(self, make):
            return super().worker(partial(Echo, gone))

    engine = Workers(SimpleNamespace(data={"client-1": None}), {}, None, "float64", Echoing(1))
    transport = engine._transport
    called(transport, {"0": Told((b"hello",))})
    (worker,) = transport._workers.values()
    assert worker.end_
    del engine
    assert worker.end_ is None
