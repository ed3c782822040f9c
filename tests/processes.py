"""A small federation on loopback: its ceremony, and its processes or their parts in one loop."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from forked import Forked
from interruptible import BEATS, SCRIPT
from key_folders import cheap

import securefl
from securefl.errors import PeerError
from securefl.exchange.policy import Policy
from securefl.federation.lineage import Shown, Statement, beginning, over
from securefl.federation.total import state_digest
from securefl.network import bodies
from securefl.network import client as calling
from securefl.network.authority import AuthorityLog, AuthorityProcess
from securefl.network.authority_line import Line
from securefl.network.client import ClientProcess
from securefl.network.connect import Address, listening
from securefl.network.frames import SMALL, Frame
from securefl.network.identity import ProcessIdentity
from securefl.network.members import Members
from securefl.network.party import client_party
from securefl.network.server import Patience, ServerProcess, server_job
from securefl.runs.folder_reader import read_run
from securefl.runs.folder_writer import RunFolder
from securefl.settings.digests import settings_digest, study_digest
from securefl_keys import layout
from securefl_keys.authority_keys import FolderKeeper, load_all
from securefl_keys.bundle import VerifiedBundle, process_identity
from securefl_keys.certificate_form import Holder
from securefl_keys.certificates import holder_certificate, issue, issue_transport, transport_key
from securefl_keys.consortium import init_folder
from securefl_keys.export import export_all
from securefl_keys.identity import load_identity, make_identities
from securefl_keys.membership import JoinApproval, approve
from securefl_keys.policy import DEFAULT
from securefl_keys.roster import load_roster
from securefl_keys.rotation import rotate, sign_policy
from securefl_keys.signed_file import now
from securefl_keys.signer import open_signer

CLIENTS = ("alice", "bob", "carol")
CALLING_S = 60.0
"""Seconds that a machine may take to have all of a loop's parties call."""
SERVER = "hub"
PASSPHRASE = "a passphrase that only the authority knows"
ANY_PORT = Address("127.0.0.1", 0)
SETTINGS = "5e" * 32
"""Digest of what a test, in the place of a server, asks the authority with."""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Environment as the tests themselves have it: the last bit of torch's sums depends on it."""
JOB = """
[run]
rounds = {rounds}
reproducible = {reproducible}
[data]
clients = {n}
names = {names}
partition = "classes:4"
[algorithm]
name = "{algorithm}"
local_steps = 2
[model]
name = "{model}"
[exchange]
encrypt = "{encrypt}"
[sites]
wait_s = 0.0
"""


def passphrase_of(name):
    """Return the passphrase of a member's identity."""
    return f"the secret words of {name}"


@dataclass
class Site:
    """The files of a federation, and the processes that a test has started."""

    folder: Path
    algorithm: str = "fedtan"
    model: str = "mlp"
    encrypt: str = "statistics"
    rounds: int = 2
    reproducible: bool = True
    names: Sequence[str] = CLIENTS
    policy: Policy = DEFAULT
    consortium: str = "Nord"
    earlier: Mapping[str, timedelta] = field(default_factory=dict)
    """Time since a party's certificate was issued, by its name."""
    fast_beats: bool = False
    """True where its processes take a peer for lost after seconds of silence."""
    anew: bool = False
    """True where each process is the interpreter's own, as a user's are, and not forked."""
    processes: list[Process] = field(default_factory=list)
    _bundles: dict = field(default_factory=dict)
    """Bundles by their contents: three clients load one in the time of one."""

    def __post_init__(self):
        self.folder.mkdir(exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as free:  # whoever calls may start first
            self.server_at = f"127.0.0.1:{free.getsockname()[1]}"
        with cheap():
            init_folder(self.keys, PASSPHRASE, consortium=self.consortium, policy=self.policy)
        for name in self.names:
            self.join(name, at=now() - self.earlier.get(name, timedelta()))
        self.join(SERVER, role="server")
        self.export("bundles")
        names = str(list(self.names)).replace("'", '"')
        settings = {"rounds": self.rounds, "n": len(self.names), "names": names}
        settings |= {"reproducible": str(self.reproducible).lower()}
        settings |= {"algorithm": self.algorithm, "encrypt": self.encrypt, "model": self.model}
        self.job.write_text(JOB.format(**settings))
        self.write_passphrase("authority", PASSPHRASE)

    @property
    def keys(self):
        return self.folder / "keys"

    @property
    def job(self):
        return self.folder / "job.toml"

    @property
    def config(self):
        return securefl.load_config(self.job)

    @property
    def sealed(self):
        return self.encrypt != "none"

    server_file = None
    """The server's own file; None without."""

    # The ceremony.

    def write_passphrase(self, name, passphrase):
        path = self.passphrase_file(name)
        path.write_text(passphrase + "\n")
        path.chmod(0o600)

    def passphrase_file(self, name):
        return self.folder / f"passphrase-of-{name}"

    def join(self, *names, role="client", at=None):
        """Make folders of new members, whose requests were approved."""
        with cheap():
            for name in names:
                (request,) = make_identities(self.folder, [name], role, passphrase_of(name))
                certificate = self.folder / name / layout.IDENTITY_CERTIFICATE
                approve(self.keys, [JoinApproval(request, certificate)], PASSPHRASE, at)
                self.write_passphrase(name, passphrase_of(name))

    def export(self, out):
        export_all(self.keys, self.folder / out, PASSPHRASE)

    def rotate(self, revoking=None):
        with cheap():
            return rotate(self.keys, PASSPHRASE, revoking=revoking).card.key_id

    def sign(self, policy):
        sign_policy(self.keys, policy, PASSPHRASE)

    def bundle(self, role, bundles="bundles"):
        folder = self.folder / bundles / role
        files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        content = role, frozenset(files.items())
        if content not in self._bundles:
            self._bundles[content] = VerifiedBundle.load(folder, role)
        return self._bundles[content]

    def identity(self, name, role="client"):
        """Return who this party is, for a process of this loop."""
        ca = load_roster(self.keys).ca
        if role == "authority":
            return process_identity(self.keys / layout.AUTHORITY, PASSPHRASE, ca, role)
        return process_identity(self.folder / name, passphrase_of(name), ca, role)

    def party(self, name):
        """Return a client's part of the job."""
        return client_party(self.config, self.identity(name), self.folder / name)

    def signing_key(self, name):
        return load_identity(self.folder / name, passphrase_of(name)).private_key

    # Commands.

    def start(self, log, *args, env=None):
        name, n = log, len(self.processes)
        if (self.folder / f"{log}.log").exists():  # a second one
            name = f"{log}-{n}"
        how = {"fast": self.fast_beats, "anew": self.anew}
        process = Process(self.folder / f"{name}.log", *args, env=env, **how)
        self.processes.append(process)
        return process

    def authority(self, said=r"Calling the server"):
        process = self.start(
            "authority",
            *("authority", "serve", self.job, "--keys", self.keys, "--server", self.server_at),
            *("--passphrase-file", self.passphrase_file("authority")),
        )
        process.wait_for(said)
        return process

    def member(self, name, role):
        return [
            *("--bundle", self.folder / "bundles" / role, "--identity", self.folder / name),
            *("--passphrase-file", self.passphrase_file(name)),
        ]

    def server(self, *more, env=None, out="run", said="Listening on"):
        process = self.start(
            SERVER,
            *("server", "serve", self.job, *self.member(SERVER, "server")),
            *("--listen", self.server_at, "--out", self.folder / out, *more),
            env=env,
        )
        process.wait_for(said)
        return process

    def client(self, name, *more):
        return self.start(
            name,
            *("site", "join", self.job, *self.member(name, "client")),
            *("--server", self.server_at, *more),
        )

    def clients(self):
        return [self.client(name) for name in self.names]

    def stop(self):
        for process in self.processes:
            process.stop()

    # What has come of it.

    @property
    def openings(self):
        return self.keys / "authority/log/openings.jsonl"

    @property
    def record(self):
        return read_run(self.folder / "run")

    @property
    def incidents(self):
        return (self.folder / "run/incidents.jsonl").read_text()

    def in_one_process(self):
        """Return the folder of the same run by `securefl.run`, one client after the other."""
        out = self.folder / "alone"
        keys = load_all(self.keys, PASSPHRASE) if self.sealed else None
        alone = {"engine": "sequential", "reproducible": False}  # the keys outlive it
        one_by_one = self.config.run.model_copy(update=alone)
        config = self.config.model_copy(update={"run": one_by_one})
        securefl.run(config, keys=keys, out=out)
        return out


@contextmanager
def federations(folder):
    """Yield a maker of federations in a folder; their processes end with it."""
    made = []

    def make(**settings):
        made.append(Site(folder, **settings))
        return made[-1]

    try:
        yield make
    finally:
        for one in made:
            one.stop()


class Process:
    """One `securefl` command, whose stderr goes to a file."""

    def __init__(self, log, *args, env=None, fast=False, anew=False):
        self.log = log
        code, env = BEATS * fast + SCRIPT, {**os.environ, **ONE_THREAD, **(env or {})}
        with log.open("wb") as file:
            if anew:
                command = [sys.executable, "-c", code, *map(str, args)]
                self.process = subprocess.Popen(command, stdout=file, stderr=file, env=env)
            else:
                self.process = Forked(code, args, log, env)

    @property
    def pid(self):
        return self.process.pid

    def text(self):
        return self.log.read_text()

    def wait_for(self, pattern, within_s=240.0):
        """Return the match in what it has said."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            if found := re.search(pattern, self.text()):
                return found
            if ended:
                break
            time.sleep(0.05)
        raise AssertionError(f"never said {pattern!r}:\n{self.text()}")

    def ended(self, within_s=240.0):
        """Return its exit code."""
        return self.process.wait(within_s)

    def interrupt(self, number=signal.SIGINT):
        self.process.send_signal(number)
        return self.ended(20)

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Loop:
    """The parts of all processes of a site in one event loop, where a test can change them."""

    def __init__(self, site, timeout_s=20.0, joining_s=20.0):
        self.site = site
        self.said = []
        self.config = site.config
        self.patience = Patience(joining_s, timeout_s, 5.0)
        self.clients = {name: self._client(name) for name in site.names}
        self.server = self._server()
        self.keeper = FolderKeeper(site.keys, PASSPHRASE) if site.sealed else None
        """A test may put another in its place."""
        self.serving = None
        """The server's task."""
        self.ended = {}
        self.at = None
        """Where the server listens."""

    def _server(self):
        return ServerProcess(
            self.site.identity(SERVER, "server"),
            self.site.bundle("server"),
            server_job(self.config, data=self.site.server_file),
            self.patience,
            self.said.append,
        )

    def _client(self, name):
        return client_process(self.site, name, self.said.append)

    def before_round(self, happens):
        """Let something happen to the key folder, by the number of the round."""
        self.keeper = Between(self.keeper, happens)

    def has_said(self, pattern):
        return any(re.search(pattern, line) for line in self.said)

    async def wait_for(self, pattern):
        while not self.has_said(pattern):
            await asyncio.sleep(0.01)

    def run(self, meanwhile=None):
        """Run everything until the server ends; raises as it. `ended` has how each client did."""
        asyncio.run(self._run(meanwhile))
        return self.site.record

    async def _run(self, meanwhile):
        joining = {}
        with since_all_have_called(self, joining):
            await self._play(meanwhile, joining)

    async def _play(self, meanwhile, joining):
        folder = RunFolder.begun_or_new(self.site.folder / "run", self.config)
        self.serving = serving = asyncio.create_task(self.server.run(ANY_PORT, folder))
        opening = []
        try:
            await first(self.wait_for("^Listening on"), serving)
            (line,) = (line for line in self.said if line.startswith("Listening on"))
            self.at = here = Address.parse(line.split()[-1])
            if self.keeper:
                process = authority_process(self.site, self.keeper, self.config, self.said.append)
                own = self.site.identity("authority", "authority")
                opening.append(asyncio.create_task(process.run(own, here)))
            for name, client in self.clients.items():
                joining[name] = asyncio.create_task(client.run(here, 2.0))
            if meanwhile:
                await first(meanwhile(self), serving)
            await serving
            await asyncio.wait(joining.values(), timeout=10)
        finally:
            if joining:  # who was told that it is over ends
                await asyncio.wait(joining.values(), timeout=1)
            for task in (serving, *joining.values(), *opening):
                task.cancel()
            how = await asyncio.gather(serving, *joining.values(), return_exceptions=True)
            await asyncio.gather(*opening, return_exceptions=True)
            self.ended = dict(zip(joining, how[1:], strict=True))
            await asyncio.sleep(0.1)


@contextmanager
def since_all_have_called(loop, joining):
    """Count a loop's seconds to join from then on: on a busy machine nobody is absent by chance.

    `joining` has the tasks of its clients once they call.
    """
    all_here, link, counts = Members.all_here, Line.link, False
    connected, reached = calling.connected, set()

    def comes(members, name):
        task = joining.get(name)
        return name in loop.clients and name not in members.here() and not (task and task.done())

    async def from_the_last(members, awaited, within_s, at_least=None):
        nonlocal counts
        async with asyncio.timeout(CALLING_S):
            while not counts and any(comes(members, name) for name in awaited):
                await asyncio.sleep(0.01)
        counts = True
        return await all_here(members, awaited, within_s, at_least)

    async def called(line, within_s):
        first = loop.keeper and within_s == loop.patience.joining_s
        return await link(line, max(within_s, CALLING_S) if first else within_s)

    async def reaches(identity, trust, role, to, patience_s):
        patient = patience_s if identity.name in reached else max(patience_s, CALLING_S)
        found = await connected(identity, trust, role, to, patient)
        reached.add(identity.name)
        return found

    with (
        patch.object(Members, "all_here", from_the_last),
        patch.object(Line, "link", called),
        patch.object(calling, "connected", reaches),
    ):
        yield


def until_refused(*names):
    """Return what stops a loop's server once it has refused these clients."""

    async def meanwhile(loop):
        for name in names:
            await loop.wait_for(f"^Refused: {name}: ")
        loop.serving.cancel()

    return meanwhile


def another(identity, **changed):
    """Return the identity with other parts: it is not taken apart by `replace`."""
    parts = ("name", "certificate", "ca", "key", "transport", "transport_key")
    return ProcessIdentity(**{part: getattr(identity, part) for part in parts} | changed)


async def first(coroutine, other):
    """Wait for `coroutine`, but not where `other` fails."""
    task = asyncio.ensure_future(coroutine)
    await asyncio.wait({task, other}, return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await other
    else:
        await task


def authority_process(site, keeper, config, say, settings=None):
    """Return the authority, with the log of the site."""
    log = AuthorityLog(
        site.openings.parent, settings or settings_digest(config), study_digest(config)
    )
    return AuthorityProcess(keeper, config, log, say)


def asked_of_the_authority(
    site, ask, who=SERVER, role="server", keeper=None, said=None, config=None
):
    """Return what comes of `ask(link)` where the authority has called."""
    said = [] if said is None else said
    own = keeper or FolderKeeper(site.keys, PASSPHRASE)

    def made():
        return authority_process(site, own, config or site.config, said.append, SETTINGS)

    hub, authority = site.identity(who, role), site.identity("authority", "authority")
    return asked_of(made, authority, hub, ask, said)


def asked_of(made, identity, hub, ask, said):
    """Return what comes of `ask(link)` where the process that `made()` gives has called `hub`."""

    async def scenario():
        process = made()
        called = asyncio.get_running_loop().create_future()

        async def serve(link):
            if not called.done():
                called.set_result(link)
            await link.ended()

        door = await listening(hub, lambda _: "authority", ANY_PORT, serve, said.append)
        calling = asyncio.create_task(process.run(identity, Address.parse(door.at)))
        try:
            while not (called.done() or calling.done() or set(said) - {f"{hub.name} is connected"}):
                await asyncio.sleep(0.01)
            if not called.done():
                raise PeerError(f"the authority does not call: {said}")
            return await ask(await called)
        finally:
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            await door.stop()

    return asyncio.run(scenario())


def client_process(site, name, say):
    """Return one of the loop's, with the bundle that was exported at first."""
    return ClientProcess(site.identity(name), site.party(name), site.bundle("client"), say)


def messages(record):
    """Return how often each entry is in the ledger, whenever and in whichever session."""
    return Counter(record.ledger)


def round_begins(process, round_number, state, before=(), after=0, **changes):
    """Return the body of ROUND as a server sends it, with the whole model, and signs it.

    `before` are the models of all earlier rounds, of which it shows those that come `after`.
    """
    sign, job = process.party.as_server
    now, shown = Shown(round_number, state_digest(state)), [x for x in before if x.round > after]
    lineage = over(beginning(job), [*before, now])
    signature = sign(Statement.content(job, round_number, lineage)).hex()
    head = {"round": round_number, "since": 0, "whole": True, "after": after, "shown": len(shown)}
    begins = bodies.RoundBegins(**head | {"signature": signature} | changes)
    return bodies.headed(begins) + bodies.shown_bytes(shown) + bodies.state_bytes(state, None)


def any_welcome():
    """Return one to a run of its own."""
    return bodies.Welcome(run=secrets.token_hex(32), job=secrets.token_hex(32))


def fake_server(site, serve, who="alice", welcome=None):
    """Return a client whose server is `serve(link, client, number of the connection)`.

    Returns what it is, has said, and has raised by the time that `serve` says it is enough.
    """
    said, welcome = [], welcome or any_welcome()
    process = client_process(site, who, said.append)
    process.party.as_server = site.identity(SERVER, "server").key.sign, welcome.job
    enough, connections = asyncio.Event(), []

    async def served(link):
        connections.append(link)
        await link.receive({Frame.HELLO: SMALL})
        await link.send(Frame.WELCOME, welcome.to_bytes())
        if await serve(link, process, len(connections)):
            enough.set()

    async def scenario():
        own = site.identity(SERVER, "server")
        door = await listening(own, lambda _: who, ANY_PORT, served, said.append)
        joining = asyncio.create_task(process.run(Address.parse(door.at), 1.0))
        ended = asyncio.create_task(enough.wait())
        await asyncio.wait({joining, ended}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({joining}, timeout=0.2)
        joining.cancel()
        (how,) = await asyncio.gather(joining, return_exceptions=True)
        ended.cancel()
        await door.stop()
        await asyncio.sleep(0.05)
        return how

    return process, said, asyncio.run(scenario())


@dataclass
class Between:
    """A keeper to whose folder something happens before a round, by the round's number."""

    keeper: FolderKeeper
    happens: Mapping[int, Callable[[], object]]
    n_rounds: int = 0
    """Rounds that the server has asked for."""

    def now(self):
        if threading.current_thread() is not threading.main_thread():  # a round's question
            self.n_rounds += 1
            self.happens.get(self.n_rounds, lambda: None)()
        return self.keeper.now()


def issued(site, name, role="client", at=None):
    """Return an identity with certificates of the consortium's that no roster lists."""
    signer, key = open_signer(site.keys, PASSPHRASE, now()), Ed25519PrivateKey.generate()
    certificate = issue(signer.ca, signer.key, Holder(name, role), key.public_key(), at or now())
    holder, for_tls = holder_certificate(certificate, signer.ca), transport_key(key)
    made = issue_transport(signer.ca, signer.key, holder, for_tls.public_key())
    return another(
        site.identity("alice"),
        name=name,
        certificate=certificate,
        key=key,
        transport=made,
        transport_key=for_tls,
    )
