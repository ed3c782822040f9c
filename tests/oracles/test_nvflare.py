"""A federation over NVIDIA FLARE gives what `securefl run` gives, and trusts it with nothing.

Calls in this process stand for its own here, and whoever carries them is the attacker; the last
tests run the thing itself.
"""

from __future__ import annotations

import asyncio
import errno
import importlib
import json
import re
import ssl
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import by_calls
import pytest
import safetensors.torch
import torch
from by_calls import Between, federation_by_calls, heard
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from process_memory import found_under, secrets_of, secrets_under
from processes import (
    CLIENTS,
    PASSPHRASE,
    SERVER,
    Loop,
    Site,
    another,
    authority_process,
    issued,
    messages,
    passphrase_of,
)
from with_officers import OTHERS, seat_officers

import securefl
import securefl.network.stream
import securefl.nvflare.calls
from securefl.errors import ConfigError, KeyFileError, PeerError, RunFolderError
from securefl.network.connect import connected
from securefl.network.frames import Frame
from securefl.network.identity import Challenge
from securefl.nvflare.calls import FULL, OVER, TAKEN, ByCalls, CallersWay
from securefl.nvflare.handshake import callers_tls, greeted, introduced, listeners_tls
from securefl.nvflare.stream import PIECE_BYTES, TlsStream
from securefl.runs.folder_files import OPENINGS
from securefl.runs.folder_reader import read_run
from securefl.runs.folder_writer import RunFolder
from securefl.settings.digests import digests_by_setting, settings_digest
from securefl_cli.main import main
from securefl_cli.nvflare import SIDES, write_job
from securefl_cli.nvflare_site import party, server, site_file
from securefl_keys import layout
from securefl_keys.signed_file import now

pytestmark = pytest.mark.usefixtures("quick", "cheap_guesses")
MARKER = b"planted-marker-7f1c"
LONG_AGO = now().replace(year=now().year - 3, day=1)
BIG = 2**21 + 12_345
"""Bytes of a body of three chunks."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A federation whose files no test changes."""
    return Site(tmp_path_factory.mktemp("made") / "site")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """Another consortium, whose members have the same names."""
    return Site(tmp_path_factory.mktemp("other") / "site", consortium="Süd")


def model_of(folder):
    return safetensors.torch.load_file(folder / "model.safetensors")


def same(folder, alone, atol):
    """Two runs' folders have the same model, but for rounding."""
    model, wanted = model_of(folder), model_of(alone)
    assert model.keys() == wanted.keys()
    for name, value in model.items():
        torch.testing.assert_close(value, wanted[name], atol=atol, rtol=0)


# Whole runs.


@pytest.mark.parametrize("encrypt", ["none", "model"])
def test_a_run_over_calls_gives_the_model_of_one_process(tmp_path, encrypt):
    """In the clear bit for bit, sealed to what is rounded; who carries it reads nothing of it."""
    site = Site(tmp_path / "site", encrypt=encrypt, rounds=2)
    loop = Loop(site)
    loop.authority = lambda: authority_process(site, loop.keeper, loop.config, loop.said.append)
    folder = RunFolder.begun_or_new(site.folder / "run", site.config)
    betweens = asyncio.run(federation_by_calls(loop, folder))
    alone = site.in_one_process()
    same(site.folder / "run", alone, 1e-6 if site.sealed else 0)
    if not site.sealed:
        assert messages(site.record) == messages(read_run(alone))
    weights = max(model_of(alone).values(), key=torch.numel).numpy().tobytes()
    for name, between in betweens.items():
        if name == "authority" and not site.sealed:
            assert not between.given
            continue
        chunks = [chunk for _, chunk in (*between.given, *between.taken)]
        assert len(chunks) > 5
        assert not any(weights[:64] in chunk for chunk in chunks)
        assert not any(settings_digest(site.config).encode() in chunk for chunk in chunks)


def with_officers(folder, rounds=2):
    """A federation of whose officers 2 of 3 open sums, and the run of one authority's keys."""
    site = Site(folder, encrypt="model", rounds=rounds)
    alone = site.in_one_process()
    seat_officers(site)
    site.job.write_text(site.job.read_text().replace("[sites]", "officers = 3\n[sites]"))
    return site, alone


def test_officers_open_over_calls(tmp_path):
    """Each has its own site, and answers by its own file; the model is that of one authority."""
    site, alone = with_officers(tmp_path / "site")
    loop = Loop(site)
    loop.authority = lambda: authority_process(site, loop.keeper, loop.config, loop.said.append)
    folder = RunFolder.begun_or_new(site.folder / "run", site.config)
    with ExitStack() as stack:
        officers = {}
        for name in OTHERS:
            path = officers_file(site, tmp_path, name)
            part = party(path, *job_of(site.config), loop.said.append)
            officers[name] = stack.enter_context(part)
        betweens = asyncio.run(federation_by_calls(loop, folder, officers))
    same(site.folder / "run", alone, 1e-6)
    assert all(betweens[name].given for name in OTHERS)
    n_opened = len(site.openings.read_text().splitlines())
    assert n_opened
    for name in OTHERS:
        log = site.folder / name / layout.OFFICER_LOG / OPENINGS
        assert len(log.read_text().splitlines()) == n_opened
    assert not site.incidents


def test_a_client_whose_line_breaks_joins_again(tmp_path):
    """The carrier fails for a moment: the connection is lost, and taken up by another."""
    site = Site(tmp_path / "site", encrypt="none", rounds=3, reproducible=False)
    patient = site.job.read_text().replace("wait_s = 0.0", "wait_s = 20.0\nquorum = 3")
    site.job.write_text(patient)
    loop = Loop(site)
    broken = []

    class Breaks(Between):
        def give(self, connection, chunk):
            if len(self.given) > 3 and not broken:
                broken.append(connection)
            if connection in broken:
                raise RuntimeError("this connection is gone")
            return super().give(connection, chunk)

    folder = RunFolder.begun_or_new(site.folder / "run", site.config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_calls, "Between", Breaks)
        betweens = asyncio.run(federation_by_calls(loop, folder))
    assert len(site.record.metrics) == 3
    assert loop.has_said("the connection is lost .RuntimeError.; joining again")
    assert max(len({c for c, _ in b.given}) for b in betweens.values()) == 2


# A stream of chunks.


def exchanged(site, act, serve=None, **about):
    """What comes of `act(link, between)` at a caller, where `serve(link)` answers."""
    said = []

    async def echo(link):
        while True:
            received = await link.receive({Frame.MESSAGE: 2**24})
            await link.send(Frame.TOTAL, received.body)

    async def scenario():
        async with heard(site, serve or echo, said, **about) as between:
            own, trust = site.identity("alice"), site.bundle("client")
            link = await connected(own, trust, "server", ByCalls(between), 2.0)
            try:
                return await act(link, between)
            finally:
                await link.finish()

    return asyncio.run(scenario()), said


def test_frames_of_several_chunks_travel_both_ways_in_order(made):
    bodies = [bytes([n]) * BIG for n in range(3)]

    async def act(link, between):
        assert link.name == SERVER
        back = []
        for body in bodies:
            await link.send(Frame.MESSAGE, body)
            back.append((await link.receive({Frame.TOTAL: 2**24})).body)
        return back, between.given

    (back, given), _ = exchanged(made, act)
    assert back == bodies
    assert len(given) == 3 + 3 * 3 + 1  # the handshake, three chunks of each, and goodbye


def test_who_hangs_up_is_heard_out(made):
    """What was said before can still be read, at either end; then the peer is gone."""

    async def serve(link):
        await link.receive({Frame.MESSAGE: 8})
        await link.send(Frame.GOODBYE, b"why")

    async def act(link, between):
        await link.send(Frame.MESSAGE, b"last")
        while not link.lost:
            await asyncio.sleep(0.01)
        with pytest.raises(PeerError, match="has closed the connection"):
            await link.send(Frame.MESSAGE, b"more")
        heard_out = await link.receive({Frame.GOODBYE: 8})
        with pytest.raises(PeerError, match="hub: has closed the connection"):
            await link.receive({Frame.GOODBYE: 8})
        return heard_out.body

    assert exchanged(made, act, serve)[0] == b"why"

    heard_here = []

    async def listens(link):
        await asyncio.sleep(0.3)  # the caller has left by now
        heard_here.append((await link.receive({Frame.MESSAGE: 8})).body)
        with pytest.raises(PeerError, match="alice: has closed the connection"):
            await link.receive({Frame.MESSAGE: 8})
        heard_here.append("gone")

    async def leaves(link, between):
        await link.send(Frame.MESSAGE, b"last")
        await link.finish()
        await asyncio.sleep(0.6)

    exchanged(made, leaves, listens)
    assert heard_here == [b"last", "gone"]


def test_a_listener_that_does_not_read_holds_the_caller_up_and_loses_nothing(made, monkeypatch):
    """Few chunks wait; the others are given again and again until there is room."""
    monkeypatch.setattr(securefl.nvflare.calls, "HELD_S", 0.05)
    begin, answers = asyncio.Event(), []

    class Notes(Between):
        def give(self, connection, chunk):
            answers.append(super().give(connection, chunk))
            return answers[-1]

    async def serve(link):
        await begin.wait()
        for number in range(12):
            assert (await link.receive({Frame.MESSAGE: 9})).body == b"%d" % number
        await link.send(Frame.DONE)

    async def act(link, between):
        async def send_all():
            for number in range(12):
                await link.send(Frame.MESSAGE, b"%d" % number)

        sending = asyncio.create_task(send_all())
        await asyncio.sleep(0.5)
        assert not sending.done()
        assert answers.count(FULL) >= 3
        assert answers.count(TAKEN) < 10
        begin.set()
        await sending
        await link.receive({Frame.DONE: 0})

    exchanged(made, act, serve, between=Notes("alice"))


def test_a_caller_that_asks_no_more_is_lost(made, monkeypatch):
    """Its process was killed, and nobody says so: the listener notices by itself."""
    monkeypatch.setattr(securefl.network.stream, "SILENT_S", 0.6)
    monkeypatch.setattr(securefl.network.stream, "BEAT_S", 0.1)
    lost = []

    async def serve(link):
        with pytest.raises(PeerError) as error:
            await link.receive({Frame.MESSAGE: 8})
        lost.append(str(error.value))

    async def act(link, between):
        between.down = True
        for _ in range(100):
            await asyncio.sleep(0.1)
            if lost:
                break

    monkeypatch.setattr(securefl.nvflare.calls, "HELD_S", 0.05)
    exchanged(made, act, serve)
    assert lost == ["alice: silent for 0.6 s, the connection is lost"]


def test_one_site_opens_few_connections_and_none_of_another(made):
    """Who carries calls names their site; a connection's number is worth nothing to others."""

    async def act(link, between):
        (number, _), *_ = between.given
        desk, loop = between.desk, asyncio.get_running_loop()

        def ask(what, *args):
            return loop.run_in_executor(None, getattr(desk, what), *args)

        assert await ask("take", "mallory", number) == b""
        await ask("leave", "mallory", number)
        opened = [await ask("begin", "mallory", f"{n}", bytes(40)) for n in range(6)]
        await link.send(Frame.MESSAGE, b"still here")
        return opened, (await link.receive({Frame.TOTAL: 99})).body

    (opened, echo), _ = exchanged(made, act)
    assert opened == [TAKEN] * 4 + [OVER] * 2
    assert echo == b"still here"


# Whoever carries the chunks, as an attacker.


def attacks(kind):
    """Of the chunks after a handshake, what is handed on in their place."""
    held = []

    def on_give(chunk):
        on_give.n += 1
        held.append(chunk)
        if on_give.n <= 2:  # the end of the handshake
            return [chunk]
        return {
            "changed": [chunk[:-1] + bytes([chunk[-1] ^ 1])],
            "repeated": [chunk, chunk],
            "left out": [chunk] if on_give.n > 3 else [],
            "swapped": held[:1:-1] if on_give.n == 4 else [],
            "cut": [chunk[:10]],
            "in the clear": [b"\x05\0\0\0\x03one"],
        }[kind]

    on_give.n = 0
    return on_give


@pytest.mark.parametrize(
    "kind", ["changed", "repeated", "left out", "swapped", "cut", "in the clear"]
)
def test_a_chunk_that_is_not_the_next_ends_the_connection(made, kind):
    got, ended = [], []

    async def serve(link):
        try:
            while True:
                got.append((await link.receive({Frame.MESSAGE: 99})).body)
        except PeerError as error:
            ended.append(str(error))

    async def act(link, between):
        bodies = iter((b"one", b"two"))
        while not ended:  # half a record is noticed once more comes
            with suppress(PeerError):
                await link.send(Frame.MESSAGE, next(bodies, b"more"))
            await asyncio.sleep(0.01)

    between = Between("alice", on_give=attacks(kind))
    exchanged(made, act, serve, between=between)
    assert got == ([b"one"] if kind == "repeated" else [])
    assert "a chunk came that is not the peer's next one" in ended[0]


def test_a_changed_chunk_of_the_servers_ends_the_connection_too(made):
    def on_take(chunk):
        on_take.n += 1
        return chunk if on_take.n <= 2 else chunk[:-1] + bytes([chunk[-1] ^ 1])

    on_take.n = 0

    async def act(link, between):
        await link.send(Frame.MESSAGE, MARKER)
        with pytest.raises(PeerError, match="hub: a chunk came that is not the peer's next one"):
            await link.receive({Frame.TOTAL: 99})
        assert link.lost
        assert not any(MARKER in chunk for _, chunk in (*between.given, *between.taken))

    exchanged(made, act, between=Between("alice", on_take=on_take))


def test_the_two_directions_have_keys_of_their_own(made):
    """A chunk that is sent back to whoever sealed it is not the peer's."""

    class Mirror(Between):
        def take(self, connection):
            chunk = super().take(connection)
            return self.given[-1][1] if chunk and len(self.taken) > 2 else chunk

    async def act(link, between):
        await link.send(Frame.MESSAGE, MARKER)
        with pytest.raises(PeerError, match="hub: a chunk came that is not the peer's next one"):
            await link.receive({Frame.TOTAL: 99, Frame.MESSAGE: 99})

    exchanged(made, act, between=Mirror("alice"))


def test_pieces_may_be_cut_elsewhere(made):
    """Whoever carries them may, as chunks have a length of their own within TLS."""

    def halves(piece):
        middle = len(piece) // 2
        return [piece[:middle], piece[middle:]]

    async def act(link, between):
        await link.send(Frame.MESSAGE, bytes(BIG))
        return (await link.receive({Frame.TOTAL: 2**24})).body

    assert exchanged(made, act, between=Between("alice", on_give=halves))[0] == bytes(BIG)


@pytest.mark.parametrize("kind", ["by its carrier", "no goodbye", "half a goodbye"])
def test_a_stream_that_is_cut_off_has_not_ended_well(made, kind):
    """The way ends, and the peer's goodbye has not come."""
    got, ended = [], []

    async def serve(link):
        try:
            while True:
                got.append((await link.receive({Frame.MESSAGE: 99})).body)
        except PeerError as error:
            ended.append(str(error))

    async def act(link, between):
        await link.send(Frame.MESSAGE, b"one")
        while not got:
            await asyncio.sleep(0.01)
        if kind == "by its carrier":
            await asyncio.to_thread(between.desk.leave, between.name, between.given[0][0])
        else:
            between.on_give = lambda piece: [piece[:9]] if kind == "half a goodbye" else []
            await link.finish()
        while not ended:
            await asyncio.sleep(0.01)

    exchanged(made, act, serve)
    assert got == [b"one"]
    assert ended == ["alice: the connection was cut off"]


@pytest.mark.parametrize("n_bytes", [0, 2**20 + 1, 2**32 - 1])
def test_a_chunk_of_a_length_that_none_has_is_refused(made, n_bytes):
    """A member says so itself, whose records are sound."""
    ended = []

    async def serve(link):
        with pytest.raises(PeerError) as error:
            await link.receive({Frame.MESSAGE: 99})
        ended.append(str(error.value))

    async def act(link, between):
        link._stream._seal(n_bytes.to_bytes(4, "big") + bytes(99))
        await link._stream._hand_over()
        while not ended:
            await asyncio.sleep(0.01)

    exchanged(made, act, serve)
    assert ended == [f"alice: sent a chunk of {n_bytes} bytes, which none has"]


def test_a_peer_that_asks_for_new_keys_alone_fills_no_memory(made):
    """TLS has an answer to each of its questions, which wait for a chunk to go with."""
    ended = []

    async def serve(link):
        link._stream._going.write(bytes(PIECE_BYTES + 1))  # what OpenSSL has answered by then
        await link.receive({Frame.MESSAGE: 99})
        with pytest.raises(PeerError) as error:
            await link.receive({Frame.MESSAGE: 99})
        ended.append(str(error.value))

    async def act(link, between):
        await link.send(Frame.MESSAGE, b"x")
        while not ended:
            await asyncio.sleep(0.01)

    exchanged(made, act, serve)
    assert ended == ["alice: asks for new keys and for nothing else"]


# Proofs of identity.


def refused(site, attack, **about):
    """What a server says to `attack(way, between)`, which begins a connection by hand."""
    said, served = [], []

    async def serve(link):
        served.append(link.name)

    async def scenario():
        async with heard(site, serve, said, **about) as between:
            way = CallersWay(between)
            with suppress(PeerError):
                await attack(way, between)
                async with asyncio.timeout(5):
                    while await way.take():
                        pass
            await way.leave()

    asyncio.run(scenario())
    assert not served
    return said


def unchanged(flight):
    return flight


async def greeting(way, tls, first=unchanged, last=unchanged):
    """Shake hands by hand, with something else in the place of either flight."""
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    end = tls.wrap_bio(coming, going, server_hostname="server.securefl")
    with pytest.raises(ssl.SSLWantReadError):
        end.do_handshake()
    await way.give(first(going.read()))
    coming.write(await way.take())
    with suppress(ssl.SSLError):  # it may be an alert
        end.do_handshake()
        await way.give(last(going.read()))
    return end, going


def call_by(identity, **flights):
    """An attack: shake hands with this identity, and say a number."""

    async def attack(way, between):
        end, going = await greeting(way, callers_tls(identity), **flights)
        with suppress(ssl.SSLError):
            end.write((32).to_bytes(4, "big") + bytes(32))
        await way.give(going.read())

    return attack


def test_who_shows_another_ones_certificate_is_refused(made):
    """Bob has a key of the consortium, but not that of the certificate that he shows.

    OpenSSL lets nobody do so: his key is in a file that says that its public half is alice's.
    """
    alice, bob = made.identity("alice"), made.identity("bob")
    of_alice, of_bob = (
        one.transport_key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        for one in (alice, bob)
    )
    key = bob.transport_key.private_bytes(
        Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption()
    )
    assert of_bob in key
    lie = ssl.DER_cert_to_PEM_cert(key.replace(of_bob, of_alice))
    lie = lie.replace("CERTIFICATE", "EC PRIVATE KEY").encode()

    class Lying(type(bob)):
        def encrypted_transport_key_pem(self, password):
            return lie

    liar = Lying("bob", bob.certificate, bob.ca, bob.key, alice.transport, bob.transport_key)
    assert refused(made, call_by(liar)) == ["Refused: the handshake fails (bad signature)"]


@pytest.mark.parametrize("what", ["changed", "changed at its end", "cut", "of another", "nothing"])
def test_a_proof_of_something_else_is_refused(made, what):
    """The last flight has the caller's certificate, and its signature of all that was said."""
    alice, recorded = made.identity("alice"), []

    def last(flight):
        return {
            "changed": flight[:100] + bytes([flight[100] ^ 1]) + flight[101:],
            "changed at its end": flight[:-1] + bytes([flight[-1] ^ 1]),
            "cut": flight[:-1],
            "of another": recorded[0] if recorded else flight,
            "nothing": b"\x17\x03\x03\0\x11" + bytes(17),
        }[what]

    async def attack(way, between):
        if what == "of another":
            other = CallersWay(between)
            await greeting(other, callers_tls(alice), last=lambda f: recorded.append(f) or f)
            await other.leave()
        await call_by(alice, last=last)(way, between)

    words = [line for line in refused(made, attack) if "cut off" not in line]
    mac = "Refused: the handshake fails (decryption failed or bad record mac)"
    # A record that lacks a byte takes the next chunk's first one, or has none that fits behind it.
    late = "Refused: a chunk came that is not the peer's next one (bad record type)"
    assert words in ([mac], [late] if what == "cut" else [mac])


def test_a_proof_that_was_recorded_is_refused_anew(made):
    """Whoever carries a handshake, and plays it again, meets another number."""
    said = []

    async def serve(link):
        said.append(f"served {link.name}")

    async def scenario():
        async with heard(made, serve, said) as between:
            own, trust = made.identity("alice"), made.bundle("client")
            link = await connected(own, trust, "server", ByCalls(between), 2.0)
            await link.finish()
            way = CallersWay(between)
            with suppress(PeerError):
                for _, piece in between.given[:3]:
                    await way.give(piece)
                while await way.take():
                    pass
            await way.leave()

    asyncio.run(scenario())
    words = "Refused: the handshake fails (decryption failed or bad record mac)"
    assert said == ["served alice", words]


def test_who_shows_no_certificate_is_refused(made):
    async def attack(way, between):
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        bare.load_verify_locations(cadata=made.identity("alice").ca_pem.decode())
        await greeting(way, bare)

    words = "Refused: the handshake fails (peer did not return a certificate)"
    assert refused(made, attack) == [words]


def test_an_older_tls_is_refused(made):
    async def attack(way, between):
        tls = callers_tls(made.identity("alice"))
        tls.minimum_version = tls.maximum_version = ssl.TLSVersion.TLSv1_2
        await greeting(way, tls)

    assert refused(made, attack) == ["Refused: the handshake fails (unsupported protocol)"]


def test_members_of_another_consortium_and_of_another_role_are_refused(made, stranger):
    not_issued = "no trusted peer (unable to get local issuer certificate)"
    ca = made.identity("alice").ca
    for own, reason in (
        (another(stranger.identity("alice"), ca=ca), not_issued),
        (made.identity(SERVER, "server"), "certificate purpose)"),
        (made.identity("authority", "authority"), "is for the role authority, not for client"),
        (issued(made, "dora"), "'dora' is no member"),
        (issued(made, "alice"), "the roster lists another identity key"),
        (issued(made, "alice", at=LONG_AGO), "no trusted peer (certificate has expired)"),
    ):
        (words,) = refused(made, call_by(own))
        assert words.startswith("Refused: "), words
        assert reason in words, words
        if "trusted peer" not in words:
            assert "a peer: the peer is no client of this consortium" in words, words


def test_a_revoked_client_is_refused(tmp_path):
    site = Site(tmp_path / "site")
    carol = site.identity("carol")
    site.rotate(revoking="carol")
    site.export("after")
    (site.folder / "bundles").rename(site.folder / "before")
    (site.folder / "after").rename(site.folder / "bundles")
    (words,) = refused(site, call_by(carol))
    assert "of 'carol' was revoked" in words


def test_who_is_refused_is_told_why_not(made, stranger):
    """TLS 1.3 tells a caller after its own handshake."""
    own = another(stranger.identity("alice"), ca=made.identity("alice").ca)

    async def scenario():
        async with heard(made, None, []) as between:
            await connected(own, made.bundle("client"), "server", ByCalls(between), 2.0)

    words = "refuses the connection .*unknown ca.; has its consortium issued this certificate"
    with pytest.raises(PeerError, match=words):
        asyncio.run(scenario())


@pytest.mark.parametrize("piece", [b"\0", bytes(32), bytes(33), bytes(400), b"\x16\x03\1\xff\xff"])
def test_who_does_not_begin_with_tls_is_refused(made, piece):
    async def attack(way, between):
        await way.give(piece)
        await way.leave()

    (words,) = refused(made, attack)
    assert "the handshake fails" in words or "cut off" in words


@pytest.mark.parametrize("n_bytes", [1, 31, 33])
def test_who_does_not_begin_with_a_number_is_refused(made, n_bytes):
    """A member of the consortium, whose challenge is none."""

    async def attack(way, between):
        end, going = await greeting(way, callers_tls(made.identity("alice")))
        end.write(n_bytes.to_bytes(4, "big") + bytes(n_bytes))
        await way.give(going.read())

    words = "Refused: a peer that does not begin with a number of its own"
    assert refused(made, attack) == [words]


def test_a_number_that_makes_the_key_known_to_all_is_refused(made):
    """X25519 with the point 0 gives 0, whoever else has a part in it."""
    changed = []

    def first(hello):
        at = hello.index(bytes.fromhex("001d0020")) + 4
        changed.append(hello[:at] + bytes(32) + hello[at + 32 :])
        return changed[0]

    (words,) = refused(made, call_by(made.identity("alice"), first=first))
    assert words.startswith("Refused: the handshake fails ("), words
    assert len(changed) == 1


def called_by_alice(site, own):
    """What alice says of a listener with this identity."""

    async def scenario():
        async with heard(site, lambda _: asyncio.sleep(0), [], own=own) as between:
            alice, trust = site.identity("alice"), site.bundle("client")
            await connected(alice, trust, "server", ByCalls(between), 0.0)

    with pytest.raises(PeerError) as error:
        asyncio.run(scenario())
    return str(error.value)


def test_a_listener_that_is_no_server_is_refused(made, stranger):
    """A client, the authority, or another consortium's server, in the place of the server."""
    ca = made.identity("alice").ca
    others = made.identity("bob"), made.identity("authority", "authority")
    for own in (*others, another(stranger.identity(SERVER, "server"), ca=ca)):
        assert "NVIDIA FLARE: no trusted peer" in called_by_alice(made, own)


def test_a_listener_with_another_identity_than_its_transport_is_refused(made, stranger):
    """TLS has let it in; its own proof does not."""
    hub, bob = made.identity(SERVER, "server"), made.identity("bob")
    other = stranger.identity(SERVER, "server")
    for own, words in (
        (another(hub, certificate=bob.certificate, key=bob.key), "the peer is no server"),
        (another(hub, certificate=other.certificate, key=other.key), "the peer is no server"),
        (another(hub, key=other.key), "has not the key of the identity"),
    ):
        assert words in called_by_alice(made, own)


@pytest.mark.parametrize("what", ["number", "caller"])
def test_who_passes_on_a_proof_for_another_is_refused(made, what):
    """Of another connection, or for another caller."""

    async def scenario():
        wire, hub, own = Wire(), made.identity(SERVER, "server"), made.identity("alice")
        alice = TlsStream(wire, callers_tls(own), "server.securefl")
        mallory = TlsStream(wire.other_end, listeners_tls(hub))
        work = asyncio.create_task(introduced(own, made.bundle("client"), "server", alice))
        await mallory.agree()
        number, asks = await mallory.read(), own
        if what == "number":
            number = bytes([number[0] ^ 1]) + number[1:]
        else:
            asks = made.identity("bob")
        signed = Challenge(asks.transport_certificate, number)
        await mallory.write(signed.answer(hub.certificate, hub.key))
        with pytest.raises(PeerError, match="the peer has not the key of the identity that it"):
            await work
        for end in (mallory, alice):
            await end.finish()

    asyncio.run(scenario())


class Wire:
    """A `Way` to another end in this loop."""

    def __init__(self, other=None):
        self._pieces = asyncio.Queue()
        self.seen = []
        self.other_end = other or Wire(self)

    async def give(self, piece):
        self.seen.append(piece)
        self.other_end._pieces.put_nowait(piece)

    async def take(self):
        return await self._pieces.get()

    async def leave(self):
        self.other_end._pieces.put_nowait(b"")


def test_both_ends_agree_where_nobody_meddles(made, tmp_path, monkeypatch):
    """The same handshake, its two halves by themselves; in between nobody sees who it is."""
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys-of-all-connections"))

    async def scenario():
        wire, hub, own = Wire(), made.identity(SERVER, "server"), made.identity("alice")
        one = TlsStream(wire, callers_tls(own), "server.securefl")
        other = TlsStream(wire.other_end, listeners_tls(hub))
        greeting = asyncio.create_task(greeted(hub, other))
        name, _ = await introduced(own, made.bundle("client"), "server", one)
        assert (name, await greeting) == (SERVER, own.transport_certificate)
        await one.write(b"there")
        await other.write(b"back")
        assert (await other.read(), await one.read()) == (b"there", b"back")
        for end in (one, other):
            assert end._tls.version() == "TLSv1.3"
            assert not end._tls.session_reused
            assert not (end._tls.session and end._tls.session.has_ticket)
            await end.finish()
            with pytest.raises(PeerError, match="has closed the connection"):
                await end.read()
        seen = b"".join(wire.seen + wire.other_end.seen)
        assert b"server.securefl" in seen  # the host that it calls, and nothing else
        assert not any(word in seen for word in (b"alice", b"hub", b"urn:", b"there", b"back"))

    asyncio.run(scenario())
    assert not any(tmp_path.iterdir())


def test_the_consortiums_ca_alone_is_trusted_and_nothing_of_a_certificate_passed_over(made):
    own = made.identity("alice")
    for tls in (callers_tls(own), listeners_tls(own)):
        assert tls.get_ca_certs(binary_form=True) == [own.ca.public_bytes(Encoding.DER)]
        assert tls.verify_mode is ssl.CERT_REQUIRED
        assert tls.verify_flags & ssl.VERIFY_X509_STRICT
        assert not tls.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN
        assert tls.minimum_version is tls.maximum_version is ssl.TLSVersion.TLSv1_3
    assert callers_tls(own).check_hostname
    assert listeners_tls(own).num_tickets == 0


def test_the_transport_key_lies_nowhere_in_the_clear(made, tmp_path, monkeypatch):
    """Python's TLS reads it from a file: encrypted, for nobody else, and gone at once."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    alice, found = made.identity("alice"), []
    load = ssl.SSLContext.load_cert_chain

    def looks(self, path, *, password):
        found.append((path.read_bytes(), path.stat().st_mode, path.parent.stat().st_mode))
        assert load_pem_private_key(found[0][0], password.encode()) is not None
        load(self, path, password=password)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", looks)
    callers_tls(alice)
    ((pem, mode, folders_mode),) = found
    assert (mode & 0o777, folders_mode & 0o777) == (0o600, 0o700)
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in pem
    with pytest.raises(TypeError, match="not given"):
        load_pem_private_key(pem, None)
    assert not any(tmp_path.iterdir())


def test_a_machine_without_room_for_the_key_says_so(made, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", full)
    with pytest.raises(KeyFileError, match=r"alice: its transport key .*: No space left on device"):
        callers_tls(made.identity("alice"))


def test_nobody_there_is_waited_for_and_then_said(made):
    """Its side of the job has not begun; then the caller says so in words."""

    async def scenario():
        own, trust = made.identity("alice"), made.bundle("client")
        await connected(own, trust, "server", ByCalls(Between("alice")), 0.1)

    begin = time.monotonic()
    with pytest.raises(PeerError, match=r"NVIDIA FLARE: nobody answers .the connection is lost"):
        asyncio.run(scenario())
    assert time.monotonic() - begin < 20


# The job's folder.


def exported(folder, *args):
    result = CliRunner().invoke(main, ["nvflare", "export", *map(str, args)])
    return result, folder


FILES = {"meta.json", "app/config/config_fed_server.json", "app/config/config_fed_client.json"}


def test_a_job_holds_digests_and_no_secret(made, tmp_path):
    """Its files, and that none has a secret, a passphrase or a path of any party in it."""
    out = tmp_path / "job"
    result, _ = exported(out, made.job, "--out", out, "--authority", "keeper")
    assert result.exit_code == 0, result.output
    assert "nvflare job submit -j" in result.output
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert files == FILES
    assert found_under([out], secrets_of(made)) == set()
    texts = [(out / path).read_text() for path in FILES]
    assert not any(word in text for text in texts for word in (str(made.folder), "BEGIN", "key"))
    meta = json.loads((out / "meta.json").read_text())
    assert meta["deploy_map"] == {"app": ["server", *CLIENTS, "keeper"]}
    assert (meta["min_clients"], meta["name"]) == (4, made.config.name)
    digests = {
        "settings": settings_digest(made.config),
        "by_setting": digests_by_setting(made.config),
    }
    for side, name in (("Server", "server"), ("Site", "client")):
        config = json.loads((out / f"app/config/config_fed_{name}.json").read_text())
        (component,) = config["components"]
        assert component["path"] == f"{SIDES}.{side}Side"
        assert component["args"] == digests
        source = Path(securefl.__file__).parents[1] / "cli" / f"{SIDES.replace('.', '/')}.py"
        assert f"\nclass {side}Side" in source.read_text()
    each = [value for table in digests["by_setting"].values() for value in table.values()]
    assert all(re.fullmatch("[0-9a-f]{16}", value) for value in each)


def test_a_planted_secret_in_a_job_is_found(made, tmp_path):
    """The search above finds a passphrase, and a key."""
    out = tmp_path / "job"
    write_job(out, made.config, (), "keeper")
    needles = secrets_of(made)
    planted = needles["alice's passphrase"][0] + needles["alice's seed"][0]
    (out / "app/config/more.json").write_bytes(b"{" + planted)
    assert found_under([out], needles) == {"alice's passphrase", "alice's seed"}


def test_in_the_clear_the_authority_has_no_part(tmp_path, made):
    config = securefl.load_config(made.job, ['exchange.encrypt="none"'])
    write_job(tmp_path / "job", config, ("north", "south", "east"), "keeper")
    meta = json.loads((tmp_path / "job/meta.json").read_text())
    assert meta["deploy_map"]["app"] == ["server", "north", "south", "east"]


def test_officers_have_sites_of_their_own(tmp_path, made):
    """One for each beside the authority, in whose name nobody else takes part."""
    settings = ['exchange.encrypt="model"', "exchange.officers=3"]
    config = securefl.load_config(made.job, settings)
    write_job(tmp_path / "job", config, (), "keeper", OTHERS)
    meta = json.loads((tmp_path / "job/meta.json").read_text())
    assert meta["deploy_map"]["app"] == ["server", *CLIENTS, "keeper", *OTHERS]
    assert meta["min_clients"] == len(CLIENTS) + 3
    for officers, words in (
        (["olga"], "1 sites of officers"),
        (["olga", "keeper"], "'keeper': no name of a site"),
        (["olga", "alice"], "'alice': no name of a site"),
    ):
        with pytest.raises(ConfigError, match=words):
            write_job(tmp_path / "other", config, (), "keeper", officers)
    with pytest.raises(ConfigError, match=r"2 sites of officers, and exchange\.officers = 1"):
        write_job(tmp_path / "other", made.config, (), "keeper", OTHERS)


@pytest.mark.parametrize(
    ("settings", "sites", "words"),
    [
        (["exchange.officers=3"], (), "0 sites of officers, and exchange.officers = 3"),
        (['devices.preset="cifar10"'], (), "separate processes"),
        (["data.names=[]"], (), "name their sites with --site"),
        ([], ("north", "south"), "2 sites for 3 clients"),
        ([], ("a", "b", "../c"), "'../c': no name of a site"),
        ([], ("a", "b", "server"), "'server': no name of a site"),
        ([], ("a", "b", "keeper"), "'keeper': no name of a site"),
    ],
)
def test_what_cannot_run_there_is_refused_in_words(made, tmp_path, settings, sites, words):
    out = tmp_path / "job"
    with pytest.raises(ConfigError, match=re.escape(words)):
        write_job(out, securefl.load_config(made.job, settings), sites, "keeper")
    assert not out.exists()


def test_a_folder_that_is_there_is_left_alone(made, tmp_path):
    with pytest.raises(RunFolderError, match="is there already"):
        write_job(tmp_path, made.config, (), "keeper")
    assert not any(tmp_path.iterdir())


# What lies at the sites.


def written(made, folder, party="alice", **paths):
    """A site's file."""
    files = {"settings": made.job, "passphrase_file": made.passphrase_file(party), **paths}
    path = folder / "securefl.toml"
    path.write_text("".join(f'{name} = "{value}"\n' for name, value in files.items()))
    return path


def officers_file(site, folder, name):
    """The file of an officer's site."""
    (folder / name).mkdir()
    own = {"bundle": site.folder / "bundles/officer", "officer": site.folder / name}
    return written(site, folder / name, name, **own)


def job_of(config):
    return settings_digest(config), digests_by_setting(config)


def test_a_site_takes_part_in_settings_alone_that_it_has(made, tmp_path):
    """A job of other settings would have other values leave it: it says which settings differ."""
    own = {"bundle": made.folder / "bundles/client", "identity": made.folder / "alice"}
    path = written(made, tmp_path, **own)
    other = job_of(securefl.load_config(made.job, ['exchange.encrypt="none"', "train.lr=0.25"]))
    with pytest.raises(
        ConfigError, match=r"other settings than this site, in exchange\.encrypt, train\.lr: a"
    ):
        party(path, *other, print).__enter__()
    with party(path, *job_of(made.config), print) as part:
        assert callable(part)
    folder = tmp_path / "looked-at"
    folder.mkdir()
    (folder / "a.toml").write_text(made.job.read_text() + "\n[train]\nlr = 0.25\n")
    (folder / "b.toml").write_text(made.job.read_text())
    path = written(made, tmp_path, **own | {"settings": folder})
    with party(path, *job_of(made.config), print) as part:
        assert callable(part)
    with pytest.raises(ConfigError, match="the job has other settings than this site: a site"):
        party(path, *other, print).__enter__()


def test_the_authority_takes_part_with_its_keys(made, tmp_path):
    path = written(made, tmp_path, "authority", keys=made.keys)
    with party(path, *job_of(made.config), print) as part:
        assert callable(part)


def test_an_officer_takes_part_with_its_own_card_key(tmp_path):
    """One process serves its folder, and nobody else's identity stands in for it."""
    site, _ = with_officers(tmp_path / "site", rounds=1)
    sites = [word for name in OTHERS for word in ("--officer", name)]
    result, out = exported(tmp_path / "job", site.job, "--out", tmp_path / "job", *sites)
    assert result.exit_code == 0, result.output
    meta = json.loads((out / "meta.json").read_text())
    assert meta["mandatory_clients"] == [*CLIENTS, "authority", *OTHERS]
    path, job = officers_file(site, tmp_path, "olga"), job_of(site.config)
    with party(path, *job, print) as part:
        assert callable(part)
        with pytest.raises(KeyFileError, match="another officer process"):
            party(path, *job, print).__enter__()
    text = path.read_text()
    for other, words in ((site.folder / "otto", "passphrase"), (site.folder / "alice", "officer")):
        path.write_text(text.replace(f'"{site.folder / "olga"}"', f'"{other}"'))
        with pytest.raises(KeyFileError, match=words):
            party(path, *job, print).__enter__()


def test_a_server_whose_environment_holds_a_secret_does_not_begin(made, tmp_path, monkeypatch):
    own = {"bundle": made.folder / "bundles/server", "identity": made.folder / SERVER}
    path = written(made, tmp_path, SERVER, **own, out=tmp_path / "run")
    monkeypatch.setenv("SECUREFL_PASSPHRASE", "x")
    with pytest.raises(ConfigError, match="a server's environment is to hold no secret"):
        server(path, *job_of(made.config), print).__enter__()


def test_a_site_without_a_file_or_a_passphrase_says_what_is_missing(made, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"securefl\.toml: no such file"):
        site_file(tmp_path)
    own = {"bundle": made.folder / "bundles/client", "identity": made.folder / "alice"}
    path = written(made, tmp_path, **own)
    assert site_file(tmp_path) == path
    monkeypatch.setenv("SECUREFL_NVFLARE", str(tmp_path / "elsewhere.toml"))
    with pytest.raises(ConfigError, match=r"elsewhere\.toml: no such file"):
        site_file(tmp_path)
    lines = [line for line in path.read_text().splitlines() if "passphrase" not in line]
    path.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="no passphrase: name a passphrase_file"):
        party(path, *job_of(made.config), print).__enter__()


def test_without_nvidia_flare_the_error_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "nvflare"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, SIDES, raising=False)
    monkeypatch.setitem(sys.modules, "nvflare", None)
    with pytest.raises(ConfigError, match=r"pip install 'securefl\[nvflare\]'"):
        importlib.import_module(SIDES)


def test_nothing_but_a_job_loads_nvidia_flare():
    code = (
        "import sys, securefl, securefl_cli.main, securefl_cli.nvflare_site, securefl_cli."
        "nvflare; sys.exit('nvflare' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# The thing itself.


@pytest.fixture(scope="module")
def poc(tmp_path_factory):
    """NVIDIA FLARE's server and four sites on this machine, each a process with a job process."""
    pytest.importorskip("nvflare")
    nvflare_poc = importlib.import_module("nvflare_poc")
    folder = tmp_path_factory.mktemp("poc")
    with nvflare_poc.Poc(folder / "nvflare", CLIENTS).running() as running:
        yield running


def handed_over(poc, site, folder):
    """Hand over the job of a federation; return its number."""
    poc.own_files(site)
    write_job(folder, site.config, (), poc.authority if site.sealed else "")
    return poc.session.submit_job(str(folder))


def same_as_alone(site, atol):
    same(site.folder / "run", site.in_one_process(), atol)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("encrypt", "atol"), [("none", 0), ("model", 1e-6)])
def test_nvidia_flare_gives_the_model_of_one_process(poc, tmp_path, encrypt, atol):
    """Three sites, and the authority where anything is sealed: as `securefl run`, to the bit."""
    site = Site(tmp_path / "site", encrypt=encrypt, rounds=3)
    job = handed_over(poc, site, tmp_path / "job")
    assert poc.ended(job) == "FINISHED:COMPLETED", poc.said()
    same_as_alone(site, atol)
    assert len(site.record.metrics) == 3
    if site.sealed:
        assert len(site.openings.read_text().splitlines()) == 3 * 5
    logs = [path for path in poc.folder.rglob("*") if path.is_file()]
    needles = secrets_of(site)
    assert not found_under_files(logs, needles)


def found_under_files(files, needles):
    return {
        name
        for name, stretches in needles.items()
        for path in files
        if any(stretch in path.read_bytes() for stretch in stretches)
    }


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_officers_open_over_nvidia_flare(poc, tmp_path):
    """Each at a site of its own: 2 of 3 open what one authority would."""
    site, alone = with_officers(tmp_path / "site", rounds=3)
    poc.own_files(site)
    write_job(tmp_path / "job", site.config, (), poc.authority, OTHERS)
    job = poc.session.submit_job(str(tmp_path / "job"))
    assert poc.ended(job) == "FINISHED:COMPLETED", poc.said()
    same(site.folder / "run", alone, 1e-6)
    assert len(site.record.metrics) == 3
    logs = [path for path in poc.folder.rglob("*") if path.is_file()]
    officers = {name: (site.folder / name, passphrase_of(name)) for name in OTHERS}
    needles = secrets_of(site) | secrets_under(site.keys, PASSPHRASE, officers)
    assert "olga's sealed key" in needles
    assert not found_under_files(logs, needles)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_a_killed_site_ends_the_job_and_the_next_job_goes_on(poc, tmp_path):
    """NVIDIA FLARE fails a job with one process of it; the run's folder is whole."""
    site = Site(tmp_path / "site", encrypt="none", rounds=40)
    job = handed_over(poc, site, tmp_path / "job")
    metrics = site.folder / "run/metrics.jsonl"
    poc.until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= 3)
    killed_at = time.monotonic()
    poc.job_process("bob").kill()
    assert poc.ended(job) != "FINISHED:COMPLETED"
    assert time.monotonic() - killed_at < 60
    n_done = len(metrics.read_text().splitlines())
    assert 3 <= n_done < 40
    again = handed_over(poc, site, tmp_path / "job-again")
    assert poc.ended(again) == "FINISHED:COMPLETED", poc.said()
    same_as_alone(site, 0)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_a_job_of_other_settings_is_refused_by_a_site(poc, tmp_path):
    """It ends before anything has left the site, whose reason stays in its own log."""
    site = Site(tmp_path / "site", encrypt="none", rounds=2)
    poc.own_files(site)
    other = tmp_path / "other.toml"
    other.write_text(site.job.read_text() + "[train]\nlr = 0.25\n")
    poc.own("alice", "alice", site, settings=other, bundle="bundles/client", identity="alice")
    write_job(tmp_path / "job", site.config, (), "")
    job = poc.session.submit_job(str(tmp_path / "job"))
    assert poc.ended(job) != "FINISHED:COMPLETED"
    assert not (site.folder / "run/metrics.jsonl").exists()
    why = "the job has other settings than this site, in train.lr"
    assert why in poc.said("alice")
    assert why not in poc.said("server")
    assert not any(why in path.read_text() for path in poc.error_logs("alice"))
