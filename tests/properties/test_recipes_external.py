"""Recipes that score clients who never trained."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import pytest

import securefl
from securefl.errors import ConfigError
from securefl.evaluation.evaluate import load_trained
from securefl.recipes.recipe import load_recipe
from securefl.recipes.reproduce import reproduce

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import external_gains

UNSEEN = """
title = "Tiny"
paper = "Nobody. Table 0"
seeds = 1
measure.quantity = "external-accuracy"
[run]
rounds = 2
[data]
partition = "iid"
clients = 4
corruptions = ["gaussian_noise", "shot_noise", "fog", "contrast"]
leave_out = "noise"
[algorithm]
name = "fedavg"
local_steps = 1
[exchange]
encrypt = "none"
[[columns]]
name = "noise (%)"
[[rows]]
name = "global"
[[rows]]
name = "adapted"
measure = { adapt_bn = 0.9, batch_size = 16 }
"""


def test_external_clients_score_with_global_and_with_adapted_statistics(tmp_path):
    """One run serves both rows: the mean over its left-out clients, each evaluated by hand."""
    path = tmp_path / "tiny.toml"
    path.write_text(UNSEEN)
    table = reproduce(load_recipe(path), tmp_path / "out", seeds=1)
    (folder,) = (tmp_path / "out/runs").iterdir()
    trained = load_trained(folder)
    assert len(trained.task.external) == 2
    for cell, options in zip(table.cells, ({}, {"adapt_bn": 0.9, "batch_size": 16}), strict=True):
        scores = [
            securefl.evaluate(trained.model, data, **options).accuracy
            for data in trained.task.external.values()
        ]
        assert cell.values == (pytest.approx(100 * statistics.mean(scores)),)
    assert table.cells[0].values != table.cells[1].values


def test_gains_are_means_over_all_external_clients(tmp_path):
    """A column of two clients left out weighs twice as much as one of a single client."""
    tables = """
[[columns]]
name = "noise (%)"
settings.data.leave_out = "noise"
[[columns]]
name = "fog (%)"
settings.data.leave_out = "fog"
[[rows]]
name = "FedAvg"
[[rows]]
name = "FedAvg + UniFed"
measure = { adapt_bn = 0.9, batch_size = 16 }
"""
    path, out = tmp_path / "tiny.toml", tmp_path / "out"
    path.write_text(UNSEEN.partition("[[columns]]")[0] + tables)
    table = reproduce(load_recipe(path), out, seeds=1)
    table.write(out, "a command")
    before, fog, after, fog_after = (cell.values[0] for cell in table.cells)
    means = (2 * before + fog) / 3, (2 * after + fog_after) / 3
    row = f"| FedAvg | {means[0]:.2f} | {means[1]:.2f} | {means[1] - means[0]:+.2f} |"
    assert row in external_gains.page(out)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('leave_out = "noise"', "", "every client trains; name those who do not"),
        ('quantity = "external-accuracy"', 'quantity = "accuracy"', "measure.adapt_bn = 0.9 with"),
        ("adapt_bn = 0.9", "adapt_bn = 1.0", "adapt_bn = 1.0: .* less than 1"),
        ("batch_size = 16", "batch_size = 0", "batch_size = 0: .* greater than or equal to 1"),
    ],
)
def test_settings_of_external_clients_that_mean_nothing_are_refused(tmp_path, old, new, message):
    """Before anything is trained."""
    assert old in UNSEEN
    path = tmp_path / "tiny.toml"
    path.write_text(UNSEEN.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_recipe(path)
