"""Contributions are added as they arrive, and in the order of the clients all the same."""

import asyncio
import sys
import tracemalloc
from itertools import permutations

import pytest
import torch

from securefl.algorithms.algorithm import update_messages
from securefl.exchange.plain import PlainChannel
from securefl.federation.client import Client
from securefl.federation.clients_round import RoundContext
from securefl.federation.message import Roster
from securefl.federation.remote import Sites
from securefl.federation.round import ServerRound
from securefl.federation.server import Server
from securefl.federation.site import Done
from securefl.federation.transport import Lost
from securefl.network.frames import Frame, Link
from securefl.types import Kind, MessageSpec, Plan, State

RUN, NAMES = "ab" * 32, ("alice", "bob", "carol", "dora")
PLAIN = PlainChannel("float64")
STATE = State(0, {Kind.PARAMETERS: {"w": torch.zeros(1000, dtype=torch.float64)}})
PLAN = Plan(update=update_messages(STATE.tensors))


class Arrivals:
    """Sites that answer in an order; who has no message is lost."""

    def __init__(self, order, messages):
        self.order, self.messages = order, messages
        self.held = []
        """After each arrival, the clients whose bytes somebody else holds."""

    def call(self, calls, heard, awaited):
        assert {*calls} == {*self.order}
        assert awaited() == [*calls]
        for name in self.order:
            sent = self.messages.get(name)
            heard(name, Done({name: [sent]}) if sent else Lost(f"{name}: gone"))
            del sent
            ours = sys.getrefcount(object()) + 1  # of the mapping
            held = [n for n in self.messages if sys.getrefcount(self.messages[n]) > ours]
            self.held.append(held)


@pytest.fixture(scope="module")
def clients():
    return {name: Client(name, 0.25, dict.fromkeys(Kind, PLAIN)) for name in NAMES}


def total(clients, order, names=NAMES, without=()):
    """The sum's bits, what was held on the way, and why clients do not count."""
    roster, incidents = Roster({n: c.identity for n, c in clients.items()}), []
    adders = dict.fromkeys(Kind, PLAIN)
    server = Server(RUN, roster, adders, plain=PLAIN, report=incidents.append)
    ongoing = ServerRound(server, RoundContext(RUN, STATE, PLAN, dict.fromkeys(names, 1)))
    messages, (spec,) = {}, PLAN.update
    for number, name in enumerate(NAMES):
        if name not in without:
            rng = torch.Generator().manual_seed(number)
            values = {"w": torch.randn(1000, generator=rng, dtype=torch.float64) * 10.0**number}
            about = RUN, 1, spec, values, 1, ongoing.received_by(name)
            messages[name] = clients[name].contribute(*about, model=ongoing.context.model)
    arrivals = Arrivals(order, messages)
    sites = Sites(arrivals, lambda requests, _: requests, {name: name for name in names})
    sites.train(ongoing, None)
    found = ongoing.totals()[Kind.PARAMETERS]
    assert found.n_clients == len(messages)
    return found.values["w"], arrivals.held, [of.reason for of in incidents]


@pytest.mark.parametrize("order", [*permutations(NAMES)])
def test_the_order_of_arrival_changes_no_bit(clients, order):
    """Who came before its turn is held until then, and nobody for longer."""
    wanted, _, _ = total(clients, NAMES)
    found, held, _ = total(clients, order)
    assert torch.equal(found, wanted)
    for n, early in enumerate(held, 1):
        come = order[:n]
        in_turn = next((i for i, name in enumerate(NAMES) if name not in come), len(NAMES))
        assert early == [name for name in NAMES[in_turn:] if name in come]


def test_another_order_of_the_clients_would_change_bits(clients):
    wanted, _, _ = total(clients, NAMES)
    found, _, _ = total(clients, NAMES, names=NAMES[::-1])
    assert not torch.equal(found, wanted)
    assert torch.allclose(found, wanted)


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1]])
def test_who_is_lost_holds_up_nobody(clients, order):
    """And the bits are those of a round without it."""
    found, held, why = total(clients, order, without=("alice", "carol"))
    wanted, _, _ = total(clients, ("dora", "bob"), ("bob", "dora"), without=("alice", "carol"))
    assert torch.equal(found, wanted)
    assert why == ["alice: gone", "carol: gone"]
    assert held[-1] == []


def most_bytes(work):
    """The most memory that Python and numpy have had at once for it."""
    tracemalloc.start()
    try:
        made = work()
        return made, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class Chunked:
    """A stream that hands on what is written."""

    over = False

    def __init__(self):
        self.closed = asyncio.Event()
        self.chunks = asyncio.Queue(1)

    async def read(self):
        return await self.chunks.get()

    async def write(self, chunk):
        await self.chunks.put(chunk)


def test_a_large_contribution_is_copied_no_more_than_it_must_be(clients):
    """Sealed: payload and message. On its way: what has come of it. Added: the new sum."""
    spec = MessageSpec("update/parameters", Kind.PARAMETERS, 10**6)
    values, size = {"w": torch.randn(10**6, dtype=torch.float64)}, 8 * 10**6
    alice = clients["alice"]
    message, most = most_bytes(lambda: alice.contribute(RUN, 1, spec, values))
    assert most < 2.1 * size

    bodies = []

    async def carried():
        link = Link("alice", Chunked(), None)
        sending = asyncio.create_task(link.send(Frame.MESSAGE, b"head", message))
        bodies.append((await link.receive({Frame.MESSAGE: 2 * size})).body)
        await sending

    _, most = most_bytes(lambda: asyncio.run(carried()))
    assert bodies == [b"head" + message]
    assert most < 1.6 * size  # with what is under way, and room for an eighth more
    running = Server(RUN, Roster({"alice": alice.identity}), {Kind.PARAMETERS: PLAIN}).start(
        1, spec
    )
    _, most = most_bytes(lambda: running.receive(message))
    assert most < 1.1 * size
