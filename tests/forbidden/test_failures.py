"""The machine fails under a run: one clear line, nothing half-written, and a way to go on."""

from __future__ import annotations

import errno
import json
import os
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import securefl
from securefl.errors import ConfigError, DataError, RunFolderError
from securefl.io import files
from securefl.runs import folder_writer as runfolder
from securefl.runs.round_metrics import RoundMetrics

pytestmark = pytest.mark.usefixtures("quick")

PLAIN = ("run.rounds=4", "algorithm.local_steps=1", "exchange.encrypt=none")


def small_task(**changes):
    rng = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(8, 4, generator=rng), torch.randint(2, (8,), generator=rng)) for _ in range(3)
    ]
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    return securefl.Task(**{"model": model, "clients": clients, "test": clients[0]} | changes)


def full_disk(*_args, **_kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("file", ["checkpoint.safetensors", "metrics.jsonl", "ledger.jsonl"])
def test_a_disk_that_fills_up_loses_no_complete_round(tmp_path, monkeypatch, file):
    """The run stops with one line; what is on disk is whole, and the run goes on from there."""
    config = securefl.load_config(None, PLAIN)
    write, append = runfolder.write_atomically, runfolder.RunFolder._append

    def write_or_fail(path, content, **mode):
        with runfolder._explained(path.parent):
            full_disk() if path.name == file else None
        write(path, content, **mode)

    def append_or_fail(self, name, lines):
        full_disk() if name == file else append(self, name, lines)

    def fill_disk(metrics):
        if metrics.round == 2:
            monkeypatch.setattr(runfolder, "write_atomically", write_or_fail)
            monkeypatch.setattr(runfolder.RunFolder, "_append", append_or_fail)

    with pytest.raises(
        RunFolderError, match=r"No space left.*securefl\.resume\('.*run', task\).*the same command"
    ):
        securefl.run(config, small_task(), out=tmp_path / "run", on_round=fill_disk)
    assert not list((tmp_path / "run").glob("*.partial"))
    monkeypatch.undo()
    securefl.resume(tmp_path / "run", small_task())
    assert [row["round"] for row in rows(tmp_path / "run/metrics.jsonl")] == [1, 2, 3, 4]


def test_a_line_that_does_not_fit_is_taken_back(tmp_path, monkeypatch):
    """A disk that takes a part of a line leaves the file as it was before."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"round": 1}\n')
    monkeypatch.setattr(files, "_require_all", full_disk)
    metrics = RoundMetrics(2, 0.5, 0.1, 0.5, 100, (), 0.1)
    with pytest.raises(OSError, match="No space"):
        runfolder.RunFolder(tmp_path)._append("metrics.jsonl", [metrics])
    assert path.read_bytes() == b'{"round": 1}\n'


def test_a_half_written_file_never_takes_the_place_of_a_whole_one(tmp_path, monkeypatch):
    """A checkpoint is replaced in one move or not at all."""
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(b"whole")

    def half(handle, mode):
        os.write(handle, b"the new")
        os.close(handle)
        full_disk()

    monkeypatch.setattr(os, "fdopen", half)
    with pytest.raises(RunFolderError, match="No space"):
        runfolder.write_atomically(path, b"the new content")
    monkeypatch.undo()
    assert path.read_bytes() == b"whole"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path):
    """A path below a file names the path and the way out, before any training."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"cannot be written.*name another folder"):
        securefl.run(securefl.load_config(None, PLAIN), small_task(), out=tmp_path / "file" / "run")


def test_a_client_whose_code_fails_ends_the_run_and_leaves_no_thread_waiting():
    """An exception in a user's data set reaches the caller, while others wait for FedTAN's sum."""

    class Broken(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if index >= 4:  # those before are tried before the first round
                raise KeyError("no such file")
            return x[index], y[index]

    job = small_task()
    x, y = job.clients[1]
    clients = [job.clients[0], Broken(), job.clients[2]]
    with pytest.raises(DataError, match=r"client-2: sample \d: .* KeyError .*no such file"):
        securefl.run(securefl.load_config(None, PLAIN), small_task(clients=clients))
    waiting = [t for t in threading.enumerate() if t.name.startswith("client")]
    for thread in waiting:
        thread.join(timeout=0)  # pool threads are idle; none holds a client's work
    again = securefl.run(securefl.load_config(None, PLAIN), small_task())
    assert len(again.metrics) == 4


def test_tensors_and_datasets_give_the_same_run():
    """A torch Dataset with the same samples trains the same model."""
    job = small_task()
    config = securefl.load_config(None, [*PLAIN, "run.engine=sequential"])
    datasets = [TensorDataset(x, y) for x, y in job.clients]
    one = securefl.run(config, job)
    other = securefl.run(config, securefl.Task(job.model, datasets, TensorDataset(*job.test)))
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"clients": []}, ConfigError, "at least one client"),
        (
            {"clients": [(torch.ones(1, 4), torch.zeros(1).long())] * 3},
            DataError,
            "client-1: 1 sam",
        ),
        ({"clients": [(torch.ones(3, 4), torch.zeros(2).long())] * 3}, DataError, "3 inputs but 2"),
        (
            {"clients": [(torch.full((3, 4), torch.nan), torch.zeros(3).long())] * 3},
            DataError,
            "NaN",
        ),
        ({"clients": [[1, 2, 3]] * 3}, DataError, "client-1: 3 values; give \\(x, y\\)"),
        ({"model": nn.Sequential(nn.Linear(4, 2))}, DataError, "needs batch normalisation"),
        ({"model": nn.Sequential(nn.Flatten())}, DataError, "no parameter"),
        (
            {"model": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None))},
            DataError,
            "'1' has momentum=None",
        ),
    ],
)
def test_data_and_models_that_cannot_be_used_are_refused_before_the_run(
    tmp_path, change, error, message
):
    """The message names the client or the layer, and no folder is made."""
    with pytest.raises(error, match=message):
        securefl.run(securefl.load_config(None, PLAIN), small_task(**change), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_layer_that_is_used_twice_is_named():
    """FedTAN pools each layer once a step; a shared layer is a clear error, not a wrong result."""
    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(norm, nn.Linear(4, 4), norm, nn.Linear(4, 2))
    with pytest.raises(DataError, match="'0' is used twice"):
        securefl.run(securefl.load_config(None, PLAIN), small_task(model=model))


@pytest.mark.parametrize(
    ("norm", "why"),
    [
        ("functional", "functional.batch_norm"),
        ("never called", r"planned sums \['norm/mean', 'norm/variance'"),
    ],
)
def test_statistics_that_pass_by_the_layer_are_noticed(norm, why):
    """A BN layer whose statistics FedTAN never gets to see is an error, not a silent FedAvg."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 2)

        def forward(self, x):
            n = self.norm
            if norm == "functional":
                x = nn.functional.batch_norm(x, n.running_mean, n.running_var, training=True)
            return self.head(x)

    with pytest.raises(DataError, match=why):
        securefl.run(securefl.load_config(None, PLAIN), small_task(model=Net()))


def test_a_layer_with_a_forward_of_its_own_is_not_pooled_wrongly():
    """What a BN subclass adds would vanish in the pooled step: refused by the layer's name."""

    class NormRelu(nn.BatchNorm1d):
        def forward(self, x):
            return torch.relu(super().forward(x))

    model = nn.Sequential(nn.Linear(4, 3), NormRelu(3), nn.Linear(3, 2))
    with pytest.raises(DataError, match="'1' is a NormRelu with a forward of its own"):
        securefl.run(securefl.load_config(None, PLAIN), small_task(model=model))


def test_counters_of_a_model_are_not_handed_from_client_to_client():
    """Buffers that do not travel start each round as in the model that was given."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.tensor(0))
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            if self.training:
                self.steps += 1
                assert self.steps == 1  # one local step a round
            return self.head(x)

    config = securefl.load_config(None, [*PLAIN, "algorithm.name=fedavg"])
    securefl.run(config, small_task(model=Counting()))


def test_centralised_training_takes_all_clients_data():
    """The union of tensors and Datasets has every sample."""
    job = small_task()
    clients = [job.clients[0], TensorDataset(*job.clients[1]), job.clients[2]]
    config = securefl.load_config(None, [*PLAIN, "algorithm.name=centralised"])
    one = securefl.run(config, job)
    other = securefl.run(config, securefl.Task(job.model, clients, job.test))
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.zeros(8, 1), "labels, not .*float32"),
        (torch.zeros(8), "whole"),
        (torch.zeros(8, 1).long(), "int64"),
    ],
)
@pytest.mark.parametrize("metric", ["accuracy", None])
def test_accuracy_is_refused_where_it_means_nothing(y, message, metric):
    """Labels that are no classes are a clear error; a share above one is never reported."""
    job = small_task()
    loss = lambda out, _: out.square().mean()  # noqa: E731
    task = securefl.Task(job.model, job.clients, (job.test[0], y), loss, metric=metric)
    with pytest.raises(DataError, match=message if metric else "is not certain: give one"):
        securefl.run(securefl.load_config(None, PLAIN), task)


def test_accuracy_of_dense_labels_is_a_share():
    """With a label for each pixel, accuracy is the share of labels, 0..1."""
    rng = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(6, 1, 4, 4, generator=rng), torch.randint(2, (6, 4, 4), generator=rng))
        for _ in range(3)
    ]
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    task = securefl.Task(model, clients, clients[0])
    assert 0 <= securefl.run(securefl.load_config(None, PLAIN), task).accuracy <= 1


def test_statistics_are_not_said_to_be_encrypted_where_there_are_none():
    """A model without any, where they alone are to be sealed, is an error that says so."""
    model = nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.Linear(4, 2))
    settings = ["run.rounds=1", "algorithm.name=fedavg", "exchange.encrypt=statistics"]
    config = securefl.load_config(None, settings)
    with pytest.raises(ConfigError, match="nothing would be encrypted"):
        securefl.run(config, small_task(model=model))


def test_a_model_that_diverges_stops_with_its_last_good_round(tmp_path):
    """NaN never reaches the global model; the message names the value and the way out."""
    config = securefl.load_config(
        None, ["run.rounds=50", "train.lr=10", "exchange.encrypt=none", "algorithm.name=fedavg"]
    )
    torch.manual_seed(67280421310721)  # from other weights the loss is refused first
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    with pytest.raises(securefl.SecureFLError, match=r"client-1, update: .*train\.lr"):
        securefl.run(config, small_task(model=model), out=tmp_path / "run")
    state = runfolder.RunFolder(tmp_path / "run").checkpoint().state
    assert all(torch.isfinite(t).all() for named in state.tensors.values() for t in named.values())


def test_the_callers_random_numbers_stay_as_they_were():
    """A run seeds nothing global."""
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    securefl.run(securefl.load_config(None, PLAIN))
    assert torch.equal(torch.rand(3), expected)


def test_a_round_that_fails_leaves_its_evidence(tmp_path):
    """Messages and refusals of a round that stopped the run stand in the folder."""
    config = securefl.load_config(
        None, ["run.rounds=50", "train.lr=10", "exchange.encrypt=none", "algorithm.name=fedavg"]
    )
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    with pytest.raises(securefl.SecureFLError, match="can be used"):
        securefl.run(config, small_task(model=model), out=tmp_path / "run")
    failed = len(rows(tmp_path / "run/metrics.jsonl")) + 1
    incidents = rows(tmp_path / "run/incidents.jsonl")
    assert [i["client"] for i in incidents if i["round"] == failed][-3:] == [
        "client-1",
        "client-2",
        "client-3",
    ]
    assert rows(tmp_path / "run/ledger.jsonl")[-1]["round"] == failed


def test_a_full_disk_of_a_federations_server_is_told_with_what_goes_on(tmp_path, monkeypatch):
    """The same command does, at each party."""
    folder = runfolder.RunFolder.create(tmp_path / "run", securefl.Config())
    (folder.path / runfolder.SERVER).touch()
    monkeypatch.setattr(runfolder.RunFolder, "_append", full_disk)
    why = "No space left.*free some space, then the same command goes on: at authority and sites"
    with pytest.raises(RunFolderError, match=why):
        folder.note_messages((), ())
