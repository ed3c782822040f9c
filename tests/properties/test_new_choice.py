"""A new choice inside the library is one file, and its name in a line of settings/axes.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
from securefl.algorithms.normalisation.normalisation import Normalisation

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
    "SOLVERS": "nearer",
    "NORMALISATIONS": "plain-bn",
    "SERVERS": "halfway",
    "SELECTORS": "first",
}
LOOK = """
import json, sys
from dataclasses import replace

from securefl.settings import axes

for name in json.loads(sys.argv[1]):  # the one line
    axis = getattr(axes, name)
    setattr(axes, name, replace(axis, homes=(*axis.homes, f"new_choices.{name.lower()}")))

from click.testing import CliRunner
from securefl_cli.main import main

help = CliRunner().invoke(main, ["run", "--help"], terminal_width=400).output
torch = "torch" in sys.modules
import combinations, pairs, process_axes
from securefl.settings.load import load_config

few = {"fedavg": combinations.POLICIES["fedavg"]}
names = "POLICIES", "SOLVERS", "SERVERS", "SELECTIONS"
print(json.dumps({
    "help": help,
    "torch": torch,
    "axes": {name: list(getattr(combinations, name)) for name in names},
    "grid": {name: [p.id for p in pairs.grid(few, getattr(combinations, name))] for name in names},
    "table": combinations.table(few, combinations.SOLVERS, []),
    "processes": [*process_axes.NORMALISATIONS, *process_axes.LOCAL, *process_axes.CENTRAL],
    "settings": load_config(None, ["solver.name=nearer", "solver.closeness=0.5"]).solver.closeness,
}))
"""
AXES = {"POLICIES": "plain-bn", "SOLVERS": "nearer", "SERVERS": "halfway", "SELECTIONS": "first"}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Look from a process in which the files are new."""
    folder = tmp_path_factory.mktemp("new")
    (folder / "new_choices").mkdir()
    for axis, text in FILES.items():
        (folder / f"new_choices/{axis.lower()}.py").write_text(text)
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


@pytest.mark.parametrize("axis", NEW)
def test_it_is_in_the_help(seen, axis):
    """Which still loads no torch."""
    assert f", {NEW[axis]}, or MODULE:CLASS of your own" in " ".join(seen["help"].split())
    assert not seen["torch"]


@pytest.mark.parametrize("axis", AXES)
def test_it_is_on_the_page_of_combinations_and_in_the_grid(seen, axis):
    """Whose test says that the page is out of date, and whose products run it."""
    assert AXES[axis] in seen["axes"][axis]
    assert f"fedavg-{AXES[axis]}" in seen["grid"][axis]


def test_it_is_a_column_of_the_pages_table(seen):
    head, _, row = seen["table"].splitlines()
    assert dict(zip(head.split(" | "), row.split(" | "), strict=True))["nearer |"] == "✓ |"


def test_separate_processes_are_held_against_it(seen):
    assert {NEW[axis] for axis in NEW if axis != "SELECTORS"} <= {*seen["processes"]}


def test_its_keys_are_read(seen):
    assert seen["settings"] == 0.5
