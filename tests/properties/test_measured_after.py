"""The script that scores runs with BN statistics measured after the last round."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import securefl
from securefl.data.samples import whole
from securefl.evaluation.evaluate import load_trained
from securefl.settings.load import load_config

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import measured_after


def test_the_statistics_are_those_of_all_training_samples(tmp_path, monkeypatch, capsys):
    """Of the first layer's outputs, under the last model; no weight of it changes."""
    fast = ("algorithm.name=hbn", "run.rounds=1", "exchange.encrypt=none")
    securefl.run(load_config(settings=fast), out=tmp_path / "run")
    of = load_trained(tmp_path / "run")
    anew = measured_after.measured_anew(of.model, of.task)
    old, new = (dict(model.named_parameters()) for model in (of.model, anew))
    assert all(torch.equal(old[name], new[name]) for name in old)
    linear = next(m for m in anew.modules() if isinstance(m, torch.nn.Linear))
    norm = next(m for m in anew.modules() if hasattr(m, "running_var"))
    x = torch.cat([whole(client, "a client")[0] for client in of.task.clients])
    y = linear(x.flatten(1)).detach()
    torch.testing.assert_close(norm.running_mean, y.mean(0), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(norm.running_var, y.var(0, correction=0), atol=1e-4, rtol=1e-4)
    monkeypatch.setattr(sys, "argv", ["measured_after.py", str(tmp_path / "run")])
    measured_after.main()
    assert "%, measured after " in capsys.readouterr().out
