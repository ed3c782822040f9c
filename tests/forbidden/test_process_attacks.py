"""What a stranger, or a client that lies, can do to a server on the network: nothing."""

import asyncio
import json
import os
import ssl
import struct
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from processes import CertificateAuthority

import securefl
from securefl.errors import (
    ConfigError,
    KeyFileError,
    OpeningRefused,
    PeerError,
    RunFolderError,
    TooFewContributions,
    WrongPassphrase,
)
from securefl.exchange.policy import Policy
from securefl.net import bodies
from securefl.net.authority import AuthorityProcess, Log
from securefl.net.client import ClientProcess
from securefl.net.connect import Address, bound, connected, listening
from securefl.net.frames import SMALL, Frame
from securefl.net.identity import Identity, read_roster
from securefl.net.members import Members
from securefl.net.opening import ask_to_open
from securefl.net.party import check_scope, client_party, sealers, server_party
from securefl.net.server import Patience, ServerProcess
from securefl.roles.authority import Authority
from securefl.roles.client import Client
from securefl.roles.server import SumRequest
from securefl.runfolder import RunFolder
from securefl.runrecord import read_run

pytestmark = pytest.mark.usefixtures("quick", "no_hang")
NAMES = [f"client-{i}" for i in (1, 2, 3)]
HERE = Address("127.0.0.1", 0, "server")


@dataclass
class Site:
    """Certificates of a federation, and what somebody else has."""

    folder: object
    ca: CertificateAuthority = field(default_factory=CertificateAuthority)

    def __post_init__(self):
        self.ca.write(self.folder / "ca.pem")
        (self.folder / "roster").mkdir()
        for name in ("server", "authority", *NAMES):
            cert, _ = self.ca.issue(self.folder, name)
            if name in NAMES:
                (self.folder / "roster" / cert.name).write_bytes(cert.read_bytes())
        self.roster = read_roster(self.folder / "roster")

    def identity(self, name, passphrase=""):
        where = self.folder
        return Identity(where / "ca.pem", where / f"{name}.pem", where / f"{name}.key", passphrase)

    def members(self, said):
        return Members("ab" * 32, "cd" * 32, "", tuple(NAMES), 5.0, said.append)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


HELLO = bodies.Hello(settings="cd" * 32, key_id="")


async def join(site, name, port, hello=HELLO):
    """What the server answers to a client."""
    link = await connected(site.identity(name), replace(HERE, port=port), 5)
    try:
        await link.send(Frame.HELLO, hello.to_bytes())
        received = await link.receive({Frame.WELCOME: SMALL, Frame.GOODBYE: SMALL})
        return received.frame
    finally:
        link.close()


async def raw_tls(site, name, port, data):
    """Send bytes of one's choice after the handshake; what comes back until it hangs up."""
    context = site.identity(name).joining()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(data)
    await writer.drain()
    answer = await reader.read()
    writer.close()
    return answer


def attacked(site, attack):
    """What a server says during an attack; a client can join before and after it."""
    said = []

    async def scenario():
        members = site.members(said)
        door = await listening(
            site.identity("server"), HERE, site.roster, members.welcome, said.append
        )
        port = int(bound(door).rpartition(":")[2])
        assert await join(site, "client-1", port) is Frame.WELCOME
        await attack(port)
        assert await join(site, "client-2", port) is Frame.WELCOME
        door.close()
        await members.goodbye("")
        await asyncio.sleep(0.1)

    asyncio.run(scenario())
    return said


@pytest.mark.parametrize("length", [0, 1, 5, 300, 70_000])
def test_garbage_before_the_handshake_does_not_stop_the_server(site, length):
    async def attack(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(os.urandom(length))
        writer.write_eof()
        with suppress(OSError):
            await reader.read()
        writer.close()

    attacked(site, attack)


FRAMES = {
    "garbage": b"\xff" * 64,
    "an unknown kind": struct.pack(">BI", 200, 3) + b"abc",
    "a frame of the authority's": struct.pack(">BI", Frame.OPENED, 3) + b"abc",
    "larger than any hello": struct.pack(">BI", Frame.HELLO, 2**31),
    "no JSON": struct.pack(">BI", Frame.HELLO, 4) + b"\x80abc",
    "a key too many": struct.pack(">BI", Frame.HELLO, 9) + b'{"a": 12}',
    "JSON too deep": struct.pack(">BI", Frame.HELLO, 4000) + b"[" * 4000,
}


@pytest.mark.parametrize("data", FRAMES.values(), ids=FRAMES)
def test_garbage_after_the_handshake_ends_that_connection_alone(site, data):
    async def attack(port):
        assert await raw_tls(site, "client-3", port, data) == b""

    said = attacked(site, attack)
    assert any(line.startswith("Refused: client-3") for line in said)


def test_a_certificate_of_a_foreign_ca_is_refused(site, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    CertificateAuthority("CA").issue(other, "client-3")

    async def attack(port):
        identity = replace(
            site.identity("client-3"), cert=other / "client-3.pem", key=other / "client-3.key"
        )
        link = await connected(identity, replace(HERE, port=port), 0)
        with pytest.raises(PeerError):  # TLS 1.3 tells a client after its own handshake
            await link.receive({Frame.WELCOME: SMALL})
        link.close()

    assert not any("client-3" in line for line in attacked(site, attack))


def test_no_certificate_at_all_is_refused(site):
    async def attack(port):
        context = ssl.create_default_context(cafile=site.folder / "ca.pem")
        context.check_hostname = False
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            assert await reader.read() == b""
            writer.close()

    attacked(site, attack)


@pytest.mark.parametrize("name", ["authority", "server", "client-4"])
def test_a_valid_certificate_of_another_than_the_rosters_is_refused(site, name):
    if name == "client-4":
        site.ca.issue(site.folder, name)

    async def attack(port):
        assert await raw_tls(site, name, port, b"") == b""

    assert any("is no client of this run" in line for line in attacked(site, attack))


def test_a_second_certificate_of_a_clients_name_is_refused(site):
    site.ca.issue(site.folder, "client-3", stem="thief")

    async def attack(port):
        assert await raw_tls(site, "thief", port, b"") == b""

    assert any("another key than the roster's" in line for line in attacked(site, attack))


@pytest.mark.parametrize(
    "hello",
    [
        bodies.Hello(settings="00" * 32, key_id=""),
        bodies.Hello(settings="cd" * 32, key_id="ee" * 32),
    ],
    ids=["other settings", "another key"],
)
def test_a_client_of_another_run_is_told_so(site, hello):
    async def attack(port):
        assert await join(site, "client-3", port, hello) is Frame.GOODBYE

    attacked(site, attack)


def test_a_client_tells_a_server_from_another_client(site):
    async def scenario():
        door = await listening(site.identity("client-2"), HERE, None, _hang, print)
        port = int(bound(door).rpartition(":")[2])
        with pytest.raises(PeerError, match="is 'client-2', not 'server'"):
            await connected(site.identity("client-1"), replace(HERE, port=port), 0)
        door.close()
        await asyncio.sleep(0.05)

    async def _hang(link):
        with pytest.raises(PeerError):
            await link.receive({})

    asyncio.run(scenario())


# A whole run in one event loop, with a client that is no honest one.


def config_of(**tables):
    base = {
        "run": {"rounds": 2},
        "data": {"clients": 3, "partition": "classes:4"},
        "algorithm": {"name": "fedtan", "local_steps": 2},
        "exchange": {"encrypt": "none"},
    }
    return securefl.Config.model_validate(base | tables)


def a_run(site, change, timeout_s=20.0):
    """The record of a run in which `change(process)` has changed client-3."""
    config, said = config_of(), []
    folder = RunFolder.create(site.folder / "run", config)
    server = ServerProcess(
        site.identity("server"),
        server_party(config, 3),
        site.roster,
        None,
        Patience(20, timeout_s),
        said.append,
    )

    async def scenario():
        serving = asyncio.create_task(server.run(HERE, None, folder))
        while not (at := [line for line in said if line.startswith("Listening")]):
            await asyncio.sleep(0.05)
        port = int(at[0].rpartition(":")[2])
        joining = []
        for name in NAMES:
            identity, party = site.identity(name), client_party(config, name)
            role = Client(
                name,
                party.weight,
                sealers(party.common, None),
                party.equal_weight,
                _identity=identity.signing_key(),
            )
            process = ClientProcess(identity, party, role, "", said.append)
            if name == "client-3":
                change(process)
            joining.append(asyncio.create_task(process.run(replace(HERE, port=port), 10)))
        await serving
        for task in joining:
            task.cancel()
        await asyncio.gather(*joining, return_exceptions=True)
        await asyncio.sleep(0.1)

    asyncio.run(scenario())
    return read_run(site.folder / "run"), (site.folder / "run/incidents.jsonl").read_text()


def test_a_message_under_another_clients_name_is_refused_even_with_its_signature(site):
    """Whoever has copied client-2's key cannot speak for it over a connection of its own."""

    def change(process):
        process.client.name = "client-2"
        process.client._identity = site.identity("client-2").signing_key()

    record, incidents = a_run(site, change)
    assert [m.dropped for m in record.metrics] == [("client-3",), ("client-3",)]
    assert "client-3: sent a message of 'client-2'" in incidents


def test_a_message_that_another_key_has_signed_is_refused(site):
    def change(process):
        process.client._identity = Ed25519PrivateKey.generate()

    record, incidents = a_run(site, change)
    assert [m.dropped for m in record.metrics] == [("client-3",), ("client-3",)]
    assert "not signed by 'client-3'" in incidents


def test_a_client_whose_values_are_not_finite_leaves_the_round_and_says_so(site):
    def change(process):
        process.client.weight = 1.0
        process.client.sealers = {
            kind: Narrow(sealer) for kind, sealer in process.client.sealers.items()
        }

    record, incidents = a_run(site, change)
    assert [m.dropped for m in record.metrics] == [("client-3",), ("client-3",)]
    assert "leaves the round" in incidents


@dataclass
class Narrow:
    """A sealer that takes nothing."""

    inner: object
    max_value: float = 1e-30

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_a_message_larger_than_expected_drops_the_client(site):
    def change(process):
        honest = process.client.contribute
        process.client = Spoken(process.client, lambda *a: honest(*a) + b"x" * 10**6)

    record, incidents = a_run(site, change)
    assert "client-3" in record.metrics[0].dropped
    assert "fit" in json.loads(incidents.splitlines()[0])["reason"]


@dataclass
class Spoken:
    """A client with a mouth of its own."""

    inner: object
    contribute: object

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_a_client_answers_no_round_twice(site):
    """Two contributions under one name would show their difference."""
    config, said, got = config_of(), [], []
    identity, party = site.identity("client-1"), client_party(config, "client-1")
    channels = sealers(party.common, None)
    role = Client("client-1", party.weight, channels, 0.25, _identity=identity.signing_key())
    process = ClientProcess(identity, party, role, "", said.append)
    state = party.common.algorithm.init(party.common.model)

    async def serve(link):
        await link.receive({Frame.HELLO: SMALL})
        await link.send(Frame.WELCOME, bodies.Welcome(run="ab" * 32).to_bytes())
        await link.send(Frame.ROUND, bodies.RoundBegins(round=1).to_bytes())
        await link.send(Frame.MODEL, bodies.state_bytes(state))
        got.append(await link.receive({Frame.MESSAGE: 10**7}))

    async def scenario():
        door = await listening(site.identity("server"), HERE, site.roster, serve, said.append)
        port = int(bound(door).rpartition(":")[2])
        joining = asyncio.create_task(process.run(replace(HERE, port=port), 5))
        while not any("asks for round 1 again" in line for line in said):
            await asyncio.sleep(0.05)
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
        door.close()
        await asyncio.sleep(0.1)

    asyncio.run(scenario())
    assert len(got) == 1


# The authority's door.


def asking(site, federation, ask, who="server", folder=None):
    """What comes of `ask(link)` at an authority."""
    said = []

    async def scenario():
        log = Log(folder or site.folder / "log")
        opener = federation.keys.opener(Policy().flooding, federation.n_clients)
        role = Authority(opener, federation.roster, Policy(), log.note)
        parameters = federation.keys.secret.parameters
        process = AuthorityProcess(role, parameters, "server", log, said.append)
        at = replace(HERE, name="authority")
        door = await listening(site.identity("authority"), at, None, process.serve, said.append)
        port = int(bound(door).rpartition(":")[2])
        link = await connected(site.identity(who), replace(at, port=port), 5)
        try:
            return await ask(link)
        finally:
            link.close()
            door.close()
            await asyncio.sleep(0.1)

    return asyncio.run(scenario())


def test_the_authority_opens_over_the_line_and_once_also_after_a_restart(site, federate):
    federation = federate()
    request = federation.collect().request()
    opened = asking(site, federation, lambda link: ask_to_open(link, request))
    assert opened.n_clients == 4
    assert opened.values == pytest.approx(federation.mean(), abs=1e-6)
    with pytest.raises(OpeningRefused, match="opened once already"):
        asking(site, federation, lambda link: ask_to_open(link, request))
    log = (site.folder / "log/openings.jsonl").read_text().splitlines()
    assert len(log) == 2


def test_the_authority_refuses_too_few_and_says_so(site, federate):
    federation = federate()
    request = federation.collect("client-1", "client-2").request()
    with pytest.raises(TooFewContributions, match=r"at least 3 \(exchange\.min_clients"):
        asking(site, federation, lambda link: ask_to_open(link, request))


def test_the_authority_believes_no_header_that_is_none(site, federate):
    federation = federate()
    request = federation.collect().request()
    broken = tuple(replace(one, signed=b"{}") for one in request.signed)
    changed = SumRequest(request.expected, request.total, broken)
    with pytest.raises(OpeningRefused, match="that is none"):
        asking(site, federation, lambda link: ask_to_open(link, changed))


@pytest.mark.parametrize("who", NAMES)
def test_the_authority_serves_the_server_alone(site, federate, who):
    federation = federate()
    request = federation.collect().request()
    with pytest.raises(PeerError):
        asking(site, federation, lambda link: ask_to_open(link, request), who)


def test_a_damaged_log_of_releases_is_refused(tmp_path):
    (tmp_path / "released.jsonl").write_text('["ab", 1]\n')
    with pytest.raises(RunFolderError, match="name another folder"):
        Log(tmp_path)


# Files.


def test_an_encrypted_identity_key_opens_with_its_passphrase_alone(site):
    site.ca.issue(site.folder, "client-1", "open sesame")
    assert site.identity("client-1", "open sesame").serving()
    for wrong in ("", "open"):
        with pytest.raises(WrongPassphrase):
            site.identity("client-1", wrong).serving()
    assert "sesame" not in repr(site.identity("client-1", "open sesame"))


def test_two_certificates_of_one_name_make_no_roster(site):
    roster = site.folder / "roster"
    (roster / "again.pem").write_bytes((roster / "client-1.pem").read_bytes())
    with pytest.raises(KeyFileError, match="two certificates of client-1"):
        read_roster(roster)


@pytest.mark.parametrize(
    "tables",
    [
        {"selection": {"name": "random"}},
        {"algorithm": {"name": "fedbn"}},
        {"solver": {"name": "scaffold"}},
        {"devices": {"preset": "cifar10"}},
    ],
)
def test_what_processes_do_not_run_yet_is_a_config_error_with_the_way_out(tables):
    with pytest.raises(ConfigError, match="securefl run"):
        check_scope(config_of(**tables))
