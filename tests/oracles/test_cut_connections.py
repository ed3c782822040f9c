"""A federation whose connections are cut all the time ends as one that nothing happens to."""

import asyncio
import random

import pytest
import torch
from over_loopback import model_of
from processes import ANY_PORT, SERVER, Loop, Site, messages

import securefl.network.resumable
from securefl.network.connect import Address, connected, listening
from securefl.network.frames import Frame
from securefl.runs.folder_reader import read_run

pytestmark = pytest.mark.usefixtures("quick", "no_hang")
PARTIES = ("alice", "bob", "carol", "authority")
ROUNDS = 10


@pytest.fixture
def proxied(benchmark, monkeypatch):
    """Has each party call through a proxy of its own; gives the proxy, once a server listens."""
    faults, reached, proxies = benchmark("faults"), Address._reached, []

    async def by_proxy(self, end, identity, trust, role):
        if not proxies:
            proxies.append(faults.Proxy(str(self), PARTIES))
        to = Address.parse(proxies[0].addresses[identity.name])
        return await reached(to, end, identity, trust, role)

    monkeypatch.setattr(Address, "_reached", by_proxy)
    yield proxies
    for proxy in proxies:
        proxy.close()


def again(loop):
    return sum("has called again after a cut" in line for line in loop.said)


def joined(loop):
    return sorted(line.split(",")[0] for line in loop.said if "has joined" in line)


def cuts(proxied, rng, done, parties=PARTIES):
    """Cuts somebody's connection at random moments."""

    async def all_the_time(loop):
        await loop.wait_for("has joined")
        while True:
            await asyncio.sleep(rng.uniform(0.0, 0.08))
            name = rng.choice(parties)
            if await asyncio.to_thread(proxied[0].cut, name):
                done.append(name)

    return all_the_time


@pytest.mark.parametrize("encrypt", ["none", "statistics"])
def test_cut_connections_change_no_bit_and_are_no_incident(tmp_path, monkeypatch, proxied, encrypt):
    """FedTAN, in the middle of whose passes a round was lost before."""
    monkeypatch.setattr(securefl.network.resumable, "PAUSE_S", 0.01)
    site, done = Site(tmp_path / "site", encrypt=encrypt, rounds=ROUNDS), []
    loop = Loop(site)
    parties = PARTIES if site.sealed else PARTIES[:-1]
    record = loop.run(cuts(proxied, random.Random(encrypt), done, parties))
    assert len(done) > 10
    assert again(loop) > 2  # of one caller, a few lines a minute
    assert joined(loop) == [f"{name} has joined" for name in sorted(site.names)]
    assert site.incidents == ""
    assert [(m.round, m.dropped) for m in record.metrics] == [(n + 1, ()) for n in range(ROUNDS)]
    assert len({m.loss for m in record.metrics}) == ROUNDS  # no round has passed
    there, alone = site.folder / "run", site.in_one_process()
    found, wanted = model_of(there), model_of(alone)
    for name in wanted:
        same = 1e-6 if site.sealed else 0
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=same)
    if not site.sealed:
        assert messages(record) == messages(read_run(alone))


def test_a_cut_that_lasts_longer_than_the_grace_is_a_lost_client(tmp_path, monkeypatch, proxied):
    """It is out of that round, by name, and joins again."""
    monkeypatch.setattr(securefl.network.resumable, "GRACE_S", 0.3)
    site = Site(tmp_path / "site", encrypt="none", rounds=6, reproducible=False)
    loop = Loop(site)

    async def away(loop):
        await loop.wait_for("^Round 2/")
        proxy = proxied[0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(proxy.addresses, "carol", "127.0.0.1:9")  # where nobody listens
            await asyncio.to_thread(proxy.cut, "carol")
            await loop.wait_for("goes on without carol")

    record = loop.run(away)
    assert "not made anew within 0.3 s" in site.incidents
    dropped = [m.dropped for m in record.metrics]
    assert dropped[:2] == [(), ()]
    assert ("carol",) in dropped
    assert record.metrics[-1].round == 6


SIZES = (0, 1, 7, 4_000, 300_000, 2**20 - 5, 2**20 - 4, 3_000_000)


def test_frames_arrive_once_and_in_order_both_ways(tmp_path, monkeypatch, proxied):
    """Small and large ones, while the line is cut; in 60 MB something is always under way."""
    monkeypatch.setattr(securefl.network.resumable, "PAUSE_S", 0.01)
    site, rng, done = Site(tmp_path / "site", encrypt="none"), random.Random(1), []
    sizes = [rng.choice(SIZES) for _ in range(80)]
    bodies = [number.to_bytes(2, "big") * (size // 2) for number, size in enumerate(sizes)]

    async def both_ways(link):
        async def send():
            for body in bodies:
                await link.send(Frame.MESSAGE, body)

        sending, found = asyncio.create_task(send()), []
        while len(found) < len(bodies):
            found.append((await link.receive({Frame.MESSAGE: 2**22})).body)
        await sending
        return found

    async def scenario():
        there = asyncio.get_running_loop().create_future()

        async def serve(link):
            there.set_result(await both_ways(link))
            await link.ended()

        hub = site.identity(SERVER, "server")
        door = await listening(hub, lambda _: "alice", ANY_PORT, serve, lambda _line: None)
        at, alice = Address.parse(door.at), site.identity("alice")
        link = await connected(alice, site.bundle("client"), "server", at, 5)

        async def cut():
            while True:
                await asyncio.sleep(rng.uniform(0.0, 0.1))
                if await asyncio.to_thread(proxied[0].cut, "alice"):
                    done.append(1)

        cutting = asyncio.create_task(cut())
        try:
            assert await both_ways(link) == bodies
            assert await there == bodies
        finally:
            cutting.cancel()
        await link.finish()
        await door.stop()

    asyncio.run(scenario())
    assert len(done) > 3


def test_a_server_that_stops_waits_for_nobody_that_has_heard_all(monkeypatch, tmp_path):
    """A client that was killed has nothing to come back for."""
    monkeypatch.setattr(securefl.network.resumable, "GRACE_S", 600.0)
    made = Site(tmp_path / "site", encrypt="none")

    ends = []

    async def echo(link):
        ends.append(link._stream)
        await link.send(Frame.MESSAGE, (await link.receive({Frame.MESSAGE: 100})).body)
        await link.ended()

    async def scenario():
        hub, trust = made.identity(SERVER, "server"), made.bundle("client")
        door = await listening(hub, lambda _: "alice", ANY_PORT, echo, print)
        alice = await connected(made.identity("alice"), trust, "server", Address.parse(door.at), 5)
        await alice.send(Frame.MESSAGE, b"one")
        await alice.receive({Frame.MESSAGE: 100})
        await alice.send(Frame.MESSAGE, b"two")  # which says that the answer was taken
        async with asyncio.timeout(20):
            while ends[0]._kept:
                await asyncio.sleep(0.01)
        end = alice._stream
        end._keeping.cancel()
        end._stream.close()
        await asyncio.sleep(0.2)
        async with asyncio.timeout(20):
            await door.stop()

    asyncio.run(scenario())
