"""A run of some of the clients that stops goes on with the same ones."""

from __future__ import annotations

import json

import pytest
import torch
from test_resume import StopError, lines, stop_after, without_time

import securefl
from securefl.errors import RunFolderError
from securefl.runs.checkpoint import Checkpoint

BASE = (
    "run.rounds=9",
    "algorithm.name=fedavg",
    "algorithm.local_steps=2",
    "train.batch_size=4",
    "train.lr=0.05",
    "train.momentum=0.9",
    "train.momentum_across_rounds=local",
    "exchange.encrypt=none",
    "devices.preset=gasturbine",
    "selection.fraction=0.4",
)
FEDPROF = ("selection.name=fedprof", "selection.alpha=2.0", "devices.dropout=0.3")


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch):
    """They take longer than all else here, and others test them."""
    monkeypatch.setattr("securefl.report.finish.pictures", lambda run: {})


def task(n_clients=8):
    rng = torch.Generator().manual_seed(0)

    def data(i, n):
        x = torch.randn(n, 4, generator=rng) * (1 + i / 4)
        return x, (x[:, 0] > 0).long()

    clients = [data(i, 6 + i) for i in range(n_clients)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers, torch.nn.Linear(5, 2))
    return securefl.Task(model, clients, data(0, 50), public=data(0, 30))


def stopped(folder, config, after, job=None):
    with pytest.raises(StopError):
        securefl.run(config, job or task(), out=folder, on_round=stop_after(after))


@pytest.mark.parametrize(
    "settings",
    [
        FEDPROF,
        (*FEDPROF, "selection.fairness=2", "selection.aggregation=full"),
        (*FEDPROF, "train.momentum_across_rounds=global", "solver.name=scaffold"),
        ("selection.name=afl", "devices.deadline_s=0.02"),
        ("selection.name=cfcfm", "algorithm.name=fixbn", "algorithm.switch=4"),
        ("selection.name=data-share", "selection.replacement=with", "devices.dropout=0.6"),
    ],
    ids=["fedprof", "fair", "scaffold", "afl", "cfcfm", "with replacement"],
)
@pytest.mark.parametrize("after", [1, 5])
def test_a_resumed_run_selects_as_an_uninterrupted_one(tmp_path, settings, after):
    """Model, selections, metrics and messages do not show that the run was interrupted."""
    config = securefl.load_config(None, [*BASE, *settings])
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    securefl.run(config, task(), out=whole)
    stopped(halves, config, after)
    securefl.resume(halves, task())
    model = "model.safetensors"
    assert (whole / model).read_bytes() == (halves / model).read_bytes()
    for name in ("selections.jsonl", "metrics.jsonl", "ledger.jsonl"):
        one, other = (without_time(lines(folder / name)) for folder in (whole, halves))
        assert one == other
    assert len({json.dumps(row["selected"]) for row in lines(whole / "selections.jsonl")}) > 1


def test_selections_of_an_unfinished_round_are_dropped(tmp_path):
    """A line behind the last checkpoint is not counted twice."""
    config = securefl.load_config(None, [*BASE, *FEDPROF])
    stopped(tmp_path / "run", config, 3)
    selections = tmp_path / "run" / "selections.jsonl"
    last = selections.read_text().splitlines()[-1]
    with selections.open("a") as file:
        file.write(last.replace('"round": 3', '"round": 4') + "\n")
    securefl.resume(tmp_path / "run", task())
    assert [row["round"] for row in lines(selections)] == list(range(1, 10))


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("divergence", {"client-9": 0.5}, "divergence is of other clients"),
        ("selected_in", {"client-9": 2.0}, "selected_in is of other clients"),
        ("broadcast_has", {"client-9": 2.0}, "broadcast_has is of other clients"),
        ("broadcast_news", {"weather": 3.0}, "broadcast_news names"),
        ("divergence", {"client-1": float("nan")}, "damaged checkpoint"),
        ("selected_in", {"client-1": float("inf")}, "damaged checkpoint"),
        ("broadcast_has", {"client-1": float("-inf")}, "damaged checkpoint"),
    ],
)
def test_a_checkpoint_with_another_standing_is_refused(tmp_path, name, numbers, message):
    """Numbers of clients that there are none of, or that are none, though its digest is right."""
    config = securefl.load_config(None, [*BASE, *FEDPROF])
    stopped(tmp_path / "run", config, 3)
    path = tmp_path / "run" / "checkpoint.safetensors"
    found = Checkpoint.read(path)
    merged = {**found.numbers, name: {**found.numbers[name], **numbers}}
    path.write_bytes(Checkpoint(found.state, found.client_states, merged).to_bytes())
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(RunFolderError, match=message):
        securefl.resume(tmp_path / "run", task())
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_checkpoint_holds_numbers_to_the_last_bit(tmp_path):
    """What the server knows of the clients comes back as it was."""
    config = securefl.load_config(None, [*BASE, *FEDPROF])
    stopped(tmp_path / "run", config, 4)
    found = Checkpoint.read(tmp_path / "run" / "checkpoint.safetensors")
    known = {}
    for row in lines(tmp_path / "run" / "selections.jsonl"):
        known |= row["measured"]
    assert dict(found.numbers["divergence"]) == known
    rows = lines(tmp_path / "run" / "selections.jsonl")
    assert found.numbers["selected_in"] == {c: r["round"] for r in rows for c in r["selected"]}
