"""No file that somebody else has written costs more than a second, or half a gigabyte.

Changed at random, and changed to be costly: every one is read, or is an error of ours that names
the file.
"""

from __future__ import annotations

import random
import resource
import time
from contextlib import suppress

import numpy as np
import pytest
import torch
from consortium_files import make_consortium
from key_folders import load_client, load_server
from mutations import mutated, nasty
from safetensors.torch import save_file

import securefl
from securefl.audit.findings import holds_findings
from securefl.data.arrays import load_arrays
from securefl.errors import SecureFLError
from securefl.evaluation.evaluate import with_trained_tensors
from securefl.federation.incidents import Incident
from securefl.federation.ledger import Entry
from securefl.federation.opening import Opening
from securefl.network.authority import RELEASES, AuthorityLog
from securefl.privacy.events import Gaussian, Level
from securefl.privacy.history import History
from securefl.recipes.recipe import load_recipe
from securefl.runs.folder_reader import read_config, read_rows, read_run
from securefl.runs.folder_writer import RunFolder
from securefl.runs.round_metrics import read_metrics
from securefl.runs.session import read_environment
from securefl.selection.round_participants import RoundParticipants
from securefl.settings.load import load_config
from securefl_keys import sealed_file
from securefl_keys.bundle import Bundle
from securefl_keys.identity import load_identity
from securefl_keys.key_files import found_in, load_secret, text_of
from securefl_keys.policy import load_policy, read_policy
from securefl_keys.request import read_request
from securefl_keys.roster import load_authority_certificate, load_roster
from securefl_keys.sealed_keys import SealedKey
from securefl_keys.signed_file import now

MOST_S, MOST_BYTES = 1.0, 500 * 2**20
SETTINGS = b"""[run]
rounds = 3
seed = 0x0a
[data]
partition = "classes:2" # of ten
names = ["alice", 'bob', "Zo\xc3\xab"]
[train]
lr = 0.5
lr_drops = [0.5, 7.5e-1]
solver.none = {a = 1}
"""
POLICY = b"""min_contributions = 3
openings_per_run = 1_000
[[rules]]
names = "update/*"
precision_bits = 24
"""
RECIPE = b"""title = "Tiny"
paper = "Nobody. Table 0"
seeds = 1
[run]
rounds = 1
[exchange]
encrypt = "none"
[[columns]]
name = "COLUMN"
settings.train.lr = 0.1
[[rows]]
name = "ROW"
paper."COLUMN" = "87.66 \xc2\xb1 0.43"
"""


def read_request_in(path):
    with found_in(path):
        return read_request(text_of(path))


RUN = {
    "config.json": lambda path: read_config(path.parent),
    "environment.json": read_environment,
    "qualities.json": lambda path: read_run(path.parent),
    "metrics.jsonl": lambda path: read_metrics(path.parent),
    "ledger.jsonl": lambda path: read_rows(path, Entry),
    "incidents.jsonl": lambda path: read_rows(path, Incident),
    "openings.jsonl": lambda path: read_rows(path, Opening),
    "selections.jsonl": lambda path: read_rows(path, RoundParticipants),
    "privacy.json": lambda path: RunFolder(path.parent).history(),
    "audit.json": holds_findings,
    "checkpoint.safetensors": lambda path: RunFolder(path.parent).checkpoint(),
    "model.safetensors": lambda path: with_trained_tensors(path.parent, torch.nn.Linear(4, 2)),
}
OWN = {
    "settings.toml": (SETTINGS, load_config),
    "policy.toml": (POLICY, read_policy),
    "recipe.toml": (RECIPE, load_recipe),
    RELEASES: (b'["ab", 1, "update/parameters"]\n' * 3, lambda path: AuthorityLog(path.parent, "")),
    "x.npz": (None, load_arrays),
    "x.safetensors": (None, load_arrays),
}
KEYS = {
    "bundles/client/clients/public.key": lambda path: load_client(path.parents[1]),
    "bundles/client/consortium/roster.json": lambda path: load_roster(path.parents[1]),
    "bundles/client/consortium/policy.json": lambda path: load_policy(path.parents[1]),
    "bundles/client/consortium/ca.crt": lambda p: load_authority_certificate(
        p.parents[1], None, now()
    ),
    "bundles/client/consortium/manifest.json": lambda p: Bundle.read(p.parents[1], None, now()),
    "bundles/server/server/public.key": lambda path: load_server(path.parents[1]),
    "alice/identity.csr": read_request_in,
    "alice/identity.crt": lambda path: load_identity(path.parent, "of alice"),
    "alice/identity.key": lambda path: load_identity(path.parent, "of alice"),
    "keys/authority/secret.key": lambda path: load_secret(path, SealedKey.parse),
}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run of two rounds, and a line of whatever it has not left."""
    data = (torch.randn(8, 4), torch.randint(2, (8,)))
    settings = [
        "run.rounds=2",
        "algorithm.name=fedavg",
        "algorithm.local_steps=1",
        "exchange.encrypt=none",
    ]
    path = tmp_path_factory.mktemp("outside") / "run"
    task = securefl.Task(torch.nn.Linear(4, 2), [data] * 3, data)
    securefl.run(load_config(None, settings), task, out=path)
    folder = RunFolder(path)
    folder.note_opening(Opening(1, "update/parameters", 10, ("client-1",), 3))
    folder.note_messages([], [Incident(1, "update/parameters", "client-1", "NaN")])
    folder._append("selections.jsonl", [RoundParticipants(1, {"client-1": 1}, ("client-1",))])
    folder.note_history(History().plus(Level.RECORD, Gaussian(1.0)))
    folder.note_clients({"client-1": "clean"}, {})
    (path / "audit.json").write_bytes(b'{"run": "a", "effort": "quick", "chapters": {}}')
    return path


@pytest.fixture(scope="module")
def consortium_folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_file, "KDF_COST", sealed_file.KdfCost(1, 1, 8))
        yield make_consortium(tmp_path_factory.mktemp("consortium")).root


@pytest.fixture
def file_of(request, tmp_path):
    """Of each kind: its path, its content, and what reads it."""

    def found(kind):
        if kind in RUN:
            path = request.getfixturevalue("run_folder") / kind
            return path, path.read_bytes(), RUN[kind]
        if kind in KEYS:
            path = request.getfixturevalue("consortium_folder") / kind
            return path, path.read_bytes(), KEYS[kind]
        path, (content, read) = tmp_path / kind, OWN[kind]
        if content is None:
            arrays = {"x": torch.rand(3, 4), "y": torch.tensor([0, 1, 1])}
            save = save_file if path.suffix == ".safetensors" else lambda a, p: np.savez(p, **a)
            save(arrays, path)
            content = path.read_bytes()
        return path, content, read

    return found


def peak_bytes():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def changes(content, n):
    yield from nasty(content, size=1_000_000)
    rng = random.Random(len(content))
    for _ in range(n):
        yield mutated(content, rng)


@pytest.mark.parametrize("n", [60, pytest.param(10_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", [*RUN, *OWN, *KEYS])
def test_a_changed_file_is_read_or_refused_at_once(file_of, kind, n):
    """By an error that names it; the file as it was is read."""
    path, content, read = file_of(kind)
    slowest, before = 0.0, peak_bytes()
    try:
        for changed in changes(content, n):
            path.write_bytes(changed)
            started = time.thread_time()
            with suppress(SecureFLError):
                read(path)
            slowest = max(slowest, time.thread_time() - started)
    finally:
        path.write_bytes(content)
    grown = peak_bytes() - before
    print(f"{kind}: {n} changes, slowest {slowest:.3f} s, {grown / 2**20:.0f} MiB more")  # noqa: T201
    assert slowest < MOST_S
    assert grown < MOST_BYTES
