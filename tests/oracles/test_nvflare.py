"""A federation over NVIDIA FLARE gives what `securefl run` gives, and trusts it with nothing.

Calls in this process stand for its own here, and whoever carries them is the attacker; the last
tests run the thing itself.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import by_calls
import pytest
import safetensors.torch
import torch
from by_calls import Between, federation_by_calls, heard
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from process_memory import found_under, secrets_of
from processes import CLIENTS, SERVER, Loop, Site, authority_process

import securefl
import securefl.network.stream
import securefl.nvflare.calls
from securefl.errors import ConfigError, PeerError, RunFolderError
from securefl.network.connect import connected
from securefl.network.frames import Frame
from securefl.network.proof import NONCE_BYTES, Challenge, CounterChallenge
from securefl.network.settings import settings_digest, table_digests
from securefl.nvflare.calls import FULL, OVER, TAKEN, ByCalls
from securefl.nvflare.handshake import greeted, introduced
from securefl.nvflare.stream import Seal, SealedStream
from securefl.runs.folder_reader import read_run
from securefl.runs.folder_writer import RunFolder
from securefl_cli.main import main
from securefl_cli.nvflare_export import SIDES, write_job
from securefl_cli.nvflare_site import party, server, site_file

pytestmark = pytest.mark.usefixtures("quick", "cheap_guesses")
MARKER = b"planted-marker-7f1c"
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
    model, wanted = model_of(site.folder / "run"), model_of(alone)
    assert model.keys() == wanted.keys()
    for name, value in model.items():
        torch.testing.assert_close(value, wanted[name], atol=1e-6 if site.sealed else 0, rtol=0)
    if not site.sealed:
        assert sorted(map(repr, site.record.ledger)) == sorted(map(repr, read_run(alone).ledger))
    weights = max(model.values(), key=torch.numel).numpy().tobytes()
    for name, between in betweens.items():
        if name == "authority" and not site.sealed:
            assert not between.given
            continue
        chunks = [chunk for _, chunk in (*between.given, *between.taken)]
        assert len(chunks) > 5
        assert not any(weights[:64] in chunk for chunk in chunks)
        assert not any(settings_digest(site.config).encode() in chunk for chunk in chunks)


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
    assert len(given) == 2 + 3 * 3  # the handshake, then three chunks of each


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
        if on_give.n == 1:  # the end of the handshake
            return [chunk]
        return {
            "changed": [chunk[:-1] + bytes([chunk[-1] ^ 1])],
            "repeated": [chunk, chunk],
            "left out": [chunk] if on_give.n > 2 else [],
            "swapped": held[:0:-1] if on_give.n == 3 else [],
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
        for body in (b"one", b"two"):
            with suppress(PeerError):
                await link.send(Frame.MESSAGE, body)
        while not ended:
            await asyncio.sleep(0.01)

    between = Between("alice", on_give=attacks(kind))
    exchanged(made, act, serve, between=between)
    assert got == ([b"one"] if kind == "repeated" else [])
    assert "a chunk came that is not the peer's next one" in ended[0]


def test_a_changed_chunk_of_the_servers_ends_the_connection_too(made):
    def on_take(chunk):
        on_take.n += 1
        return chunk if on_take.n == 1 else b"\0" + chunk[1:]

    on_take.n = 0

    async def act(link, between):
        await link.send(Frame.MESSAGE, MARKER)
        with pytest.raises(PeerError, match="hub: a chunk came that is not the peer's next one"):
            await link.receive({Frame.TOTAL: 99})
        assert link.lost
        assert not any(MARKER in chunk for _, chunk in (*between.given, *between.taken))

    exchanged(made, act, between=Between("alice", on_take=on_take))


def test_the_two_directions_have_keys_of_their_own():
    """A chunk that is sent back to whoever sealed it is not the peer's."""
    one, other = bytes(32), b"\1" * 32
    sealed = Seal(one).close(b"x")
    assert Seal(one).open(sealed) == b"x"
    with pytest.raises(PeerError):
        Seal(other).open(sealed)


# Proofs of identity.


def refused(site, attack, **about):
    """What a server says to `attack(stream)`, which begins a connection by hand."""
    said, served = [], []

    async def serve(link):
        served.append(link.name)

    async def scenario():
        async with heard(site, serve, said, **about) as between:
            end = SealedStream(securefl.nvflare.calls.CallersWay(between))
            try:
                with suppress(PeerError):
                    await attack(end, between)
                    async with asyncio.timeout(5):
                        while True:
                            await end.read()
            finally:
                await end.finish()

    asyncio.run(scenario())
    assert not served
    return said


async def begun(end, certificate):
    """Say the first words with this certificate; return what the answer is, and its nonce."""
    own = ec.generate_private_key(ec.SECP256R1())  # any 32 bytes will do until keys are needed
    number = own.private_numbers().private_value.to_bytes(32, "big")
    await end.write(number + certificate.public_bytes(Encoding.DER))
    answer = await end.read()
    theirs, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    return number + theirs, x509.load_der_x509_certificate(proof[64:])


def test_who_shows_another_ones_certificate_is_refused(made):
    """Bob has a key of the consortium, but not that of the certificate that he shows."""
    alice, bob = made.identity("alice"), made.identity("bob")

    async def attack(end, between):
        nonce, hub = await begun(end, alice.transport_certificate)
        question = CounterChallenge(alice.transport_certificate, hub, nonce)
        await end.write(question.answer(bob.transport_key))

    words = "Refused: the peer has not the key of the certificate that it shows"
    assert refused(made, attack) == [words]


@pytest.mark.parametrize("what", ["nonce", "caller", "listener", "no signature"])
def test_a_proof_of_something_else_is_refused(made, what):
    alice, bob = made.identity("alice"), made.identity("bob")

    async def attack(end, between):
        nonce, hub = await begun(end, alice.transport_certificate)
        about = [alice.transport_certificate, hub, nonce]
        if what == "nonce":
            about[2] = nonce[:-1] + bytes([nonce[-1] ^ 1])
        elif what == "caller":
            about[0] = bob.transport_certificate
        elif what == "listener":
            about[1] = bob.certificate
        proof = CounterChallenge(*about).answer(alice.transport_key)
        await end.write(b"\0" if what == "no signature" else proof)

    words = "Refused: the peer has not the key of the certificate that it shows"
    assert refused(made, attack) == [words]


def test_a_proof_that_was_recorded_is_refused_anew(made):
    """Whoever carries a handshake, and plays it again, meets another number."""

    async def attack(end, between):
        own, trust = made.identity("alice"), made.bundle("client")
        link = await connected(own, trust, "server", ByCalls(between), 2.0)
        await link.finish()
        served_before = [chunk for _, chunk in between.given][:2]
        for chunk in served_before:
            await end.write(chunk)

    said = []

    async def serve(link):
        said.append(f"served {link.name}")

    async def scenario():
        async with heard(made, serve, said) as between:
            end = SealedStream(securefl.nvflare.calls.CallersWay(between))
            with suppress(PeerError):
                await attack(end, between)
                await end.read()
                await end.read()
            await end.finish()

    asyncio.run(scenario())
    words = "Refused: the peer has not the key of the certificate that it shows"
    assert said == ["served alice", words]


def test_members_of_another_consortium_and_of_another_role_are_refused(made, stranger):
    for own, reason in (
        (stranger.identity("alice"), "has not issued"),
        (made.identity(SERVER, "server"), "server"),
    ):

        async def attack(end, between, own=own):
            number_and_hub = await begun(end, own.transport_certificate)
            nonce, hub = number_and_hub
            question = CounterChallenge(own.transport_certificate, hub, nonce)
            await end.write(question.answer(own.transport_key))

        (words,) = refused(made, attack)
        assert words.startswith("Refused: a peer: the peer is no client of this consortium"), words
        assert reason in words, words


@pytest.mark.parametrize("chunk", [b"\0", bytes(32), bytes(33), bytes(400)])
def test_who_does_not_begin_with_a_number_and_a_certificate_is_refused(made, chunk):
    async def attack(end, between):
        await end.write(chunk)

    (words,) = refused(made, attack)
    assert "does not begin with a number" in words or "shows no certificate" in words


def test_a_number_that_makes_the_key_known_to_all_is_refused(made):
    """X25519 with the point 0 gives 0, whoever else has a part in it."""
    alice = made.identity("alice")

    async def attack(end, between):
        shown = alice.transport_certificate
        await end.write(bytes(32) + shown.public_bytes(Encoding.DER))
        answer = await end.read()
        hub = x509.load_der_x509_certificate(answer[NONCE_BYTES + 64 :])
        question = CounterChallenge(shown, hub, bytes(32) + answer[:NONCE_BYTES])
        await end.write(question.answer(alice.transport_key))

    assert refused(made, attack) == ["Refused: a peer whose number is no key"]


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
    """A client, or another consortium's server, in the place of the server."""
    assert "the peer is no server of this consortium" in called_by_alice(made, made.identity("bob"))
    assert "the peer is no server" in called_by_alice(made, stranger.identity(SERVER, "server"))


def test_who_relays_a_handshake_with_a_number_of_its_own_is_refused(made):
    """In between it would have the keys of both halves: the caller's signature is of both."""
    proofs = []

    async def scenario():
        mallory = SealedStream(_Wire())
        alice = SealedStream(mallory._way.other_end)
        own, trust = made.identity("alice"), made.bundle("client")
        work = asyncio.create_task(introduced(own, trust, "server", alice))
        hello = await mallory.read()
        number, shown = hello[:NONCE_BYTES], x509.load_der_x509_certificate(hello[NONCE_BYTES:])
        hub = made.identity(SERVER, "server")
        # What the hub signs for another number of the caller's.
        signed = Challenge(shown, b"\7" * 32 + b"\5" * 32).answer(hub.certificate, hub.key)
        await mallory.write(b"\5" * 32 + signed)
        with pytest.raises(PeerError) as error:
            await work
        proofs.append((str(error.value), number))
        for end in (mallory, alice):
            await end.finish()

    asyncio.run(scenario())
    assert proofs[0][0] == "the peer has not the key of the identity that it shows"


class _Wire:
    """A `Way` to another end in this loop."""

    def __init__(self, other=None):
        self._chunks = asyncio.Queue()
        self.other_end = other or _Wire(self)

    async def give(self, chunk):
        self.other_end._chunks.put_nowait(chunk)

    async def take(self):
        return await self._chunks.get()

    async def leave(self):
        self.other_end._chunks.put_nowait(b"")


def test_both_ends_agree_where_nobody_meddles(made):
    """The same handshake, its two halves by themselves."""

    async def scenario():
        wire = _Wire()
        one, other = SealedStream(wire), SealedStream(wire.other_end)
        hub, own = made.identity(SERVER, "server"), made.identity("alice")
        greeting = asyncio.create_task(greeted(hub, other))
        name, _ = await introduced(own, made.bundle("client"), "server", one)
        assert (name, await greeting) == (SERVER, own.transport_certificate)
        await one.write(b"there")
        await other.write(b"back")
        assert (await other.read(), await one.read()) == (b"there", b"back")
        for end in (one, other):
            await end.finish()

    asyncio.run(scenario())


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
    digests = {"settings": settings_digest(made.config), "tables": table_digests(made.config)}
    for side, name in (("Server", "server"), ("Site", "client")):
        config = json.loads((out / f"app/config/config_fed_{name}.json").read_text())
        (component,) = config["components"]
        assert component["path"] == f"{SIDES}.{side}Side"
        assert component["args"] == digests
        source = Path(securefl.__file__).parents[1] / "cli" / f"{SIDES.replace('.', '/')}.py"
        assert f"\nclass {side}Side" in source.read_text()
    assert all(re.fullmatch("[0-9a-f]{16}", value) for value in digests["tables"].values())


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


@pytest.mark.parametrize(
    ("settings", "sites", "words"),
    [
        (["exchange.committee=3"], (), "one authority"),
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


def job_of(config):
    return settings_digest(config), table_digests(config)


def test_a_site_takes_part_in_settings_alone_that_it_has(made, tmp_path):
    """A job of other settings would have other values leave it: it says which tables differ."""
    own = {"bundle": made.folder / "bundles/client", "identity": made.folder / "alice"}
    path = written(made, tmp_path, **own)
    other = job_of(securefl.load_config(made.job, ['exchange.encrypt="none"', "train.lr=0.25"]))
    with pytest.raises(
        ConfigError, match=r"other settings than this site, in \[exchange\], \[train"
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
        "nvflare_export; sys.exit('nvflare' in sys.modules)"
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
    model, wanted = model_of(site.folder / "run"), model_of(site.in_one_process())
    assert model.keys() == wanted.keys()
    for name, value in model.items():
        torch.testing.assert_close(value, wanted[name], atol=atol, rtol=0)


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
    why = "the job has other settings than this site, in [train]"
    assert why in poc.said("alice")
    assert why not in poc.said("server")
    assert not any(why in path.read_text() for path in poc.error_logs("alice"))
