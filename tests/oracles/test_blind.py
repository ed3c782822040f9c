"""Runs whose server relays totals that it cannot read end as those in which it reads them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from by_calls import federation_by_calls
from click.testing import CliRunner
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hired import Agency
from over_loopback import Consortium, Job, OnTask, incidents_of, model_of
from processes import authority_process

from securefl import resume, run
from securefl.build.exchange import policy_of
from securefl.build.simulation import simulated
from securefl.crypto.derived import group_secret
from securefl.errors import ConfigError, TotalRefused
from securefl.exchange.blind import BlindTotal, n_answer_bytes, n_client_bytes
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time import OneTimeSealer
from securefl.exchange.sums import MessageId, Sender
from securefl.federation.client import Client
from securefl.federation.ledger import AUTHORITY, SERVER
from securefl.runs.folder_reader import read_run
from securefl.runs.folder_writer import RunFolder
from securefl.runs.loop import Record
from securefl.settings.load import load_config
from securefl.simulation.processes import worker_process
from securefl.types import Kind
from securefl_cli.main import main

pytestmark = pytest.mark.usefixtures("quick")

SEEDED = {"noise": "seeded", "delta": 0.01}
RUNS = {
    "fedtan": {},
    "whole models": {"exchange": {"encrypt": "model"}},
    "fused": {"algorithm": {"moments": "fused"}},
    "fedtan-ii": {"algorithm": {"name": "fedtan-ii", "switch": 1}},
    "forward-only": {"algorithm": {"name": "forward-only"}},
    "hbn": {"algorithm": {"name": "hbn"}},
    "one step": {"algorithm": {"local_steps": 1, "weights": "uniform"}},
    "some clients": {"selection": {"name": "random", "fraction": 0.6}},
    "private clients": {
        "algorithm": {"name": "fedavg", "weights": "uniform"},
        "exchange": {"encrypt": "model"},
        "fnr": {"name": "matched", "epochs": 1},
        "privacy": SEEDED | {"level": "client"},
    },
    "refined": {"algorithm": {"name": "fedavg"}, "fnr": {"name": "matched", "epochs": 1}},
    "private records": {
        "algorithm": {"name": "fixbn", "weights": "uniform"},
        "privacy": SEEDED | {"level": "record", "records": 16, "statistics_sigma": 0.05},
    },
}
ENGINES = {
    "alone": {"engine": "sequential"},
    "side by side": {"engine": "vectorised"},
    "workers": {"engine": "parallel", "workers": 2},
}


def settings(tiny_config, changes, *, blind, **run_table):
    tables = {**changes, "exchange": {**changes.get("exchange", {}), "blind": blind}}
    if "algorithm" in tables:
        tables["algorithm"] = {"local_steps": 2, **tables["algorithm"]}
    return tiny_config(run={"rounds": 2, **run_table}, **tables)


def floats_of(result):
    return {n: v for n, v in result.model.state_dict().items() if v.is_floating_point()}


def require_alike(one, other, atol=1e-6):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=0, atol=atol)


def public(tiny_task):
    """A task whose public samples are nobody else's."""
    task = tiny_task(6)
    *clients, own = task.clients
    x, y = own
    return tiny_task(clients=clients, test=(x + 1, y), public=task.test)


@pytest.mark.parametrize("name", RUNS)
def test_a_blind_run_trains_the_same_model(tiny_config, tiny_task, name):
    """And the authority opens the same totals of the same clients."""
    told, blind = (
        run(settings(tiny_config, RUNS[name], blind=is_blind), public(tiny_task))
        for is_blind in (False, True)
    )
    require_alike(floats_of(told), floats_of(blind))
    assert blind.incidents == told.incidents == []
    said = [
        [(o.round, o.name, o.n_values, o.signers, o.n_clients, o.refused) for o in r.openings]
        for r in (told, blind)
    ]
    assert said[0] == said[1]
    forms = {
        (e.form, e.name.startswith("update/"))
        for e in blind.ledger.entries
        if e.sender == AUTHORITY
    }
    assert forms == {("ciphertext", False), ("plaintext", True)}


@pytest.fixture(scope="module")
def agency():
    lender = Agency()
    yield lender
    lender.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_relay_blind_totals_alike(tiny_config, tiny_task, agency, monkeypatch, engine):
    """One after the other, in a block, and in workers, to whom only their own clients' keys go."""
    monkeypatch.setattr(worker_process, "WorkerProcess", agency)
    told = run(settings(tiny_config, {}, blind=False, engine="sequential"), tiny_task())
    blind = run(settings(tiny_config, {}, blind=True, **ENGINES[engine]), tiny_task())
    require_alike(floats_of(told), floats_of(blind))
    relayed = [e for e in blind.ledger.entries if e.sender == SERVER and e.form == "ciphertext"]
    to_clients = [e for e in relayed if e.receiver != AUTHORITY]
    assert {e.name for e in to_clients} == {"1/mean", "1/variance", "1/gradient"}
    assert len(to_clients) == 2 * 3 * 5


def test_a_blind_total_is_as_long_as_is_said(tiny_config, tiny_task):
    """A wrap of 48 bytes for each client, and the rest once: salt, list, doubles and tag."""
    result = run(settings(tiny_config, {}, blind=True), tiny_task())
    names = [f"client-{i}" for i in range(1, 6)]
    for entry in result.ledger.entries:
        if entry.name == "1/gradient" and entry.sender in {SERVER, AUTHORITY}:
            n_content = 16 + 8 * 12
            list_bytes = len(json.dumps(names, separators=(",", ":")))
            common = 16 + 4 + list_bytes + n_content + 16
            if entry.sender == AUTHORITY:
                assert entry.bytes == 4 + 5 * 48 + common == n_answer_bytes(names, n_content)
            elif entry.receiver != AUTHORITY:
                assert entry.bytes == 48 + common == n_client_bytes(names, n_content)


def test_a_resumed_blind_run_goes_on_as_it_would_have(tiny_config, tiny_task, tmp_path):
    """Another session has other cards and other content keys, and the same model."""
    whole = run(settings(tiny_config, {}, blind=True, rounds=3), tiny_task(), out=tmp_path / "a")
    config = settings(tiny_config, {}, blind=True, rounds=3)

    class StopError(Exception):
        pass

    def stop(metrics):
        if metrics.round == 2:
            raise StopError

    with pytest.raises(StopError):
        run(config, tiny_task(), out=tmp_path / "b", on_round=stop)
    again = resume(tmp_path / "b", tiny_task())
    require_alike(floats_of(whole), floats_of(again))


def test_a_client_that_lies_about_its_weight_is_found(tiny_config, tiny_task, monkeypatch):
    """The server cannot see it in a blind total: the authority refuses that before it is sealed.

    Other totals of that round were opened: of five clients no fewer than three can be left out, and
    three be there.
    """
    weight_in, sealed_for = Client.weight_in, []

    def lying(self, spec, times=1):
        own = weight_in(self, spec, times)
        return own / 4 if self.name == "client-2" and spec.kind is Kind.GRADIENTS else own

    seal = BlindTotal.of.__func__

    def noted(cls, key, wraps):
        sealed_for.append(set(wraps))
        return seal(cls, key, wraps)

    monkeypatch.setattr(Client, "weight_in", lying)
    monkeypatch.setattr(BlindTotal, "of", classmethod(noted))
    with pytest.raises(TotalRefused, match="whoever else is left out"):
        run(settings(tiny_config, {}, blind=True, rounds=9), tiny_task())
    sealed_for.clear()
    result = run(settings(tiny_config, {}, blind=True, rounds=11), tiny_task(8))
    refused = [o for o in result.openings if o.refused]
    assert {o.name for o in refused} == {"1/gradient"}
    assert "one lies about its weight" in refused[0].refused
    assert all("client-2" in o.signers for o in refused)
    assert not any("client-2" in o.signers for o in result.openings[-4:])
    assert {i.client for i in result.incidents if "spoil" in i.reason} >= {"client-2"}
    middle = [o for o in result.openings if not o.name.startswith("update/")]
    assert sealed_for == [set(o.signers) for o in middle if not o.refused]


# As the page says.


def test_a_total_that_is_sealed_by_hand_opens():
    """Step by step as docs/one-time-keys.md has it, by the library's AES-GCM and HKDF alone."""
    about = MessageId("ab" * 32, 3, "layer/mean", 2)
    keys, sender = KeySet.ephemeral(), Sender("bob", b"k" * 32)
    listed = b'["alice","bob","carol"]'
    key, salt, nonce = b"K" * 32, b"s" * 16, bytes(12)
    ciphertext = AESGCM(key).encrypt(nonce, b"the total", about.digest() + listed)
    bound = hashlib.sha256(b"SecureFL blind total 1\0")
    for part in (about.digest(), listed, salt, ciphertext):
        bound.update(len(part).to_bytes(8, "little") + part)
    k_bob = group_secret(sender.secret, 0)
    info = b"SecureFL blind total 1\0" + about.digest()
    wrapping = HKDF(SHA256(), 32, salt=salt, info=info).derive(k_bob)
    wrap = AESGCM(wrapping).encrypt(nonce, key, bound.digest())
    body = wrap + salt + len(listed).to_bytes(4, "little") + listed + ciphertext
    found = OneTimeSealer(keys.public).opened(BlindTotal.sent_to("bob", body), about, sender)
    assert found == (b"the total", 3)


def test_only_totals_of_a_rounds_end_are_read_by_the_server(tiny_config):
    """By the settings of all parties; also those of scores, which the server shows."""
    policy = policy_of(settings(tiny_config, {}, blind=True), None)
    for name in ("update/parameters", "update/statistics", "score/mean"):
        assert not policy.is_blind(name)
    for name in ("1/mean", "layer/gradient", "fnr/norms", "update/mean", "update", "model/x", ""):
        assert policy.is_blind(name)
    policy = policy_of(settings(tiny_config, {}, blind=False), None)
    assert not policy.is_blind("1/mean")


def test_devices_count_blind_totals_as_the_ledger_has_them(tiny_config, tiny_task):
    """To the byte where all clients take part."""
    config = settings(tiny_config, {}, blind=True)
    record = Record()
    rounds = simulated(config, tiny_task(), record=record)
    rounds.step()
    server, sums = rounds.parts.server, rounds.plan.sums
    for spec in sums:
        found = {
            e.bytes
            for e in record.ledger.entries
            if e.name == spec.name and e.sender == SERVER and e.receiver != AUTHORITY
        }
        assert found == {server.total_bytes(spec)}


# Separate processes.

JOBS = {
    "fedtan": ("algorithm.name=fedtan", "exchange.encrypt=statistics"),
    "fused, whole models": (
        "algorithm.name=fedtan",
        "algorithm.moments=fused",
        "exchange.encrypt=model",
    ),
    "refined": ("fnr.name=matched", "fnr.epochs=1", "exchange.encrypt=model"),
    "hbn": ("algorithm.name=hbn", "exchange.encrypt=model"),
}


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("consortium") / "site")


def require_blind(folder, least=3):
    """Nothing in mid-round but ciphertext, sums of `least` names or more, and no incident."""
    assert incidents_of(folder) == ""
    ledger = read_run(folder).ledger
    middle = [e for e in ledger if e.exchange and not e.name.startswith(("update/", "card"))]
    assert len({e.name for e in middle}) >= least
    assert {e.form for e in middle} == {"ciphertext"}
    senders = {e.sender for e in middle}
    assert {SERVER, AUTHORITY, "alice"} <= senders


@pytest.mark.usefixtures("no_hang")
@pytest.mark.parametrize("name", JOBS)
def test_processes_relay_blind_totals(consortium, tmp_path, name):
    """The model of a simulation in which the server reads them."""
    job = Job(consortium, tmp_path / "blind", [*JOBS[name], "exchange.blind=true"])
    other = Job(consortium, tmp_path / "told", [*JOBS[name], "exchange.blind=false"])
    folder = job.over_loopback()
    require_blind(folder, least=1 if name == "hbn" else 3)
    require_alike(model_of(folder), model_of(other.simulated()), atol=2e-6)


@pytest.mark.usefixtures("no_hang")
def test_processes_over_calls_relay_blind_totals(consortium, tmp_path):
    """Where NVIDIA FLARE carries the frames."""
    job = Job(consortium, tmp_path / "job", [*JOBS["fedtan"], "exchange.blind=true"])
    loop = OnTask(job)
    loop.authority = lambda: authority_process(
        consortium.site, loop.keeper, job.config, loop.said.append
    )
    folder = RunFolder.begun_or_new(job.folder / "run", job.config)

    async def with_threads():  # each party's calls wait in threads of this one process
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32))
        await federation_by_calls(loop, folder)

    asyncio.run(with_threads())
    require_blind(job.folder / "run")
    require_alike(model_of(job.folder / "run"), model_of(job.simulated()), atol=2e-6)


# Settings.


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["algorithm.name=fedavg"], "the server applies all totals of these and so reads them"),
        (["algorithm.name=fixbn"], "the server applies all totals"),
        (["exchange.encrypt=none"], "leaves all sums in the clear"),
        (["exchange.officers=3"], "adds up the officers' answers, and so reads all totals"),
        (["algorithm.name=fedavg", "fnr.name=server"], "the server applies all totals"),
    ],
    ids=str,
)
def test_blind_settings_that_make_no_sense_are_refused(given, message):
    """Each with its reason and the way out."""
    with pytest.raises(ConfigError) as caught:
        load_config(None, ["exchange.blind=true", *given])
    assert message in str(caught.value)
    assert "leave exchange.blind out" in str(caught.value) or "leave one" in str(caught.value)


def test_the_command_takes_blind(tmp_path):
    """--blind is exchange.blind; the table says that no total of gradients was read."""
    quick = [
        "--encrypt",
        "statistics",
        "--rounds",
        "1",
        "--set",
        "algorithm.local_steps=1",
        "--set",
        "data.clients=5",
    ]
    arguments = ["run", "--blind", *quick, "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["exchange"]["blind"] is True
    said = " ".join(result.stdout.split())
    assert "of statistics" in said
    assert "gradients" not in said
    assert np.isfinite(read_run(tmp_path / "run").metrics[-1].loss)
