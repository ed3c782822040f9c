"""`run.device`: where a simulation trains, and what is left of it where that device is not."""

from __future__ import annotations

import json

import pytest
import torch
from by_hand import task
from torch import nn

import securefl
from securefl.audit import audits
from securefl.errors import ConfigError
from securefl.task import placed

SETTINGS = (
    "run.rounds=2",
    "run.engine=sequential",
    "algorithm.name=fedavg",
    "train.batch_size=5",
    "exchange.encrypt=none",
)
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")


@NO_GPU
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_device_that_is_not_here_is_a_config_error_with_the_way_out(device):
    """Not torch's own error, and before anything is trained."""
    config = securefl.load_config(None, [*SETTINGS, f"run.device={device}"])
    with pytest.raises(ConfigError, match='take "cpu", or leave it out'):
        securefl.run(config, task())


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "meta", ""])
def test_a_device_has_a_name_that_is_known(device):
    """Others are refused with the settings."""
    with pytest.raises(ConfigError, match="device"):
        securefl.load_config(None, [f"run.device={device}"])


def test_a_task_is_placed_whole_and_stays_what_it_was():
    """The model, and a loss that has weights of classes."""
    job = task(loss=nn.CrossEntropyLoss(weight=torch.ones(4)))
    moved = placed(job, "meta")
    assert {p.device.type for p in moved.model.parameters()} == {"meta"}
    assert moved.loss.weight.device.type == "meta"
    assert {p.device.type for p in job.model.parameters()} == {"cpu"}
    assert job.loss.weight.device.type == "cpu"
    assert placed(job, None) is job


@NO_GPU
def test_a_run_of_a_gpu_is_audited_where_there_is_none(tmp_path, monkeypatch):
    """It is played again on the CPU."""
    folder, job = tmp_path / "run", task()
    securefl.run(securefl.load_config(None, SETTINGS), job, out=folder)
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    settings["run"]["device"] = "cuda"
    path.write_text(json.dumps(settings))
    monkeypatch.setattr(audits._Audits, "sections", lambda self: ())
    facts = audits.audit_run(folder, task=job).facts
    assert facts["Played again"] == "the final model is within 0.0e+00 of the recorded one"
