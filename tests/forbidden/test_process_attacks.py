"""What a stranger, or a client that lies, can do to a server on the network: nothing."""

import asyncio
import json
import os
import re
import socket
import ssl
import struct
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from processes import (
    ANY_PORT,
    CLIENTS,
    SERVER,
    Loop,
    Site,
    another,
    fake_server,
    issued,
    round_begins,
)

import securefl.federation.client
import securefl.network.client
import securefl.network.connect
import securefl.network.members
import securefl.network.stream
from securefl.errors import ConfigError, PeerError
from securefl.federation.client import Client
from securefl.network import bodies
from securefl.network.authority_line import STOPPED
from securefl.network.connect import (
    MOST_OF_ONE,
    Address,
    connected,
    listening,
)
from securefl.network.frames import SMALL, Frame, Link
from securefl.network.identity import Challenge, name_of
from securefl.network.members import JOIN_S, Members
from securefl.network.refusals import MOST_LINES
from securefl.network.settings import check_scope
from securefl.network.stream import CHUNK_BYTES
from securefl.settings.digests import digests_by_setting, settings_digest
from securefl_keys import bundle
from securefl_keys.certificates import MEMBER_LIFETIME
from securefl_keys.signed_file import now

pytestmark = pytest.mark.usefixtures("quick", "no_hang")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A federation to look at."""
    return Site(tmp_path_factory.mktemp("made") / "site", encrypt="none")


@pytest.fixture
def site(tmp_path):
    """A federation to be changed."""
    return Site(tmp_path / "site", encrypt="none", reproducible=False)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """Another consortium, whose members have the same names."""
    return Site(tmp_path_factory.mktemp("other") / "site", consortium="Süd", encrypt="none")


HANDLES = Path("/proc/self/fd")
HELLO = bodies.Hello(settings="cd" * 32, age=(1, 5))


async def join(identity, trust, port, hello=HELLO):
    """What the server answers to a client: the frame, and its reason if it is one."""
    link = await connected(identity, trust, "server", Address("127.0.0.1", port), 5)
    try:
        with suppress(PeerError):  # where it is sent home before it says anything
            await link.send(Frame.HELLO, hello.to_bytes())
        received = await link.receive({Frame.WELCOME: SMALL, Frame.GOODBYE: SMALL})
        if received.frame is Frame.WELCOME:
            return received.frame, ""
        return received.frame, bodies.parsed(bodies.Reason, received.body, "server").reason
    finally:
        link.close()


async def raw(identity, trust, port, data):
    """Send a chunk of one's choice in the place of a frame; what comes back until it is over."""
    link, answer = await connected(identity, trust, "server", Address("127.0.0.1", port), 5), b""
    await link._stream.write(data)
    with suppress(PeerError, TimeoutError):
        async with asyncio.timeout(1):
            while more := await link._stream.read():
                answer += more
    link.close()
    return answer


def tls_of(identity, folder, most=ssl.TLSVersion.TLSv1_3):
    """Python's own TLS with this identity, for whoever speaks no HTTP/2."""
    context = ssl.create_default_context(cadata=identity.ca_pem.decode())
    context.check_hostname, context.maximum_version = False, most
    context.set_alpn_protocols(["h2"])
    pem = folder / f"{identity.name}.pem"
    pem.write_bytes(identity.transport_pem + identity.transport_key_pem())
    context.load_cert_chain(pem)
    return context


def attacked(site, attack, before=("alice", "bob")):
    """What a server says during an attack; a client can join before and after it."""
    said = []

    async def scenario():
        about = "ab" * 32, "ef" * 32, "cd" * 32, digests_by_setting(site.config)
        members = Members(*about, CLIENTS, 5.0, said.append)
        bundle, welcomed = site.bundle("server"), (Frame.WELCOME, "")
        door = await listening(
            site.identity(SERVER, "server"),
            lambda certificate: name_of(bundle.transport_holder, certificate, "client"),
            ANY_PORT,
            members.welcome,
            said.append,
        )
        port, trust = int(door.at.rpartition(":")[2]), site.bundle("client")
        assert await join(site.identity(before[0]), trust, port) == welcomed
        await attack(port)
        assert await join(site.identity(before[1]), trust, port) == welcomed
        await members.send_home(members.here(), "")
        await door.stop()

    asyncio.run(scenario())
    return said


# Strangers.


@pytest.mark.parametrize("length", [0, 1, 5, 300, 70_000])
def test_garbage_before_the_handshake_does_not_stop_the_server(made, length):
    async def attack(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(OSError):
            writer.write(os.urandom(length))
            writer.write_eof()
            await reader.read()
        writer.close()

    attacked(made, attack)


FRAMES = {
    "garbage": b"\xff" * 64,
    "an unknown kind": struct.pack(">BI", 200, 3) + b"abc",
    "a frame of the authority's": struct.pack(">BI", Frame.OPENED, 3) + b"abc",
    "READY, which is the authority's": struct.pack(">BI", Frame.READY, 3) + b"abc",
    "larger than any hello": struct.pack(">BI", Frame.HELLO, 2**31),
    "no JSON": struct.pack(">BI", Frame.HELLO, 4) + b"\x80abc",
    "a key too many": struct.pack(">BI", Frame.HELLO, 9) + b'{"a": 12}',
    "JSON too deep": struct.pack(">BI", Frame.HELLO, 4000) + b"[" * 4000,
}


@pytest.mark.parametrize("data", FRAMES.values(), ids=FRAMES)
def test_garbage_in_the_place_of_a_frame_ends_that_connection_alone(made, data):
    async def attack(port):
        assert await raw(made.identity("carol"), made.bundle("client"), port, data) == b""

    said = attacked(made, attack)
    assert any(line.startswith("Refused: carol") for line in said)


@pytest.mark.parametrize("length", [1, 100, 2**20 + 1])
def test_garbage_in_the_place_of_http_does_not_stop_the_server(made, tmp_path, length):
    """A member's, after its handshake."""

    async def attack(port):
        tls = tls_of(made.identity("carol"), tmp_path)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                writer.write(os.urandom(length))
                await writer.drain()
                await reader.read()
        writer.close()

    attacked(made, attack)


def test_a_chunk_larger_than_any_is_not_taken(made):
    """GRPC itself lets it go."""

    async def attack(port):
        link = await connected(
            made.identity("carol"), made.bundle("client"), "server", Address("127.0.0.1", port), 5
        )
        with pytest.raises(PeerError):
            await link._stream.write(bytes(CHUNK_BYTES + 1))
        link.close()
        large = struct.pack(">BI", Frame.HELLO, 2**20) + bytes(2**20)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(securefl.network.stream, "CHUNK_BYTES", 2**22)
            identity, trust = made.identity("carol"), made.bundle("client")
            assert await raw(identity, trust, port, large) == b""

    attacked(made, attack)


def test_no_proxy_is_asked_for_a_server_of_this_machine(made, monkeypatch):
    """One of the environment would be told of it, and could not reach it."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)

        async def attack(port):
            for host in ("127.0.0.1", "localhost"):
                link = await connected(
                    made.identity("carol"), made.bundle("client"), "server", Address(host, port), 5
                )
                await link.finish()

        attacked(made, attack)


def test_tls_of_an_older_version_is_refused(made, tmp_path):
    async def attack(port):
        identity = made.identity("carol")
        older = tls_of(identity, tmp_path, ssl.TLSVersion.TLSv1_2)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", port, ssl=older)
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls_of(identity, tmp_path))
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
        writer.close()

    attacked(made, attack)


def test_a_proof_of_another_connection_is_none(made):
    """Who has the certificate of a server for TLS, and not its identity, passes nothing on."""
    carol, hub = made.identity("carol"), made.identity(SERVER, "server")
    trust = made.bundle("client")
    asked = Challenge(carol.transport_certificate)
    proof = asked.answer(hub.certificate, hub.key)
    assert asked.check(proof, trust, "server")[0] == SERVER
    others = {
        "another number": Challenge(carol.transport_certificate),
        "another caller": Challenge(made.identity("bob").transport_certificate, asked.nonce),
    }
    for other in others.values():
        with pytest.raises(PeerError, match="has not the key of the identity"):
            other.check(proof, trust, "server")
    for spoilt in (b"", proof[:64], proof[:-1], proof[1:]):
        with pytest.raises(PeerError):
            asked.check(spoilt, trust, "server")
    of_client = asked.answer(carol.certificate, carol.key)
    with pytest.raises(PeerError, match="is for the role client, not for server"):
        asked.check(of_client, trust, "server")


AGES = [
    [-1, 1],
    [2**31, 1],
    [1, 2**40],
    [1],
    [1, 2, 3],
    "12",
    [1.5, 1],
    [True, 1],
    None,
    [10**400, 1],
]


@pytest.mark.parametrize("age", AGES, ids=lambda age: repr(age)[:20])
def test_a_hello_of_an_age_that_none_has_is_refused(made, age):
    body = json.dumps({"version": bodies.VERSION, "settings": "cd" * 32, "age": age}).encode()

    async def attack(port):
        data = struct.pack(">BI", Frame.HELLO, len(body)) + body
        assert await raw(made.identity("carol"), made.bundle("client"), port, data) == b""

    assert any(line.startswith("Refused: carol: bad Hello") for line in attacked(made, attack))


def test_a_member_that_is_refused_all_the_time_fills_no_log(made):
    """Nor hides another's refusal: of each there are a few lines a minute."""
    other = bodies.Hello(settings="12" * 32, age=(1, 5))

    async def attack(port):
        for name, n in (("carol", 12), ("bob", 1)):
            for _ in range(n):
                sent = await join(made.identity(name), made.bundle("client"), port, other)
                assert sent[0] is Frame.GOODBYE

    said = [line for line in attacked(made, attack) if line.startswith("Refused: ")]
    assert [line.split(":")[1] for line in said] == [" carol"] * MOST_LINES + [" bob"]


def test_no_certificate_at_all_is_refused(made):
    async def attack(port):
        context = ssl.create_default_context(cafile=made.keys / "consortium/ca.crt")
        context.check_hostname = False
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            assert await reader.read() == b""
            writer.close()

    attacked(made, attack)


def test_a_member_of_another_consortium_is_refused(made, stranger):
    """Whatever it trusts itself, and though it has a client's name."""

    async def attack(port):
        identity = another(stranger.identity("carol"), ca=made.identity("carol").ca)
        with pytest.raises(PeerError):  # TLS 1.3 tells a client after its own handshake
            await connected(
                identity, made.bundle("client"), "server", Address("127.0.0.1", port), 0
            )

    assert not any("carol" in line for line in attacked(made, attack))


def test_a_client_refuses_the_server_of_another_consortium(made, stranger):
    async def attack(port):
        with pytest.raises(PeerError, match="no trusted peer"):
            await connected(
                stranger.identity("carol"),
                stranger.bundle("client"),
                "server",
                Address("127.0.0.1", port),
                0,
            )

    attacked(made, attack)


def test_hundreds_that_do_not_shake_hands_keep_no_client_out(made):
    """While they last: there is room for as many as half of the process's descriptors."""

    async def attack(port):
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        welcomed = await join(made.identity("carol"), made.bundle("client"), port)
        assert welcomed == (Frame.WELCOME, "")
        for _, writer in strangers:
            writer.close()

    attacked(made, attack)


def test_connections_without_a_handshake_keep_no_client_out(made, monkeypatch):
    """Each has a time for it, and is cut off then."""
    monkeypatch.setattr(securefl.network.connect, "HANDSHAKE_S", 0.5)

    async def attack(port):
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        welcomed = await join(made.identity("carol"), made.bundle("client"), port)
        assert welcomed == (Frame.WELCOME, "")
        reading = [asyncio.create_task(reader.read()) for reader, _ in strangers]
        _, waiting = await asyncio.wait(reading, timeout=5)
        assert not waiting
        for _, writer in strangers:
            writer.close()

    attacked(made, attack)


def test_a_client_that_takes_nothing_holds_up_nobody(made, monkeypatch):
    """Not even while it is told that it may join: a window of zero bytes ends no write."""
    send, stuck = Link.send, []

    async def sent(self, frame, *parts):
        if frame is Frame.WELCOME and self.name == "carol":
            stuck.append(self)
            await asyncio.Event().wait()
        await send(self, frame, *parts)

    monkeypatch.setattr(Link, "send", sent)

    async def attack(port):
        carol = asyncio.create_task(join(made.identity("carol"), made.bundle("client"), port))
        while not stuck:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(5):
            welcomed = await join(made.identity("bob"), made.bundle("client"), port)
        assert welcomed == (Frame.WELCOME, "")
        carol.cancel()
        monkeypatch.undo()
        await asyncio.sleep(JOIN_S)

    attacked(made, attack)


# Members, but no clients of this run.


def refused(site, identity, reason, before=("alice", "bob")):
    """A server tells this peer why it is sent home."""

    async def attack(port):
        frame, told = await join(identity, site.bundle("client"), port)
        assert frame is Frame.GOODBYE
        assert reason in told

    said = attacked(site, attack, before)
    assert any(line.startswith("Refused") and reason in line for line in said)


def test_a_servers_certificate_makes_no_client(made):
    """TLS itself refuses it as a caller's."""

    async def attack(port):
        identity, trust = made.identity(SERVER, "server"), made.bundle("client")
        with pytest.raises(PeerError, match="has its consortium issued this certificate"):
            await connected(identity, trust, "server", Address("127.0.0.1", port), 0)

    attacked(made, attack)


def test_a_certificate_that_the_roster_does_not_list_is_refused(made):
    refused(made, issued(made, "dora"), "'dora' is no member")


def test_a_second_certificate_of_a_clients_name_is_refused(made):
    refused(made, issued(made, "carol"), "the roster lists another identity key")


def test_a_revoked_client_is_told_so(site):
    site.rotate(revoking="carol")
    site.export("after")
    (site.folder / "bundles").rename(site.folder / "before")
    (site.folder / "after").rename(site.folder / "bundles")
    refused(site, site.identity("carol"), "of 'carol' was revoked")


def test_an_expired_certificate_does_not_come_through_the_handshake(made):
    long_ago = now().replace(year=now().year - 3)

    async def attack(port):
        identity, trust = issued(made, "carol", at=long_ago), made.bundle("client")
        with pytest.raises(PeerError):
            await connected(identity, trust, "server", Address("127.0.0.1", port), 0)

    assert not any("carol" in line for line in attacked(made, attack))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "other settings than the server, in what nobody knows"),  # and lies about each
        ({"lr": "0" * 16}, "in train.lr: give all processes the same file"),
        ({"version": 2}, "install one release"),
    ],
)
def test_a_client_of_other_settings_or_another_release_is_told_so(made, changes, why):
    own = digests_by_setting(made.config)
    if "lr" in changes:
        own["train"] |= {"lr": changes.pop("lr")}
    hello = bodies.Hello(settings="00" * 32, by_setting=own, age=(1, 5), **changes)

    async def attack(port):
        answer = await join(made.identity("carol"), made.bundle("client"), port, hello)
        assert answer[0] is Frame.GOODBYE
        assert why in answer[1]

    attacked(made, attack)


@pytest.mark.parametrize(
    ("name", "role", "why"),
    [("bob", "client", "no trusted peer"), ("authority", "authority", "no trusted peer")],
)
def test_a_client_tells_a_server_from_others(made, name, role, why):
    """TLS itself refuses their certificates as a listener's."""

    async def scenario():
        door = await listening(made.identity(name, role), lambda _: "x", ANY_PORT, _hang, print)
        at = Address.parse(door.at)
        with pytest.raises(PeerError, match=why):
            await connected(made.identity("alice"), made.bundle("client"), "server", at, 0)
        await door.stop()
        await asyncio.sleep(0.05)

    async def _hang(link):
        with pytest.raises(PeerError):
            await link.receive({})

    asyncio.run(scenario())


# One connection a name.


def test_a_second_process_of_a_client_is_refused_while_the_first_answers(site):
    """In words; the run goes on with the first."""
    loop, told = Loop(site), []

    async def meanwhile(loop):
        await loop.wait_for("carol has joined")
        (line,) = (line for line in loop.said if line.startswith("Listening on"))
        for _ in range(2):
            with pytest.raises(PeerError) as refused:
                await loop._client("carol").run(Address.parse(line.split()[-1]), 0.0)
            told.append(str(refused.value))

    record = loop.run(meanwhile)
    assert [m.dropped for m in record.metrics] == [(), ()]
    assert told == ["hub: another process of this name is connected: stop one of the two"] * 2
    assert loop.ended == dict.fromkeys(CLIENTS)


def test_a_storm_of_rejoins_costs_no_other_client_a_round(site):
    """Whoever joins and hangs up again, at once and over and over, is welcome twice a second."""
    loop = Loop(site, joining_s=0.5)
    del loop.clients["carol"]

    async def storm(loop):
        await loop.wait_for("bob has joined")
        (line,) = (line for line in loop.said if line.startswith("Listening on"))
        port, identity = Address.parse(line.split()[-1]).port, site.identity("carol")
        hello = bodies.Hello(settings=settings_digest(site.config), age=(1, 5))
        started = time.monotonic()
        joins = [join(identity, site.bundle("client"), port, hello) for _ in range(8)]
        await asyncio.gather(*joins, return_exceptions=True)
        times = sum(line.startswith("carol has joined") for line in loop.said)
        assert 1 <= times <= 2 + (time.monotonic() - started) / JOIN_S

    record = loop.run(storm)
    assert len(record.metrics) == 2
    assert loop.ended == {"alice": None, "bob": None}


def test_a_client_that_arrives_as_the_run_ends_is_told_why(site):
    """Also before it has said who it is."""
    loop, told = Loop(site), []
    del loop.clients["carol"]

    async def ended(loop):
        trust = site.bundle("client")
        link = await connected(site.identity("carol"), trust, "server", loop.at, 5)
        await asyncio.sleep(0.1)  # until it waits for the hello
        loop.serving.cancel()
        received = await link.receive({Frame.GOODBYE: SMALL})
        told.append(bodies.parsed(bodies.Reason, received.body, "server").reason)
        link.close()

    with pytest.raises(asyncio.CancelledError):
        loop.run(ended)
    assert told == [STOPPED]


def test_a_connection_that_was_closed_twice_is_a_lost_one(made):
    """To whoever writes to it."""

    async def scenario():
        held = []

        async def hold(link):
            held.append(link)
            await link.ended()

        door = await listening(
            made.identity(SERVER, "server"), lambda _: "alice", ANY_PORT, hold, print
        )
        at = Address.parse(door.at)
        link = await connected(made.identity("alice"), made.bundle("client"), "server", at, 5)
        for _ in range(2):
            link.close()
            await asyncio.sleep(0.02)
        for one in (link, *held):
            with pytest.raises(PeerError, match="has closed the connection"):
                await one.send(Frame.HELLO, b"{}")
        await door.stop()
        for one in held:
            one.close()
            one.close()
            with pytest.raises(PeerError, match="has closed the connection"):
                await one.send(Frame.HELLO, b"{}")
        await asyncio.sleep(0.05)

    asyncio.run(scenario())


@pytest.mark.skipif(not HANDLES.is_dir(), reason="counts descriptors")
@pytest.mark.parametrize("admitted", [True, False])
def test_a_member_takes_up_few_descriptors(made, monkeypatch, admitted):
    """Whatever it opens and leaves idle; those too many are told so, and others get in."""
    monkeypatch.setattr(securefl.network.connect, "HANDSHAKE_S", 0.3)
    many, open_now, most, said = 14, 0, 0, []

    async def idle(link):
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        try:
            await link.ended()
        finally:
            open_now -= 1

    def named(tls):
        name = name_of(made.bundle("server").transport_holder, tls, "client")
        if name == "alice" and not admitted:
            raise PeerError("alice: is no member any more")
        return name

    async def told(link):
        received = await link.receive({Frame.GOODBYE: SMALL})
        return bodies.parsed(bodies.Reason, received.body, "server").reason

    async def scenario():
        before = len(list(HANDLES.iterdir()))
        door = await listening(made.identity(SERVER, "server"), named, ANY_PORT, idle, said.append)
        at, trust = Address.parse(door.at), made.bundle("client")
        alice = made.identity("alice")
        held = [await connected(alice, trust, "server", at, 5) for _ in range(many)]
        await asyncio.sleep(1.0)
        own = len(list(HANDLES.iterdir())) - before - many
        last = await told(held[-1])
        bob = await connected(made.identity("bob"), trust, "server", at, 5)
        await asyncio.sleep(0.05)
        for link in (*held, bob):
            link.close()
        await door.stop()
        await asyncio.sleep(0.1)
        return own, last

    own, last = asyncio.run(scenario())
    assert own <= 5 + MOST_OF_ONE + 2  # the door, and one that is on its way out
    assert most == 1 + (MOST_OF_ONE if admitted else 0)
    why = f"has {MOST_OF_ONE} connections already" if admitted else "is no member any more"
    assert why in last
    assert any(why in line for line in said)


def test_a_client_that_comes_again_and_again_keeps_its_place(made, monkeypatch):
    """Each lost connection lets go of its descriptor when the next one joins."""
    monkeypatch.setattr(securefl.network.members, "JOIN_S", 0.0)

    async def attack(port):
        for _ in range(MOST_OF_ONE + 3):
            answer = await join(made.identity("carol"), made.bundle("client"), port)
            assert answer == (Frame.WELCOME, "")
            await asyncio.sleep(0.02)

    attacked(made, attack)


# Silence.


@pytest.fixture
def fast_beats(monkeypatch):
    """Heartbeats of a test."""
    monkeypatch.setattr(securefl.network.stream, "BEAT_S", 0.5)
    monkeypatch.setattr(securefl.network.stream, "SILENT_S", 0.5)


@asynccontextmanager
async def held_up(to):
    """A line to there that somebody can hold up: nothing comes through then, and none is closed."""
    through, ends = asyncio.Event(), []
    through.set()

    async def carry(reader, writer):
        with suppress(OSError):
            while data := await reader.read(2**16):
                await through.wait()
                writer.write(data)
                await writer.drain()
        writer.close()

    async def arrived(reader, writer):
        there, back = await asyncio.open_connection(to.host, to.port)
        ends.extend((writer, back))
        await asyncio.gather(carry(reader, back), carry(there, writer))

    line = await asyncio.start_server(arrived, "127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", line.sockets[0].getsockname()[1]), through
    finally:
        through.set()
        line.close()
        for end in ends:
            end.close()


@pytest.mark.usefixtures("fast_beats")
@pytest.mark.parametrize("huge", [False, True], ids=["waits", "writes"])
def test_a_line_that_falls_silent_is_lost_at_both_ends(made, huge):
    """Whoever waits or writes does so as long as the peer answers pings, and no longer."""
    held = []

    async def hold(link):
        held.append(link)
        await link.ended()

    async def scenario():
        hub, alice = made.identity(SERVER, "server"), made.identity("alice")
        door = await listening(hub, lambda _: "alice", ANY_PORT, hold, print)
        async with held_up(Address.parse(door.at)) as (at, through):
            link = await connected(alice, made.bundle("client"), "server", at, 5)
            await asyncio.sleep(1.5)  # longer than silence may last
            assert not link.lost
            through.clear()
            started = time.monotonic()
            for one in (link, *held):
                waiting = one.send(Frame.MESSAGE, bytes(2**26)) if huge else one.receive({})
                with pytest.raises(PeerError):
                    await waiting
            assert time.monotonic() < started + 10
            link.close()
        await door.stop()

    asyncio.run(scenario())


# A whole run in one event loop, with a client that is no honest one.


def a_run(site, change=lambda client: None):
    """The record of a run in which `change(process)` has changed carol."""
    loop = Loop(site)
    change(loop.clients["carol"])
    record = loop.run()
    return record, site.incidents


def test_a_message_under_another_clients_name_is_refused_even_with_its_signature(site):
    """Whoever has copied bob's key cannot speak for him over a connection of its own."""

    def change(process):
        carol, key = process.party.client, site.signing_key("bob")
        bob = Client("bob", carol.weight, carol.sealers, carol.equal_weight, signing_key=key)
        process.party.client = Spoken(carol, bob.contribute)

    record, incidents = a_run(site, change)
    assert [m.dropped for m in record.metrics] == [("carol",), ("carol",)]
    assert "carol: sent a message of 'bob'" in incidents


def test_a_message_that_another_key_has_signed_is_refused(site):
    def change(process):
        process.party.client.signing_key = Ed25519PrivateKey.generate()

    record, incidents = a_run(site, change)
    assert [m.dropped for m in record.metrics] == [("carol",), ("carol",)]
    assert "not signed by 'carol'" in incidents


def test_a_client_whose_values_are_not_finite_leaves_the_round_and_says_so(site):
    def change(process):
        process.party.client.weight = 1.0
        process.party.client.sealers = {
            kind: Narrow(sealer) for kind, sealer in process.party.client.sealers.items()
        }

    record, incidents = a_run(site, change)
    assert [m.dropped for m in record.metrics] == [("carol",), ("carol",)]
    assert "leaves the round" in incidents


@dataclass
class Narrow:
    """A sealer that takes nothing."""

    inner: object

    def max_value(self, n_values):
        return 1e-30

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_a_client_that_counts_more_than_the_settings_say_is_left_out_by_name(site):
    """In the clear the server sees its weight, and nobody else loses a round."""
    record, incidents = a_run(site, lambda process: setattr(process.party.client, "weight", 1.0))
    assert [m.dropped for m in record.metrics] == [("carol",), ("carol",)]
    assert "carol: weight 1.0, and by the settings it is at most 0.2" in incidents


@dataclass
class Enormous:
    """A sealer of 3e38, whatever it is given."""

    inner: object

    def seal(self, values, weight, about, sender):
        return self.inner.seal(np.full_like(values, 3e38), weight, about, sender)

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_a_client_that_lies_beyond_all_range_is_left_out_and_the_run_goes_on(site):
    """Added up, its values would be all that is left of the model of all."""

    def change(process):
        process.party.client.sealers = {
            kind: Enormous(sealer) for kind, sealer in process.party.client.sealers.items()
        }

    record, incidents = a_run(site, change)
    assert [m.dropped for m in record.metrics] == [("carol",), ("carol",)]
    assert "values that are not finite, or not within" in incidents


def test_a_message_larger_than_expected_drops_the_client(site):
    def change(process):
        honest = process.party.client.contribute
        process.party.client = Spoken(
            process.party.client, lambda *a, **named: honest(*a, **named) + b"x" * 10**6
        )

    record, incidents = a_run(site, change)
    assert "carol" in record.metrics[0].dropped
    assert "fit" in json.loads(incidents.splitlines()[0])["reason"]


@dataclass
class Spoken:
    """A client with a mouth of its own."""

    inner: object
    contribute: object

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_a_client_whose_certificate_expires_meanwhile_is_sent_home(tmp_path, monkeypatch):
    """Before the next round, and it is told."""
    site = Site(tmp_path / "site", encrypt="none", rounds=3, earlier={"carol": minutes(50)})
    loop, later = Loop(site), MEMBER_LIFETIME - minutes(25)
    monkeypatch.setattr(
        bundle,
        "now",
        lambda: now() + (later if loop.has_said("Round 1/3") else minutes(0)),
    )
    record = loop.run()
    assert [m.dropped for m in record.metrics] == [(), ("carol",), ()]
    assert "carol's certificate for TLS is valid from" in str(loop.ended["carol"])
    assert isinstance(loop.ended["carol"], PeerError)
    assert loop.ended["alice"] is None


def minutes(n):
    return timedelta(minutes=n)


async def begin_round(link, process, number):
    job = process.party.job
    state = job.algorithm.init(job.task.model)
    await link.send(Frame.ROUND, round_begins(process, number, state))


def test_a_client_answers_no_round_twice(made, monkeypatch):
    """Two contributions under one name would show their difference. Not on another connection."""
    monkeypatch.setattr(securefl.network.client, "PAUSE_S", 0.05)
    got = []

    async def serve(link, process, connection):
        await begin_round(link, process, 1)
        with suppress(PeerError):
            got.append((connection, (await link.receive({Frame.MESSAGE: 10**7})).frame))
        if connection == 1:  # and on the same one
            await link.send(Frame.LEAVE, bodies.reason("try again"))
            await begin_round(link, process, 1)
            with suppress(PeerError):
                got.append((connection, (await link.receive({Frame.MESSAGE: 10**7})).frame))
        return connection == 2

    _, said, _ = fake_server(made, serve)
    assert got == [(1, Frame.MESSAGE)]
    assert "the server asks for the update of round 1 again; joining again" in said


REFUSED = [({"devices": {"preset": "cifar10"}}, "[devices]")]
"""Settings that processes do not run, and what names them."""


@pytest.mark.parametrize(("tables", "named"), REFUSED, ids=["devices"])
def test_what_processes_do_not_run_is_a_config_error_with_the_way_out(made, tables, named):
    config = made.config.model_validate(made.config.model_dump() | tables)
    with pytest.raises(ConfigError, match=f"{re.escape(named)}.*securefl run"):
        check_scope(config)
