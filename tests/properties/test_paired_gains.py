"""Gains of one row of a reproduced table on another, seed by seed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import paired_gains


def cell(row, values, column="Dir (%)", quantity="accuracy"):
    runs = [f"runs/{row}.{seed}" for seed in range(len(values))]
    measure = {"quantity": quantity}
    return {"row": row, "column": column, "measure": measure, "values": values, "runs": runs}


def reproduced(folder, *cells):
    """What `securefl reproduce` leaves, of these cells."""
    (folder / "results.json").write_text(json.dumps({"cells": cells}))
    return folder


def selected(folder, run, *clients_of_rounds):
    """A run's folder, of as many rounds."""
    lines = [
        json.dumps({"round": number, "selected": dict.fromkeys(clients, 1), "present": []})
        for number, clients in enumerate(clients_of_rounds, start=1)
    ]
    (folder / "runs" / run).mkdir(parents=True)
    (folder / "runs" / run / "selections.jsonl").write_text("".join(f"{x}\n" for x in lines))


def test_gains_are_of_the_same_seed(tmp_path):
    """+1, +2 and +3 are 2 ± 1, however far the seeds are apart; other quantities are left out."""
    folder = reproduced(
        tmp_path,
        cell("FedAvg", [50.0, 70.0, 90.0]),
        cell("FedAvg", [3, 4, 5], "rounds", "rounds-to-target"),
        cell("FedTAN", [51.0, 72.0, 93.0]),
        cell("FedTAN", [10.0], "IID (%)", "mean-accuracy"),
        cell("FedBN", [49.0, "diverged", 92.0]),
    )
    assert paired_gains.page(folder).splitlines() == [
        "| gain on FedAvg | Dir (%) | IID (%) |",
        "| --- | --: | --: |",
        "| FedTAN | +2.00 ± 1.00 |  |",
        "| FedBN | +0.50 ± 2.12 (2 of 3 seeds) |  |",
    ]


def test_any_row_can_be_the_base(tmp_path):
    """A row of that name; with one seed there is no deviation, and without a value no gain."""
    cells = cell("A", [50.0]), cell("B", [51.5]), cell("C", ["diverged"])
    folder = reproduced(tmp_path, *cells)
    lines = paired_gains.page(folder, "B").splitlines()
    assert lines[2:] == ["| A | -1.50 |", "| C | - (0 of 1 seeds) |"]
    with pytest.raises(SystemExit, match="--base 'D': no row of this table"):
        paired_gains.page(folder, "D")


def test_rounds_with_the_same_clients_are_counted_seed_by_seed(tmp_path):
    """Those that both runs have: one that was lost after a round is compared in that round."""
    folder = reproduced(tmp_path, cell("A", [50.0, 60.0]), cell("B", [50.0, 60.0]))
    selected(folder, "A.0", ["client-1", "client-2"])
    selected(folder, "B.0", ["client-2", "client-1"], ["client-3"])
    selected(folder, "A.1", ["client-1"], ["client-2"], ["client-3"])
    selected(folder, "B.1", ["client-1"], ["client-3"], ["client-3"])
    (line,) = paired_gains.page(folder).splitlines()[2:]
    assert line == "| B | +0.00 ± 0.00; same clients in 3 of 4 rounds |"
