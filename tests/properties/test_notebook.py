"""The notebook runs from top to bottom, and shows what its text says."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from securefl.audit import audits
from securefl.audit.inversion import report_section as inversion
from securefl.audit.inversion.gradient_matching import Search
from securefl.audit.tracing import setup

NOTEBOOK = Path(__file__).parents[2] / "examples" / "audit.ipynb"
SMALL = audits.AuditEffort(
    "quick", 1, 2, 20, inversion.InversionEffort(8, 2, Search(steps=30, restarts=1))
)
FEW = setup.TracingEffort(trials=100, sizes=(16,), pool=600, public=300)


@pytest.fixture
def cells():
    return json.loads(NOTEBOOK.read_text())["cells"]


@pytest.fixture
def no_window(monkeypatch):
    """Figures are drawn, and nobody waits for them to be closed."""
    mpl.use("agg")
    yield
    plt.close("all")


def code_of(cells):
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_no_outputs_are_kept(cells):
    """What a reader sees there was made on the reader's own machine."""
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in codes)


def test_a_cell_has_a_name_of_its_own(cells):
    """As version 4.5 of the format wants it."""
    assert len({cell["id"] for cell in cells}) == len(cells)


def test_its_first_code_has_the_parameters(cells):
    """So that papermill and the test below find them."""
    first = next(cell for cell in cells if cell["cell_type"] == "code")
    assert first["metadata"]["tags"] == ["parameters"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_window")
def test_the_notebook_runs_from_top_to_bottom(cells, tmp_path, monkeypatch, capsys):
    """With small efforts: it compares both runs, refutes too little noise, and rebuilds images."""
    monkeypatch.setattr(audits, "WORKERS", 1)
    monkeypatch.setitem(setup.EFFORTS, "quick", FEW)
    parameters, *rest = code_of(cells)
    namespace = {}
    exec(compile(parameters, "parameters", "exec"), namespace)
    namespace |= {"ROUNDS": 2, "EFFORT": SMALL, "FOLDER": tmp_path}
    for number, code in enumerate(rest):
        exec(compile(code, f"cell {number}", "exec"), namespace)

    assert all(len(found.sections) == 6 for found in namespace["findings"].values())
    assert "Not measured" not in capsys.readouterr().out
    assert (tmp_path / "none.html").exists()
    bounds, claimed = namespace["bounds"], namespace["claimed"]
    assert bounds[1.0].epsilon < claimed < bounds[0.2].epsilon
    assert len(plt.get_fignums()) == 2
