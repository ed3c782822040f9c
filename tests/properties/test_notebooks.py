"""The notebooks run from top to bottom, show what they say, and have outputs of their code."""

from __future__ import annotations

import copy
import json
import runpy
from itertools import pairwise
from pathlib import Path

import pytest
from small_audit import TINY

from securefl.audit.inversion.gradient_matching import Search
from securefl.audit.tracing import setup

ROOT = Path(__file__).parents[2]
NOTEBOOKS = runpy.run_path(str(ROOT / "docs/notebooks.py"))
PATHS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
BY_NAME = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
FEW = setup.TracingEffort(trials=100, sizes=(16,), pool=600, public=300)
SHORT = {"ROUNDS": 2, "SEARCH": Search(20, 1), "EFFORT": TINY}
MAX_BYTES, MAX_CELLS = 300_000, 12


def test_there_are_eight():
    assert len(PATHS) == 8


@BY_NAME
def test_a_notebook_is_small_and_its_outputs_are_of_its_code(path):
    """`python docs/notebooks.py` makes them anew; a text stands before each cell with code."""
    notebook = NOTEBOOKS["read"](path)
    cells = notebook["cells"]
    assert path.stat().st_size < MAX_BYTES
    assert len(cells) <= MAX_CELLS
    assert len({cell["id"] for cell in cells}) == len(cells)  # version 4.5 of the format
    of_code = notebook["metadata"].get(NOTEBOOKS["SOURCES"]) == NOTEBOOKS["digest"](notebook)
    assert of_code, f"outputs of other code: python docs/notebooks.py {path.stem}"
    assert [cell["cell_type"] for cell in cells[:2]] == ["markdown", "code"]
    for before, cell in pairwise(cells):
        assert (before["cell_type"], cell["cell_type"]) != ("code", "code")
    shown = [out for cell in NOTEBOOKS["code_cells"](notebook) for out in cell["outputs"]]
    assert any("image/png" in out.get("data", {}) for out in shown)


BUSY = """
import os, time
if os.fork():
    os.wait()
else:
    while time.process_time() < 2:
        pass
    os._exit(0)
"""


def test_a_notebook_is_timed_with_the_processes_that_it_starts(tmp_path):
    path = tmp_path / "busy.ipynb"
    path.write_text(
        json.dumps({"cells": [{"cell_type": "code", "source": [BUSY]}], "metadata": {}})
    )
    before = path.read_text()
    wall_s, cpu_s = NOTEBOOKS["timed"](path)
    assert min(wall_s, cpu_s) >= 2
    assert path.read_text() == before


@pytest.fixture(scope="module")
def names():
    """Values of all names of a notebook, after its last cell, and the notebook."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(setup.EFFORTS, "quick", FEW)
        found = {}
        for path in PATHS:
            notebook = copy.deepcopy(NOTEBOOKS["read"](path))
            values = NOTEBOOKS["run_cells"](notebook, SHORT if path.stem == "audit" else {})
            found[path.stem] = {**values, "notebook": notebook}
        yield found


def test_they_run_from_top_to_bottom(names):
    """With as many outputs, of the same kinds, as are in the files."""
    for path in PATHS:
        kept, made = NOTEBOOKS["read"](path), names[path.stem]["notebook"]
        kinds = [
            [
                [out["output_type"] for out in cell["outputs"]]
                for cell in NOTEBOOKS["code_cells"](of)
            ]
            for of in (kept, made)
        ]
        assert kinds[0] == kinds[1], path.stem
    bn, cures = names["why_bn_breaks"], names["cures"]["results"]
    assert (bn["averaged"] / bn["pooled"]).mean() < 0.95
    assert bn["cured"].accuracy > bn["runs"]["2 classes each"].accuracy + 0.1
    assert cures["FedTAN"].accuracy > cures["FedAvg, BN"].accuracy + 0.05
    shift = names["sensor_shift"]["results"]
    assert shift["FedBN"].score > shift["FedAvg"].score + 0.03
    late = [sum(of.score for of in r.metrics[-10:]) for r in names["selection"]["results"].values()]
    assert late[1] > late[0]
    with_budget = names["privacy_budget"]["runs"]["σ = 0.8"]
    assert "above privacy.budget" in with_budget.stopped
    assert names["own_model_and_data"]["file"].name == "hospitals.pt2"


def test_the_audit_measures_all_and_refutes_too_little_noise(names):
    audit = names["audit"]
    assert all(len(found.sections) == 6 for found in audit["findings"].values())
    assert all(section.measured for of in audit["findings"].values() for section in of.sections)
    assert audit["bounds"][1.0].epsilon < audit["claimed"] < audit["bounds"][0.2].epsilon
