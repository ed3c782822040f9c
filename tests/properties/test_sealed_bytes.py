"""Sealed bytes of a run, and accuracy against them, on ledgers written by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hand_made import message, metrics, write_run

from securefl.federation.ledger import AUTHORITY, MEBIBYTE, SERVER
from securefl.recipes.quantities import Measure
from securefl.recipes.reproduce import measured
from securefl.types import Kind

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import sealed_bytes
from sealed_bytes import Curve

MIB = MEBIBYTE // 8
"""Values of 8 bytes in a mebibyte."""


def sealed_round(number, *n_mib):
    """A round in which each client seals so many MiB, beside all that is no client's ciphertext."""
    told = {"kind": Kind.PARAMETERS, "round_number": number}
    return [
        message("model/parameters", SERVER, "client-1", "plaintext", 7 * MIB, **told),
        *(
            message("update/parameters", f"client-{i}", SERVER, "ciphertext", n * MIB, **told)
            for i, n in enumerate(n_mib, 1)
        ),
        message("update/parameters", "client-1", SERVER, "plaintext", 11 * MIB, **told),
        message("update/parameters", SERVER, AUTHORITY, "ciphertext", 13 * MIB, **told),
        message("update/parameters", AUTHORITY, SERVER, "ciphertext", 17 * MIB, **told),
        message("1/mean", SERVER, "client-1", "ciphertext", 19 * MIB, **told),
    ]


def sealed_run(path, *by_round, accuracies):
    """Write a run whose clients seal so many MiB in each round."""
    entries = [e for i, n_mib in enumerate(by_round, 1) for e in sealed_round(i, *n_mib)]
    write_run(path, rows=metrics(accuracies), ledger=entries)


@pytest.mark.parametrize(
    ("measure", "mebibytes"),
    [
        ({"quantity": "sealed-megabytes"}, 1 + 2 + 4 + 8 + 16),
        ({"quantity": "sealed-megabytes-to-target", "target": 50.0}, 1 + 2),
        ({"quantity": "sealed-megabytes-to-target", "target": 80.0}, 1 + 2 + 4),
        ({"quantity": "sealed-megabytes-to-target", "target": 95.0}, None),
    ],
)
def test_what_clients_sealed_up_to_a_round_is_counted(tmp_path, measure, mebibytes):
    """Clients' ciphertext alone, of all rounds or up to the first one that is good enough."""
    sealed_run(tmp_path, (1, 2), (4,), (8, 16), accuracies=[0.5, 0.8, 0.7])
    found = measured(tmp_path, Measure.model_validate(measure))
    assert found == mebibytes


@pytest.fixture
def table(tmp_path):
    """A table of two rows: FedTAN with two seeds, GN with one run that diverged."""
    sealed_run(tmp_path / "runs/a.0", (1,), (2,), (1,), accuracies=[0.5, 0.9, 0.8])
    sealed_run(tmp_path / "runs/a.1", (3,), (2,), (1,), accuracies=[0.6, 0.8, 0.84])
    asked = {"quantity": "sealed-megabytes-to-target", "target": 85.0}
    cells = [
        {"row": "FedTAN, encrypted", "measure": {"quantity": "accuracy"}, "values": [90, 80]},
        {"row": "FedTAN, encrypted", "measure": asked, "values": [3, "never"]},
        {"row": "GN, encrypted", "measure": asked, "values": [3, "diverged"]},
    ]
    cells = [{**cell, "runs": ["runs/a.0", "runs/a.1"]} for cell in cells]
    (tmp_path / "results.json").write_text(json.dumps({"cells": cells}))
    return tmp_path


def test_a_curve_is_the_mean_of_its_seeds_by_round(table):
    """A seed's best so far, whether or not it reaches the target; none where a run diverged."""
    found = sealed_bytes.curves(table)
    assert found.target == 85.0
    (curve,) = found.by_row.items()
    accuracies = [pytest.approx(value) for value in (55, 85, 87)]
    assert curve == ("FedTAN, encrypted", Curve([2, 4, 5], accuracies))


def test_curves_are_drawn_beside_the_target(table):
    """Ciphertext is on a logarithmic axis, from where a curve is within 20 points of the target.

    The names leave out that all is encrypted.
    """
    (axes,) = sealed_bytes.figure(sealed_bytes.curves(table)).axes
    curve, target = axes.get_lines()
    assert (axes.get_xscale(), curve.get_label()) == ("log", "FedTAN")
    assert curve.get_xdata().tolist() == [2, 4, 5]
    assert axes.get_xlim()[0] == 4
    assert set(target.get_ydata()) == {85.0}


def test_a_table_without_the_quantity_has_no_plot(tmp_path):
    """It says which folder, and what is missing."""
    (tmp_path / "results.json").write_text('{"cells": []}')
    with pytest.raises(SystemExit, match="no cell of this table is of the quantity"):
        sealed_bytes.curves(tmp_path)
