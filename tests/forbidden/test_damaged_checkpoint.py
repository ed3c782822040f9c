"""A run goes on from the checkpoint that it wrote, or says that it cannot: nothing in between."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import securefl
from securefl.errors import RunFolderError
from securefl.federation.opening import Opening
from securefl.runs.checkpoint import META, PARTS, Checkpoint, _digest
from securefl.runs.folder_writer import RunFolder
from securefl.types import ClientState, Kind, State

pytestmark = pytest.mark.usefixtures("quick")

STOP, ROUNDS = 5, 7
EVERYTHING = {
    "run": {"rounds": ROUNDS},
    # A window, the solver's and the server's h, momentum: every part of a checkpoint but `own`.
    "algorithm": {"name": "fixbn", "switch": "window", "window": 3, "threshold": 1e-30},
    "solver": {"name": "feddyn"},
    "train": {
        "batch_size": 8,
        "lr": 0.1,
        "momentum": 0.9,
        "momentum_across_rounds": "local",
    },
    "exchange": {"encrypt": "none"},
}


class StopError(Exception):
    """Stands for a crash."""


def stop(metrics):
    if metrics.round == STOP:
        raise StopError


def stopped(config, task, folder):
    with pytest.raises(StopError):
        securefl.run(config, task, out=folder, on_round=stop)
    return folder


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory, tiny_config, tiny_task):
    """A run's folder after five of seven rounds, and its task."""
    task = tiny_task()
    folder = tmp_path_factory.mktemp("stopped") / "run"
    return stopped(tiny_config(**EVERYTHING), task, folder), task


def metadata_of(path):
    with safe_open(path, framework="pt") as file:
        return file.metadata()


def dropped(tensors, key, _draw):
    del tensors[key]


def renamed(tensors, key, _draw):
    tensors[key + "x"] = tensors.pop(key)


def of_another_shape(tensors, key, _draw):
    tensors[key] = torch.zeros(7, 3, dtype=tensors[key].dtype)


def of_another_type(tensors, key, _draw):
    tensors[key] = tensors[key].to(torch.int64)


def in_an_odd_group(tensors, key, draw):
    prefix = draw(st.sampled_from(["odd/", "", "a/b/", "state/", "memory/", "own//", "/"]))
    other = prefix + key.partition("/")[2]
    assume(other != key)
    tensors[other] = tensors.pop(key)


def of_a_foreign_client(tensors, _key, draw):
    part, value = draw(st.sampled_from(PARTS)), torch.zeros(3)
    tensors[f"{part}/{draw(st.sampled_from(['client-1', 'client-9', 'server']))}/z"] = value


def with_a_stranger(tensors, _key, draw):
    groups = ["private/server", "private/other", "state/parameters", "state/odd", "odd/client-1"]
    tensors[f"{draw(st.sampled_from(groups))}/z"] = torch.zeros(3)


def of_another_value(tensors, key, draw):
    flat = tensors[key].view(-1)
    flat[draw(st.integers(0, flat.numel() - 1))] += draw(st.sampled_from([1.0, float("nan")]))


DAMAGE = [
    dropped,
    renamed,
    of_another_shape,
    of_another_type,
    in_an_odd_group,
    of_a_foreign_client,
    with_a_stranger,
    of_another_value,
]


@settings(deadline=None, max_examples=80, suppress_health_check=list(HealthCheck))
@given(data=st.data(), damage=st.sampled_from(DAMAGE))
def test_no_changed_tensor_is_taken_for_what_was_written(tmp_path, stopped_run, data, damage):
    """Whatever is added, missing, renamed, reshaped or changed, reading ends with a way out."""
    path = stopped_run[0] / "checkpoint.safetensors"
    tensors = load_file(path)
    damage(tensors, data.draw(st.sampled_from(sorted(tensors))), data.draw)
    save_file(tensors, tmp_path / "damaged", metadata_of(path))
    with pytest.raises(RunFolderError, match=r"damaged checkpoint .*start the run anew"):
        Checkpoint.read(tmp_path / "damaged")


@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_flipped_bit_goes_unseen(tmp_path, stopped_run, data):
    """In the header, in the metadata or in a value: no file but the one that was written is read.

    A header may come back to the same meaning, in the spaces at its end for example.
    """
    content = bytearray((stopped_run[0] / "checkpoint.safetensors").read_bytes())
    header = int.from_bytes(content[:8], "little")
    where = st.integers(0, header + 8) | st.integers(header + 8, len(content) - 1)
    content[data.draw(where)] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / "flipped"
    path.write_bytes(content)
    try:
        found = Checkpoint.read(path)
    except RunFolderError:
        return
    assert found.to_bytes() == (stopped_run[0] / "checkpoint.safetensors").read_bytes()


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {},
        {"round": "5"},
        {META: ""},
        {META: "[]"},
        {META: "5"},
        {META: "[" * 100_000},
        {META: '{"round": 5}'},
        {META: '{"round": [], "sha256": ""}'},
        {META: '{"round": Infinity, "sha256": ""}'},
        {META: '{"round": 4, "sha256": "%s"}'},
        {META: '{"round": -1, "sha256": "%s"}'},
    ],
)
def test_a_checkpoint_says_of_which_round_it_is(tmp_path, stopped_run, metadata):
    """Without its metadata, or with another round in them, it is damaged."""
    path = stopped_run[0] / "checkpoint.safetensors"
    if metadata:
        digest = json.loads(metadata_of(path)[META])["sha256"]
        metadata = {key: text.replace("%s", digest) for key, text in metadata.items()}
    save_file(load_file(path), tmp_path / "damaged", metadata)
    with pytest.raises(RunFolderError, match="damaged checkpoint"):
        Checkpoint.read(tmp_path / "damaged")


def test_what_is_written_is_read(stopped_run):
    """All parts come back, bit for bit, and are written as the same bytes again."""
    path = stopped_run[0] / "checkpoint.safetensors"
    found = Checkpoint.read(path)
    assert found.state.round == STOP
    assert found.state.private
    assert {kind.value for kind in found.state.tensors} == {"parameters", "statistics"}
    assert set(found.client_states) == {f"client-{i}" for i in range(1, 6)}
    for client_state in found.client_states.values():
        assert all((client_state.momentum, client_state.solver, client_state.policy))
    assert found.to_bytes() == path.read_bytes()


def test_tensors_of_any_form_survive(tmp_path):
    """Scalars, empty ones, other types, views, and such as ask for a gradient."""
    matrix = torch.arange(6.0).view(2, 3)
    kept = {
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "whole": torch.tensor([1, 2]),
        "flag": torch.tensor([True, False]),
        "turned": matrix.T,
        "a/b/c": matrix.clone().requires_grad_(),
    }
    state = State(3, {Kind.PARAMETERS: {"w": matrix}})
    (tmp_path / "file").write_bytes(
        Checkpoint(state, {"client-1": ClientState(own=kept)}).to_bytes()
    )
    found = Checkpoint.read(tmp_path / "file").client_states["client-1"].own
    assert found.keys() == kept.keys()
    for name, value in kept.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value.detach())


@pytest.mark.parametrize(
    "change",
    [
        {"solver": {"name": "sgd"}},
        {"solver": {"name": "scaffold"}},
        {"server": {"name": "fedadam"}, "solver": {"name": "sgd"}},
        {"train": EVERYTHING["train"] | {"momentum_across_rounds": "global"}},
        {"algorithm": {"name": "fedavg"}},
        {"data": {"clients": 4}},
    ],
)
def test_the_checkpoint_of_another_run_is_not_gone_on_from(
    tmp_path, tiny_config, tiny_task, stopped_run, change
):
    """Of another algorithm or of other clients: refused before the folder is touched."""
    clients = change.get("data", {}).get("clients", 5)
    tables = EVERYTHING | {key: value for key, value in change.items() if key != "data"}
    config, task = tiny_config(**tables), tiny_task(clients)
    folder = stopped(config, task, tmp_path / "other")
    checkpoint = folder / "checkpoint.safetensors"
    checkpoint.write_bytes((stopped_run[0] / "checkpoint.safetensors").read_bytes())
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(RunFolderError, match=r"the checkpoint is of (an)?other .*: resume with"):
        securefl.resume(folder, task)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("kept", [[], [0, 1, 3, 4], [0, 1, 2, 3], [0, 1, 2, 3, 4, 4]])
def test_a_line_of_metrics_for_each_round(tmp_path, tiny_config, tiny_task, kept):
    """A metrics file that lost or doubled lines is no run's: resuming says so."""
    task = tiny_task()
    folder = stopped(tiny_config(**EVERYTHING), task, tmp_path / "run")
    metrics = folder / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[i] for i in kept))
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl .* 5 rounds.*start the run anew"):
        securefl.resume(folder, task)


def forged(run, tmp_path, change, round_number=STOP):
    """A copy of a stopped run whose checkpoint was changed by somebody who knows its digest."""
    folder = tmp_path / "forged"
    shutil.copytree(run, folder)
    path = folder / "checkpoint.safetensors"
    tensors = load_file(path)
    change(tensors)
    about = {"round": round_number, "sha256": _digest(round_number, tensors)}
    save_file(tensors, path, {META: json.dumps(about)})
    return folder


@pytest.mark.parametrize("round_number", [10**9, -1, "3", None, [3], 2.5, True])
def test_a_forged_number_of_rounds_is_refused(stopped_run, tmp_path, round_number):
    """No list of a thousand million rounds is made, and no file of the folder is rewritten."""
    run, task = stopped_run
    folder = forged(run, tmp_path, lambda _: None, round_number)
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix != ".lock"}
    with pytest.raises(RunFolderError, match=r"no number of rounds|not one line for each"):
        securefl.resume(folder, task)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix != ".lock"} == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("momentum/client-1/0.weight", torch.zeros(2)),
        ("momentum/client-1/0.weight", torch.zeros(6, 4, dtype=torch.int8)),
        ("momentum/client-1/0.weight", torch.full((6, 4), float("nan"))),
        ("solver/client-1/0.weight", torch.zeros(1)),
        ("solver/client-1/no.such", torch.zeros(6)),
        ("own/client-1/1.weight", torch.zeros(1)),
        ("policy/client-1/changes", torch.zeros(2, dtype=torch.int8)),
    ],
)
def test_what_a_client_cannot_have_kept_is_refused(stopped_run, tmp_path, key, value):
    """Before a round begins, and with the name of the tensor."""
    run, task = stopped_run
    folder = forged(run, tmp_path, lambda tensors: tensors.update({key: value}))
    with pytest.raises(RunFolderError, match=key):
        securefl.resume(folder, task)


def test_a_link_in_a_runs_folder_is_not_written_through(stopped_run, tmp_path):
    """A log that somebody replaced by a link to another file is refused, and that file is whole."""
    run, _ = stopped_run
    folder, victim = tmp_path / "linked", tmp_path / "victim"
    shutil.copytree(run, folder)
    victim.write_text("precious")
    (folder / "openings.jsonl").unlink(missing_ok=True)
    (folder / "openings.jsonl").symlink_to(victim)
    with pytest.raises(RunFolderError, match="cannot be written"):
        RunFolder(folder).note_opening(Opening(1, "x", 3, ("client-1",), 1))
    assert victim.read_text() == "precious"
