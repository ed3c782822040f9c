"""A new choice or data set is one file and one line, and no line at all where it is installed.

Inside the library the line is a name in settings/axes.py, or a line of data/catalogue.py. From
outside, a package registers it. Each is then by itself in the help, on the page of what goes with
what, and in the grid tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    "SOLVERS": """
from typing import ClassVar, Literal
from securefl.algorithms.solvers.fedprox import FedProx
from securefl.algorithms.solvers.solver import Solver

class Nearer(Solver):
    name: Literal["nearer"] = "nearer"
    closeness: float = 0.1
    elementwise: ClassVar[bool] = True

    def begin(self, start):
        return FedProx(mu=self.closeness).begin(start)
""",
    "NORMALISATIONS": """
from typing import Literal
from securefl.algorithms.normalisation.averaged_bn import aggregated
from securefl.settings.axes import Normalisation

class Plain(Normalisation):
    name: Literal["plain-bn"] = "plain-bn"

    def build(self, rounds):
        return aggregated
""",
    "SERVERS": """
from typing import Literal
from securefl.algorithms.servers.server_optimiser import ServerOptimiser

class Halfway(ServerOptimiser):
    name: Literal["halfway"] = "halfway"

    def step(self, averaged, kept):
        moved = averaged.moves().items()
        return {name: averaged.last[name] + move / 2 for name, move in moved}, kept
""",
    "SELECTORS": """
from typing import Literal
from securefl.selection.selector import Selector
from securefl.settings.axes import DrawnSelector

class First(DrawnSelector, Selector):
    name: Literal["first"] = "first"

    def select(self, standing, n, rng):
        return standing.clients[:n]
""",
}
NEW = {
    "SOLVERS": ("nearer", "proximal"),
    "NORMALISATIONS": ("plain-bn", "last-layer-local"),
    "SERVERS": ("halfway",),
    "SELECTORS": ("first",),
}
"""The one of the file, and the one that a package registers: those of the tutorial."""
PAGE = (ROOT / "docs/tutorials/own-choices.md").read_text()
DATA = """
import torch
from securefl.data.split import Split

def read(data, seed):
    x, y = torch.rand(40, 1, 8, 8), torch.arange(40) % 2
    return Split(x[:30], y[:30], x[30:], y[30:])
"""
LOOK = """
import json, sys
from dataclasses import replace

from securefl.settings import axes

for name in json.loads(sys.argv[1]):  # the one line
    axis = getattr(axes, name)
    setattr(axes, name, replace(axis, homes=(*axis.homes, f"new_choices.{name.lower()}")))

from securefl.data.catalogue import DATA_SETS, DataSet

DATA_SETS["shades"] = DataSet(reader="new_choices.shades:read")  # the one line

from click.testing import CliRunner
from securefl_cli.main import main

help = CliRunner().invoke(main, ["run", "--help"], terminal_width=400).output
torch = "torch" in sys.modules
import combinations, pairs, process_axes
from properties import test_grid_of_data_sets
from securefl.settings.load import load_config

few = {"fedavg": combinations.POLICIES["fedavg"]}
names = "POLICIES", "SOLVERS", "SERVERS", "SELECTIONS"
axes = {name: getattr(combinations, name) for name in names}


(mark,) = [
    mark
    for mark in test_grid_of_data_sets.test_every_data_set_goes_with_what_the_page_says.pytestmark
    if mark.name == "parametrize"
]
print(json.dumps({
    "help": help,
    "torch": torch,
    "grid": [p.id for axis in axes.values() for p in pairs.grid(few, axis)],
    "data": [p.id for p in mark.args[1]],
    "table": {name: combinations.table(few, axis, []) for name, axis in axes.items()},
    "sets": combinations.table({"shades": combinations.DATA["shades"]}, combinations.WITH_DATA, []),
    "processes": [*process_axes.NORMALISATIONS, *process_axes.LOCAL, *process_axes.CENTRAL],
    "settings": load_config(None, ["solver.name=nearer", "solver.closeness=0.5"]).solver.closeness,
    "own": load_config(None, ["solver.name=proximal", "solver.mu=0.5"]).solver.mu,
}))
"""
PLACES = {
    name: {"SOLVERS": "SOLVERS", "SERVERS": "SERVERS", "SELECTORS": "SELECTIONS"}.get(
        axis, "POLICIES"
    )
    for axis, names in NEW.items()
    for name in names
}
"""Axis of the page by the name of the choice."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Look from a process in which the files are new."""
    folder = tmp_path_factory.mktemp("new")
    (folder / "new_choices").mkdir()
    for axis, text in FILES.items():
        (folder / f"new_choices/{axis.lower()}.py").write_text(text)
    (folder / "new_choices/shades.py").write_text(DATA)
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (folder / "mine.py").write_text(next(text for kind, text in blocks if kind == "python"))
    package = tomllib.loads(next(text for _, text in blocks if "/pyproject.toml\n" in text))
    installed = folder / "mine-1.0.dist-info"  # as pip writes it
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    points = package["project"]["entry-points"]
    with (installed / "entry_points.txt").open("w") as file:
        for group, of in points.items():
            file.writelines([f"[{group}]\n", *(f"{name} = {code}\n" for name, code in of.items())])
    path = os.pathsep.join([*sys.path, str(folder), str(ROOT / "docs"), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", LOOK, json.dumps(list(FILES))],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", PLACES)
def test_it_is_in_the_help(seen, name):
    """Which still loads no torch, and no code of the package."""
    shown = " ".join(seen["help"].split())
    assert re.search(rf", {name}(, [\w-]+)*, or MODULE:CLASS of your own", shown)
    assert not seen["torch"]


def test_a_data_set_is_in_the_help(seen):
    assert ", shades; a client per domain: " in " ".join(seen["help"].split())


@pytest.mark.parametrize("name", PLACES)
def test_it_is_on_the_page_of_combinations(seen, name):
    """Whose test says that the page is out of date."""
    head, _, row = seen["table"][PLACES[name]].splitlines()
    cells = dict(zip(head.strip("| ").split(" | "), row.strip("| ").split(" | ")[1:], strict=True))
    assert cells[name] == "✓"


@pytest.mark.parametrize("name", PLACES)
def test_it_is_in_the_grid(seen, name):
    """Whose products run it."""
    assert f"fedavg-{name}" in seen["grid"]


def test_a_data_set_is_on_the_page_and_in_the_grid(seen):
    assert seen["sets"].splitlines()[2].startswith("| shades | ✓ | ✓ | ✓ | ✓ | (1) | ✓ |")
    assert {"shades-mlp", "shades-unet", "shades-records"} <= {*seen["data"]}


def test_separate_processes_are_held_against_it(seen):
    assert {name for name in PLACES if name != "first"} <= {*seen["processes"]}


def test_its_keys_are_read(seen):
    assert (seen["settings"], seen["own"]) == (0.5, 0.5)
