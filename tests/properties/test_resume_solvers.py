"""What solvers and server optimisers keep between rounds survives an interruption."""

from __future__ import annotations

import pytest
import torch
from test_resume import lines, without_time

import securefl

pytestmark = pytest.mark.usefixtures("quick")

SETTINGS = (
    "run.rounds=4",
    "algorithm.name=fedavg",
    "algorithm.local_steps=2",
    "train.batch_size=8",
    "train.lr=0.05",
    "train.momentum=0.9",
    "train.momentum_across_rounds=local",
    "exchange.encrypt=none",
)
SOLVERS = ["sgd", "fedprox", "scaffold", "moon", "feddyn", "feddc", "per-fedavg", "agc", "ditto"]
SERVERS = ["momentum", "fedadam", "fedadagrad", "fedyogi", "fednova"]


class StopError(Exception):
    """Stands for a crash."""


def stop_after_two(metrics):
    if metrics.round == 2:
        raise StopError


RESET = "train.momentum_across_rounds=reset"


@pytest.mark.parametrize(
    "settings",
    [
        *([f"solver.name={name}"] for name in SOLVERS),
        *([f"server.name={name}"] for name in SERVERS if name != "fednova"),
        ["server.name=fednova", RESET],
        ["solver.name=scaffold", "server.name=fednova", RESET],
        *([f"solver.name={name}", "algorithm.name=fedtan"] for name in ("moon", "feddc")),
        *([f"solver.name={name}", "algorithm.name=fedbn"] for name in ("moon", "feddyn", "ditto")),
        *(
            [f"solver.name={name}", "algorithm.name=fixbn", "algorithm.freeze=both"]
            for name in ("moon", "feddyn", "feddc", "scaffold")
        ),
        *([f"fnr.name={name}", "solver.name=feddyn"] for name in ("matched", "server")),
    ],
    ids=lambda settings: "-".join(s.partition("=")[2] for s in settings),
)
def test_a_resumed_run_ends_bit_for_bit_as_an_uninterrupted_one(tmp_path, tiny_task, settings):
    """Control variates, drifts, last models and moments are in the checkpoint, all of them."""
    config = securefl.load_config(None, [*SETTINGS, *settings])
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    public = torch.randn(9, 4, generator=torch.Generator().manual_seed(2)), torch.arange(9) % 3
    task = tiny_task(public=public)
    securefl.run(config, task, out=whole)
    with pytest.raises(StopError):
        securefl.run(config, task, out=halves, on_round=stop_after_two)
    securefl.resume(halves, task)
    for name in ("model.safetensors", "checkpoint.safetensors"):
        assert (whole / name).read_bytes() == (halves / name).read_bytes()
    uploads = [
        [row for row in without_time(lines(folder / "ledger.jsonl")) if row["receiver"] == "server"]
        for folder in (whole, halves)
    ]
    assert uploads[0] == uploads[1] != []
