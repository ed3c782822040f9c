"""Names without end, numbers without end, files that are none: one clear line, no traceback."""

from __future__ import annotations

import os
import struct
import zipfile

import pytest
from click.testing import CliRunner

import securefl
from securefl.data.arrays import load_arrays
from securefl.errors import ConfigError, DataError, RunFolderError
from securefl.recipes.recipe import load_recipe
from securefl.runs.folder_writer import RunFolder
from securefl.settings.load import load_config
from securefl_cli.main import main

pytestmark = pytest.mark.usefixtures("quick")

LONG = "n" * 300
HUGE = "0x" + "f" * 5000
RECIPE = """
title = "Tiny"
paper = "Nobody. Table 0"
seeds = 1
[run]
rounds = 1
[exchange]
encrypt = "none"
[[columns]]
name = "COLUMN"
[[rows]]
name = "ROW"
"""
DOMAINS = """
[data]
partition = "iid"
clients = 3
corruptions = ["fog", "gaussian_noise", "contrast"]
[exchange]
encrypt = "none"
"""


def invoke(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


def refused(*arguments):
    """What the command says on stderr, in one line, in the place of a result."""
    result = invoke(*arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in {1, 2}
    line = result.stderr.strip().splitlines()[-1]
    assert line.startswith("Error: ")
    return line


@pytest.fixture
def recipe(tmp_path):
    """A recipe's file, some of its text replaced."""

    def make(old="", new=""):
        path = tmp_path / "recipe.toml"
        path.write_text(RECIPE.replace(old, new, 1) if old else RECIPE)
        return path

    return make


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", LONG],
        ["run", "--resume", LONG],
        ["run", "--encrypt", "none", "--out", LONG],
        ["run", "--encrypt", "none", "--out", f"{LONG}/run"],
        ["run", "--keys", LONG],
        ["run", "--dataset", "cifar10", "--data-root", LONG],
        ["keys", "show", LONG],
        ["compare", LONG],
        ["reproduce", "recipe.toml", "--out", LONG],
        ["leave-one-out", "domains.toml", "--out", LONG],
    ],
    ids=lambda command: " ".join(command).replace(LONG, "LONG"),
)
def test_a_name_that_no_disk_takes_is_one_clear_line(recipe, tmp_path, monkeypatch, command):
    """For every folder that a command reads or makes."""
    recipe()
    (tmp_path / "domains.toml").write_text(DOMAINS)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    said = refused(*command)
    assert "File name too long" in said or "there is no such folder" in said
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("part", ["ROW", "COLUMN"])
def test_rows_and_columns_whose_folder_would_have_too_long_a_name_are_refused(recipe, part):
    """40 letters of four bytes each; 40 of three bytes are taken."""
    with pytest.raises(ConfigError, match="160 are too many: shorten it"):
        load_recipe(recipe(part, "𝒳" * 40))
    assert load_recipe(recipe(part, "あ" * 40)).cells


def test_the_longest_names_of_a_cell_fit_a_folder(recipe, tmp_path):
    """Row, column and seed together."""
    path = recipe("ROW", "あ" * 40)
    path.write_text(path.read_text().replace("COLUMN", "い" * 40))
    (cell,) = load_recipe(path).cells
    (tmp_path / f"{cell.name}.999").mkdir()


@pytest.mark.parametrize(
    "key",
    ["run.seed", "train.batch_size", "train.lr", "exchange.min_clients", "data.clients"],
)
def test_an_integer_of_thousands_of_digits_is_refused(tmp_path, recipe, key):
    """In a file, in --set and in a recipe; Python itself writes no decimals of it."""
    table, name = key.split(".")
    (tmp_path / "job.toml").write_text(f"[{table}]\n{name} = {HUGE}\n")
    for call in (
        lambda: load_config(tmp_path / "job.toml"),
        lambda: load_config(None, [f"{key}={HUGE}"]),
        lambda: load_recipe(recipe("[[rows]]", f"[[rows]]\nsettings.{key} = {HUGE}")),
    ):
        with pytest.raises(ConfigError, match=name):
            call()


def test_a_value_without_end_is_shown_in_part():
    """The message stays one that can be read."""
    with pytest.raises(ConfigError) as error:
        load_config(None, [f"run.rounds='{'9' * 100_000}'"])
    assert len(str(error.value)) < 400


def test_a_folder_of_data_has_no_control_characters(tmp_path):
    """A NUL in TOML would end the path for the disk, not for Python."""
    (tmp_path / "job.toml").write_text('[data]\ndataset = "mnist"\nroot = "a\\u0000b"\n')
    assert "data.root" in refused("run", tmp_path / "job.toml")


@pytest.mark.parametrize(
    "header", [b"{'descr': (", b"{'descr': '<f4'", b"'''", b"\\\n(", b"{\n  1\n 2"]
)
def test_a_damaged_header_of_an_array_is_refused(tmp_path, header):
    """Whatever numpy's reader of literals raises on it."""
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header))
        archive.writestr("x.npy", start + header)
        archive.writestr("y.npy", start + header)
    with pytest.raises(DataError, match=r"is no \.npz file that can be used"):
        load_arrays(path)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run of one round."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = ["run.rounds=1", "algorithm.local_steps=1", "exchange.encrypt=none"]
    securefl.run(load_config(None, settings), out=folder)
    return folder


@pytest.mark.parametrize("size", [10**6 + 1, 10**30])
def test_a_batch_of_more_samples_than_any_data_set_has_is_refused(run_folder, tmp_path, size):
    """Torch would not even count them."""
    (tmp_path / "job.toml").write_text(DOMAINS)
    out = ["--out", tmp_path / "out"]
    assert "1<=x<=1000000" in refused("evaluate", run_folder, "--batch-size", size)
    assert "1<=x<=1000000" in refused(
        "leave-one-out", tmp_path / "job.toml", "--batch-size", size, *out
    )


@pytest.mark.parametrize("severity", ["9" * 5000, "٣", "-1", "", "3.0"])
def test_a_severity_is_a_short_number(run_folder, severity):
    """In digits that the help shows."""
    line = refused("evaluate", run_folder, "--data", f"test:fog:{severity}")
    assert "as in test:fog:3" in line


@pytest.mark.parametrize(
    "content",
    ['{"sessions": 5}', "null", '[["sessions", 7]]', '{"sessions": [5]}', "[" * 9999, "", "{"],
    ids=lambda text: text[:20],
)
def test_a_damaged_environment_is_refused(tmp_path, content):
    """By what reads it and by what adds to it."""
    (tmp_path / "environment.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"environment\.json: damaged"):
        RunFolder(tmp_path).has_own_task()
    with pytest.raises(RunFolderError, match=r"environment\.json: damaged"):
        RunFolder(tmp_path).note_session(load_config(), "", "", "sequential", own_task=False)


@pytest.mark.usefixtures("no_hang")
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_an_environment_that_is_no_file_is_refused(tmp_path, make):
    """A pipe would keep its reader waiting for ever."""
    make(tmp_path / "environment.json")
    with pytest.raises(
        RunFolderError, match=r"environment\.json: cannot be read \(is no regular file"
    ):
        RunFolder(tmp_path).has_own_task()
