"""The page on choices of one's own: its code is imported, and its commands are typed."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import securefl
from securefl.algorithms.solvers.solver import Start
from securefl.errors import ConfigError
from securefl.io import allowed_code
from securefl.runs.folder_reader import read_config
from securefl.settings.clashes import ANSWERS
from securefl_cli.main import main

pytestmark = pytest.mark.usefixtures("quick")

PAGE = Path(__file__).parents[2] / "docs/tutorials/own-choices.md"
SHORT = ["--set", "algorithm.local_steps=1", "--encrypt", "none"]


def blocks(kind):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [block for of, block in found if of == kind]


COMMANDS = [shlex.split(line)[1:] for line in blocks("")[0].splitlines() if "run" in line]
RESUME = shlex.split(re.search(r"`(securefl .* --resume \S+)`", PAGE.read_text())[1])[1:]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with the page's files, where nothing is allowed or imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(allowed_code, "_ALLOWED", set())
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    Path("mine.py").write_text(blocks("python")[0])
    Path("package").mkdir()
    for text in blocks("toml"):
        Path(re.match("# (.*)", text)[1]).write_text(text)
    yield
    sys.modules.pop("mine", None)


def typed(command):
    """Type a line of the page as a new process would see it."""
    sys.modules.pop("mine", None)
    allowed_code._ALLOWED.clear()
    return CliRunner().invoke(main, command)


def test_its_code_is_thirty_lines_or_less():
    lines = [line for line in blocks("python")[0].splitlines() if line and line[0] != "#"]
    assert len(lines) <= 30


def test_its_commands_run():
    """And a run whose end is missing goes on."""
    for command in COMMANDS:
        done = typed([*command, *SHORT])
        assert done.exit_code == 0, done.output
    assert read_config(Path("runs/job")).solver.mu == 0.1
    for name in ("model.safetensors", "traffic.png"):
        Path("runs/job", name).unlink(missing_ok=True)
    refused = typed(RESUME[2:])
    assert "is code of this installation" in refused.output
    done = typed(RESUME)
    assert done.exit_code == 0, done.output
    assert Path("runs/job/model.safetensors").exists()


def test_a_file_is_refused_without_the_option():
    code, name, *command = COMMANDS[2]
    assert (code, name) == ("--code", "mine:Proximal")
    refused = typed(command)
    assert refused.exit_code == 2
    assert "is code of this installation" in refused.output


def test_its_python_runs(capsys):
    names: dict = {}
    exec(blocks("python")[1], names)
    assert capsys.readouterr().out in blocks("text")
    config = names["result"].config
    assert (config.solver.name, config.solver.mu) == ("mine:Proximal", 0.1)
    assert config.algorithm.name == "mine:LastLayerLocal"
    kept = {name for tensors in names["result"].own.values() for name in tensors}
    assert kept == {"1.weight", "1.bias", "1.running_mean", "1.running_var"}


def test_its_package_gives_short_names(monkeypatch):
    """Once it is installed, by the files that the page puts into it."""
    typed_by_hand = [line for line in blocks("")[2].splitlines() if line.startswith("cp ")]
    for line in typed_by_hand:
        shutil.copy(*shlex.split(line)[1:])
    (install,) = blocks("")[3].splitlines()
    offline = ["--no-index", "--no-build-isolation", "--no-deps", "--quiet", "--target", "lib"]
    subprocess.run([sys.executable, "-m", *shlex.split(install), *offline], check=True)
    Path("mine.py").unlink()
    monkeypatch.syspath_prepend("lib")
    found = securefl.load_config(None, ["solver.name=proximal", "algorithm.name=last-layer-local"])
    assert [type(found.solver).__name__, type(found.algorithm).__name__] == [
        "Proximal",
        "LastLayerLocal",
    ]


def named_in(table):
    """Names in the first column of a table, by the beginning of its heading."""
    (rows,) = re.findall(rf"^\| {table}.*\n\|[-|]*\n((?:\|.*\n)*)", PAGE.read_text(), re.MULTILINE)
    first = [row.split("|")[1] for row in rows.splitlines()]
    return {name for names in first for name in re.findall(r"`([a-z_]+)", names)}


def test_each_method_and_trait_of_its_tables_is_one():
    assert all(hasattr(Start, name) for name in named_in("of `start`"))
    traits = named_in("trait")
    known = {
        "elementwise": securefl.Solver,
        "second_gradient": securefl.Solver,
        "releases_statistics": securefl.Normalisation,
        "mixes_records": securefl.Normalisation,
        "asks": securefl.Selector,
        "told": securefl.Selector,
    }
    assert traits == known.keys()
    assert all(hasattr(base, trait) for trait, base in known.items())
    assert all(f'`"{answer}"`' in PAGE.read_text() for answer in ANSWERS)


def test_a_file_that_was_allowed_is_refused_again_elsewhere():
    """What one process allows holds in that process."""
    with pytest.raises(ConfigError, match="is code of this installation"):
        securefl.load_config("job.toml")
    securefl.allow_code("mine:Proximal")
    assert securefl.load_config("job.toml").solver.mu == 0.1
