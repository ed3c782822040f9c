"""Accuracy against ε, of a reproduced table."""

from __future__ import annotations

import json
import sys
from math import inf
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import private_accuracy
from private_accuracy import Point


def reproduced(folder, *rows):
    """What `securefl reproduce` leaves, of rows with a mean and a deviation."""
    cells = [
        {"row": row, "column": "accuracy (%)", "mean": mean, "std": std, "values": values}
        for row, mean, std, *values in rows
    ]
    (folder / "results.json").write_text(json.dumps({"cells": cells}))
    return folder


def test_a_row_says_its_curve_and_its_epsilon(tmp_path):
    """The others are left out, and so are rows of which a run diverged; ε stands in order."""
    folder = reproduced(
        tmp_path,
        ("GN, ε = ∞", 97.0, 0.5, 96.5, 97.5),
        ("GN, ε = 0.5", 60.0, None, 60.0),
        ("FixBN, encrypted, ε = 8", 90.0, 1.0, 89.0, 91.0),
        ("FixBN, encrypted, ε = 3", 80.0, 1.0, 80.0, "diverged"),
        ("GN, no DP", 98.0, 0.5, 97.5, 98.5),
    )
    found = private_accuracy.curves(folder)
    assert found == {
        "GN": {inf: Point(97.0, 0.5), 0.5: Point(60.0, 0.0)},
        "FixBN, encrypted": {8.0: Point(90.0, 1.0)},
    }
    assert private_accuracy.page(found).splitlines() == [
        "| accuracy (%) | ε = 0.5 | ε = 8 | ε = ∞ |",
        "| --- | --: | --: | --: |",
        "| GN | 60.00 ± 0.00 |  | 97.00 ± 0.50 |",
        "| FixBN, encrypted |  | 90.00 ± 1.00 |  |",
    ]


def test_infinity_has_a_place_of_its_own_at_the_right(tmp_path):
    """On a logarithmic axis, beyond the largest ε."""
    rows = (("GN, ε = 1", 70.0, 2.0, 70.0), ("GN, ε = ∞", 97.0, 0.5, 97.0))
    found = private_accuracy.curves(reproduced(tmp_path, *rows))
    (axes,) = private_accuracy.figure(found).axes
    assert axes.get_xscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "∞"]
    assert axes.get_xticks().tolist() == [1.0, 2.5]


def test_a_table_without_epsilon_has_no_plot(tmp_path):
    """It says which folder, and what a row's name should end in."""
    with pytest.raises(SystemExit, match="ends in"):
        private_accuracy.curves(reproduced(tmp_path, ("FedTAN", 96.0, 0.7, 96.0)))
