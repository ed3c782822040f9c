"""Contributions that come before their turn have a bounded room; who waits for it loses nothing."""

import asyncio
import struct
import time

import pytest
import torch

from securefl.algorithms.algorithm import update_messages
from securefl.errors import PeerError
from securefl.exchange.plain import PlainChannel
from securefl.federation.client import Client
from securefl.federation.clients_round import RoundContext
from securefl.federation.message import Roster
from securefl.federation.round import ServerRound
from securefl.federation.server import Server
from securefl.network.frames import Frame, Link
from securefl.network.limits import Room
from securefl.network.members import Members
from securefl.network.sites import NetworkSites
from securefl.types import Kind, MessageSpec, Plan, State

pytestmark = pytest.mark.usefixtures("no_hang")

RUN = "ab" * 32
NAMES = tuple(f"site-{i:02}" for i in range(12))
PLAIN = PlainChannel("float64")
N_VALUES, CHUNK_BYTES = 5000, 2000
STATE = State(0, {Kind.PARAMETERS: {"w": torch.zeros(N_VALUES, dtype=torch.float64)}})
UPDATE = update_messages(STATE.tensors)
SUM = MessageSpec("sum/mid", Kind.STATISTICS, N_VALUES)
MESSAGE_BYTES = 8 * N_VALUES + 1000
"""More than a message has."""
BUDGET_BYTES = 2 * MESSAGE_BYTES
LIMIT_S = 0.5
HEAD = struct.Struct(">BI")
CLIENTS = {name: Client(name, 1 / 12, dict.fromkeys(Kind, PLAIN)) for name in NAMES}


class Line:
    """A client's connection, on which it answers each request as `sends` has it."""

    def __init__(self, name, sends):
        self.name, self.sends = name, sends
        self.closed = asyncio.Event()
        self.over = False
        self.chunks = asyncio.Queue(1)
        self.sending = []
        self.ongoing = None

    def message(self, spec):
        number = NAMES.index(self.name)
        rng = torch.Generator().manual_seed(number)
        values = {"w": torch.randn(N_VALUES, generator=rng, dtype=torch.float64) * 3.0**number}
        about = RUN, 1, spec, values, 1, self.ongoing.received_by(self.name)
        return CLIENTS[self.name].contribute(*about, model=self.ongoing.context.model)

    async def write(self, chunk):
        if chunk[0] in {Frame.ROUND, Frame.TOTAL}:
            spec = SUM if chunk[0] == Frame.ROUND and self.ongoing.due else UPDATE[0]
            body = self.message(spec)
            framed = HEAD.pack(Frame.MESSAGE, len(body)) + body
            chunks = [framed[i : i + CHUNK_BYTES] for i in range(0, len(framed), CHUNK_BYTES)]
            self.sending.append(asyncio.ensure_future(self.sends(self, chunks)))

    async def send(self, *chunks):
        for chunk in chunks:
            await self.chunks.put(chunk)

    async def read(self):
        coming, closed = (asyncio.ensure_future(x) for x in (self.chunks.get(), self.closed.wait()))
        await asyncio.wait({coming, closed}, return_when=asyncio.FIRST_COMPLETED)
        closed.cancel()
        if coming.done():
            return coming.result()
        coming.cancel()
        raise PeerError("has closed the connection")

    def close(self):
        self.over = True
        self.closed.set()
        for task in self.sending:
            task.cancel()


# What clients may do with their chunks.


async def at_once(line, chunks):
    await line.send(*chunks)


async def never(line, chunks):
    del line, chunks


async def announces_and_stalls(line, chunks):
    await line.send(chunks[0])


async def stalls_at_the_end(line, chunks):
    await line.send(*chunks[:-1])


async def hangs_up(line, chunks):
    await line.send(*chunks[:-4])
    await asyncio.sleep(0.05)
    line.close()


async def slowly(line, chunks):
    """Ends within its limit, and not by much."""
    await line.send(*chunks[:-1])
    await asyncio.sleep(0.7 * LIMIT_S)
    await line.send(chunks[-1])


class Round:
    """One round of so many sites, over connections that a test speaks on."""

    def __init__(self, names, budget_bytes=BUDGET_BYTES, sums=(), /, **sends):
        self.names, self.sums = names, sums
        self.sends = {n.replace("_", "-"): how for n, how in sends.items()}
        self.room = Room(budget_bytes)
        self.incidents = []
        self.held_when_lost = None
        asyncio.run(self._run())

    async def _run(self):
        roster = Roster({n: CLIENTS[n].identity for n in self.names})
        report = self.incidents.append
        server = Server(RUN, roster, dict.fromkeys(Kind, PLAIN), plain=PLAIN, report=report)
        plan = Plan(sums=self.sums, update=UPDATE)
        ongoing = ServerRound(server, RoundContext(RUN, STATE, plan, dict.fromkeys(self.names, 1)))
        members = Members(RUN, "", RUN, {}, self.names, LIMIT_S, lambda _: None)
        lines = {n: Line(n, self.sends.get(n, at_once)) for n in self.names}
        for line in lines.values():
            line.ongoing = ongoing
        members.links = {n: Link(n, line, None) for n, line in lines.items()}
        sites = NetworkSites(
            asyncio.get_running_loop(),
            members,
            server,
            bundle=None,
            for_clients=None,
            quorum=1,
            wait_s=0.0,
            joining_s=0.0,
            reproducible=False,
            say=None,
            room=self.room,
        )
        begun = time.monotonic()
        await asyncio.to_thread(sites.train, ongoing, None)
        self.seconds = time.monotonic() - begun
        self.counted = ongoing.counted
        self.total = ongoing.totals()[Kind.PARAMETERS].values["w"]
        for line in lines.values():
            line.close()

    @property
    def lost(self):
        return {of.client: of.reason for of in self.incidents}


def other(*names):
    return tuple(name for name in NAMES if name not in names)


@pytest.mark.parametrize("sums", [(), (SUM,)], ids=["an update", "a sum in mid-round"])
def test_what_is_held_does_not_grow_with_the_sites(sums):
    """All send at once; the first is the last to end."""
    most = {}
    for n in (3, 6, 12):
        found = Round(NAMES[:n], BUDGET_BYTES, sums, site_00=slowly)
        wanted = Round(NAMES[:n], 10**9, sums)
        assert found.counted == NAMES[:n]
        assert torch.equal(found.total, wanted.total)
        assert found.room.held_bytes == 0
        most[n] = found.room.most_bytes
    assert most[3] <= most[6] <= most[12] + CHUNK_BYTES
    assert BUDGET_BYTES < most[12] <= BUDGET_BYTES + MESSAGE_BYTES
    without = Round(NAMES, 10**9, sums, site_00=slowly)
    assert without.room.most_bytes > 11 * 8 * N_VALUES


@pytest.mark.parametrize("sums", [(), (SUM,)], ids=["an update", "a sum in mid-round"])
def test_nobody_waits_for_what_is_whole_and_has_no_room(monkeypatch, sums):
    """Messages of one chunk: which sum they are for is said before they wait."""
    monkeypatch.setitem(globals(), "CHUNK_BYTES", 10**6)
    found = Round(NAMES, BUDGET_BYTES, sums)
    assert found.counted == NAMES
    assert found.room.most_bytes <= BUDGET_BYTES + MESSAGE_BYTES


def test_a_message_alone_may_be_larger_than_the_room():
    found = Round(NAMES[:4], 3 * CHUNK_BYTES)
    assert found.counted == NAMES[:4]
    assert found.room.most_bytes <= 3 * CHUNK_BYTES + MESSAGE_BYTES


@pytest.mark.parametrize("sums", [(), (SUM,)], ids=["an update", "a sum in mid-round"])
@pytest.mark.parametrize(
    "stalls", [never, announces_and_stalls, stalls_at_the_end, hangs_up], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("who", ["site-00", "site-01", "site-11"])
def test_who_stalls_is_out_by_its_own_limit_and_nobody_else(sums, stalls, who):
    """In whatever turn: the others wait as long, which is not counted against them."""
    found = Round(NAMES, BUDGET_BYTES, sums, **{who.replace("-", "_"): stalls})
    late, gone = f"{who}: late, nothing came within 0.5 s", f"{who}: has closed the connection"
    assert found.lost == {who: gone if stalls is hangs_up else late}
    assert found.counted == other(who)
    assert found.seconds < 2.5 * LIMIT_S
    assert found.room.held_bytes == 0


def test_waiting_for_room_is_no_time_of_the_sites():
    """Four in a row take longer than anybody has; those behind them have sent all they could."""
    slow = dict.fromkeys(("site_00", "site_03", "site_06", "site_09"), stalls_then_ends)
    found = Round(NAMES, **slow)
    assert found.seconds > 2 * LIMIT_S
    assert found.counted == NAMES
    assert found.lost == {}


async def stalls_then_ends(line, chunks):
    """Waits before its end, once all before it has been read."""
    await line.send(*chunks[:-2])
    while not line.chunks.empty():
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.7 * LIMIT_S)
    await line.send(*chunks[-2:])


def test_sites_that_announce_and_stall_take_no_room_of_others():
    """Nine of twelve: all are out at once, as what they have not sent takes no room."""
    liars = NAMES[:9]
    found = Round(NAMES, **{n.replace("-", "_"): announces_and_stalls for n in liars})
    assert {*found.lost} == {*liars}
    assert found.counted == other(*liars)
    assert found.seconds < 2 * LIMIT_S


def test_who_is_lost_while_it_waits_leaves_its_room_to_others():
    """Before its turn: all that it had sent is let go of as its connection ends."""

    async def lost():
        room, line = Room(10), Line("late", never)
        room.begin(["first", "late", "last"])
        room.hold("late", 8)
        waits = asyncio.ensure_future(room.wait("late", 8, Link("late", line, None)))
        other = asyncio.ensure_future(room.wait("last", 8, Link("last", Line("last", never), None)))
        await asyncio.sleep(0.01)
        assert [waits.done(), other.done(), room.fits("last", 8)] == [False] * 3
        assert room.fits("first", 10**9)
        line.close()
        await waits
        assert not other.done()
        room.let_go("late")
        await other

    asyncio.run(lost())
