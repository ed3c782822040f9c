"""What a stranger, or a client that lies, can do to a server on the network: nothing."""

import asyncio
import json
import os
import re
import ssl
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from processes import ANY_PORT, CLIENTS, PASSPHRASE, SERVER, Loop, Site, fake_server

import securefl.federation.client
import securefl.network.client
import securefl.network.connect
import securefl.network.frames
import securefl.network.members
from securefl.errors import ConfigError, PeerError
from securefl.federation.client import Client
from securefl.network import bodies
from securefl.network.connect import (
    MOST_HANDSHAKES,
    MOST_OF_ONE,
    Address,
    bound,
    connected,
    listening,
)
from securefl.network.frames import SMALL, Frame
from securefl.network.identity import peer_name
from securefl.network.members import JOIN_S, Members
from securefl.network.settings import check_scope, settings_digest, table_digests
from securefl_keys import sound_bundle
from securefl_keys.certificates import MEMBER_LIFETIME, issue
from securefl_keys.holders import Holder
from securefl_keys.signed_file import now
from securefl_keys.signer import open_signer

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
        await link.send(Frame.HELLO, hello.to_bytes())
        received = await link.receive({Frame.WELCOME: SMALL, Frame.GOODBYE: SMALL})
        if received.frame is Frame.WELCOME:
            return received.frame, ""
        return received.frame, bodies.parsed(bodies.Reason, received.body, "server").reason
    finally:
        link.close()


async def raw_tls(identity, port, data):
    """Send bytes of one's choice after the handshake; what comes back until it hangs up."""
    context = identity.joining()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(data)
    await writer.drain()
    answer = b""
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(1):
            while more := await reader.read(2**16):
                answer += more
    writer.close()
    return answer


def attacked(site, attack, before=("alice", "bob")):
    """What a server says during an attack; a client can join before and after it."""
    said = []

    async def scenario():
        about = "ab" * 32, "ef" * 32, "cd" * 32, table_digests(site.config)
        members = Members(*about, CLIENTS, 5.0, said.append)
        bundle, welcomed = site.bundle("server"), (Frame.WELCOME, "")
        door = await listening(
            site.identity(SERVER, "server"),
            lambda tls: peer_name(tls, bundle, "client"),
            ANY_PORT,
            members.welcome,
            said.append,
        )
        port, trust = int(bound(door).rpartition(":")[2]), site.bundle("client")
        assert await join(site.identity(before[0]), trust, port) == welcomed
        await attack(port)
        assert await join(site.identity(before[1]), trust, port) == welcomed
        door.close()
        await members.send_home(members.here(), "")
        await asyncio.sleep(0.05)

    asyncio.run(scenario())
    return said


# Strangers.


@pytest.mark.parametrize("length", [0, 1, 5, 300, 70_000])
def test_garbage_before_the_handshake_does_not_stop_the_server(made, length):
    async def attack(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(os.urandom(length))
        writer.write_eof()
        with suppress(OSError):
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
def test_garbage_after_the_handshake_ends_that_connection_alone(made, data):
    async def attack(port):
        assert await raw_tls(made.identity("carol"), port, data) == b""

    said = attacked(made, attack)
    assert any(line.startswith("Refused: carol") for line in said)


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
        assert await raw_tls(made.identity("carol"), port, data) == b""

    assert any(line.startswith("Refused: carol: bad Hello") for line in attacked(made, attack))


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
        identity = replace(stranger.identity("carol"), ca=made.identity("carol").ca)
        link = await connected(
            identity, made.bundle("client"), "server", Address("127.0.0.1", port), 0
        )
        with pytest.raises(PeerError):  # TLS 1.3 tells a client after its own handshake
            await link.receive({Frame.WELCOME: SMALL})
        link.close()

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


def test_connections_without_a_handshake_keep_no_client_out(made):
    """Nor take up descriptors: at most 64 are let wait, and the oldest of more is cut off."""

    async def attack(port):
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        welcomed = await join(made.identity("carol"), made.bundle("client"), port)
        assert welcomed == (Frame.WELCOME, "")
        reading = [asyncio.create_task(reader.read(1)) for reader, _ in strangers]
        cut_off, waiting = await asyncio.wait(reading, timeout=0.3)
        assert len(cut_off) > 300 - MOST_HANDSHAKES  # one of them for carol
        assert len(waiting) == MOST_HANDSHAKES - 1
        for _, writer in strangers:
            writer.close()
        await asyncio.wait(reading)

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
    refused(made, made.identity(SERVER, "server"), "is for the role server, not for client")


def issued(site, name, role="client", at=None):
    """An identity with a certificate of the consortium's that no roster lists."""
    signer, key = open_signer(site.keys, PASSPHRASE, now()), Ed25519PrivateKey.generate()
    certificate = issue(signer.ca, signer.key, Holder(name, role), key.public_key(), at or now())
    return replace(site.identity("alice"), name=name, certificate=certificate, key=key)


def test_a_certificate_that_the_roster_does_not_list_is_refused(made):
    refused(made, issued(made, "dora"), "'dora' is no member")


def test_a_second_certificate_of_a_clients_name_is_refused(made):
    refused(made, issued(made, "carol"), "the roster lists another certificate")


def test_a_revoked_client_is_told_so(site):
    site.rotate(revoking="carol")
    site.export("after")
    (site.folder / "bundles").rename(site.folder / "before")
    (site.folder / "after").rename(site.folder / "bundles")
    refused(site, site.identity("carol"), "of 'carol' was revoked")


def test_an_expired_certificate_does_not_come_through_the_handshake(made):
    long_ago = now().replace(year=now().year - 3)

    async def attack(port):
        with suppress(PeerError):
            link = await connected(
                issued(made, "carol", at=long_ago),
                made.bundle("client"),
                "server",
                Address("127.0.0.1", port),
                0,
            )
            await link.send(Frame.HELLO, HELLO.to_bytes())
            with pytest.raises(PeerError):
                await link.receive({Frame.WELCOME: SMALL, Frame.GOODBYE: SMALL})
            link.close()

    assert not any("carol" in line for line in attacked(made, attack))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "other settings than the server, in what nobody knows"),  # and lies about tables
        ({"tables": {"train": "0" * 16}}, "in [train]: give all processes the same file"),
        ({"version": 2}, "install one release"),
    ],
)
def test_a_client_of_other_settings_or_another_release_is_told_so(made, changes, why):
    tables = table_digests(made.config) | changes.pop("tables", {})
    hello = bodies.Hello(settings="00" * 32, tables=tables, age=(1, 5), **changes)

    async def attack(port):
        answer = await join(made.identity("carol"), made.bundle("client"), port, hello)
        assert answer[0] is Frame.GOODBYE
        assert why in answer[1]

    attacked(made, attack)


@pytest.mark.parametrize(
    ("name", "role", "why"),
    [("bob", "client", "no trusted peer"), ("authority", "authority", "role authority, not for")],
)
def test_a_client_tells_a_server_from_others(made, name, role, why):
    """TLS itself refuses a client's certificate as a listener's; an authority's is not for that."""

    async def scenario():
        door = await listening(made.identity(name, role), lambda _: "x", ANY_PORT, _hang, print)
        at = Address.parse(bound(door))
        with pytest.raises(PeerError, match=why):
            await connected(made.identity("alice"), made.bundle("client"), "server", at, 0)
        door.close()
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
        at = Address.parse(bound(door))
        link = await connected(made.identity("alice"), made.bundle("client"), "server", at, 5)
        for _ in range(2):
            link.close()
            await asyncio.sleep(0.02)
        for one in (link, *held):
            with pytest.raises(PeerError, match="has closed the connection"):
                await one.send(Frame.HELLO, b"{}")
        door.close()
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
    monkeypatch.setattr(securefl.network.connect, "MOST_HANDSHAKES", 5)
    many, open_now, most, said = 14, 0, 0, []

    async def idle(link):
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        try:
            await link.hung_up()
        finally:
            open_now -= 1

    def named(tls):
        name = peer_name(tls, made.bundle("server"), "client")
        if name == "alice" and not admitted:
            raise PeerError("alice: is no member any more")
        return name

    async def told(link):
        received = await link.receive({Frame.GOODBYE: SMALL})
        return bodies.parsed(bodies.Reason, received.body, "server").reason

    async def scenario():
        before = len(list(HANDLES.iterdir()))
        door = await listening(made.identity(SERVER, "server"), named, ANY_PORT, idle, said.append)
        at, trust = Address.parse(bound(door)), made.bundle("client")
        alice = made.identity("alice")
        held = [await connected(alice, trust, "server", at, 5) for _ in range(many)]
        await asyncio.sleep(0.1)
        own = len(list(HANDLES.iterdir())) - before - many
        last = await told(held[-1])
        bob = await connected(made.identity("bob"), trust, "server", at, 5)
        await asyncio.sleep(0.05)
        for link in (*held, bob):
            link.close()
        door.close()
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
    monkeypatch.setattr(securefl.network.frames, "BEAT_S", 0.05)
    monkeypatch.setattr(securefl.network.frames, "SILENT_S", 0.4)


@pytest.mark.usefixtures("fast_beats")
def test_a_client_whose_server_falls_silent_joins_again(made, monkeypatch):
    """It waits for a round as long as heartbeats come, and no longer."""
    monkeypatch.setattr(securefl.network.client, "PAUSE_S", 0.05)
    lived = []

    async def serve(link, process, connection):
        if connection == 1:
            started = time.monotonic()
            await asyncio.sleep(1.0)  # several times as long as silence may last
            lived.append(not link.lost)
            link._beating.cancel()
            await link.hung_up()
            lived.append(time.monotonic() - started)
        return connection == 2

    _, said, _ = fake_server(made, serve)
    assert lived[0]
    assert 1.3 < lived[1] < 5
    assert "hub: silent for 0.4 s, the connection is lost; joining again" in said


@pytest.mark.usefixtures("fast_beats")
def test_a_message_that_the_peer_does_not_take_is_lost_with_the_line(made):
    """Whoever writes does not wait for ever either."""

    async def serve(link, process, connection):
        link._beating.cancel()
        link._writer.transport.pause_reading()
        await begin_round(link, process, 1)
        await asyncio.sleep(0.7)
        return True

    def huge(*_, **__):
        return b"x" * 2**24

    made_bytes = securefl.federation.client.Client.contribute
    try:
        securefl.federation.client.Client.contribute = huge
        _, said, _ = fake_server(made, serve)
    finally:
        securefl.federation.client.Client.contribute = made_bytes
    assert "hub: silent for 0.4 s, the connection is lost; joining again" in said


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

    def seal(self, values, weight):
        return self.inner.seal(np.full_like(values, 3e38), weight)

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
        sound_bundle, "now", lambda: now() + (later if loop.has_said("Round 1/3") else minutes(0))
    )
    record = loop.run()
    assert [m.dropped for m in record.metrics] == [(), ("carol",), ()]
    assert "carol's certificate is valid from" in str(loop.ended["carol"])
    assert isinstance(loop.ended["carol"], PeerError)
    assert loop.ended["alice"] is None


def minutes(n):
    return timedelta(minutes=n)


def asking(kind, process, number, **changes):
    """A request of the server's, with the whole model that training begins with."""
    job = process.party.job
    known = {"round": number, "since": 0, "whole": True}
    tensors = bodies.state_bytes(job.algorithm.init(job.task.model), None)
    return bodies.with_tensors(kind(**known | changes), tensors)


async def begin_round(link, process, number, **changes):
    await link.send(Frame.ROUND, asking(bodies.RoundBegins, process, number, **changes))


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


REFUSED = [
    ({"devices": {"preset": "cifar10"}}, "[devices]"),
    ({"exchange": {"encrypt": "model", "committee": 2}}, "exchange.committee"),
]
"""Settings that processes do not run, and what names them."""


@pytest.mark.parametrize(("tables", "named"), REFUSED, ids=["devices", "committee"])
def test_what_processes_do_not_run_is_a_config_error_with_the_way_out(made, tables, named):
    config = made.config.model_validate(made.config.model_dump() | tables)
    with pytest.raises(ConfigError, match=f"{re.escape(named)}.*securefl run"):
        check_scope(config)
