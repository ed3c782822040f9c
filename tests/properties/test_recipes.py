"""A recipe is strict about what it says, and runs a whole table that can stop and go on."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from interruptible import SECUREFL

import securefl
from securefl.errors import ConfigError, Diverged
from securefl.recipes import reproduce as reproducing
from securefl.recipes.recipe import load_recipe, slug
from securefl.recipes.reproduce import plan, reproduce
from securefl.report import finish
from securefl.runs.folder_files import is_finished
from securefl.runs.folder_reader import read_run
from securefl_cli.main import main
from securefl_cli.reproduce import shipped_recipes

TINY = """
title = "Tiny"
paper = "Nobody. Table 0"
seeds = 2
[run]
rounds = 2
[algorithm]
local_steps = 1
[exchange]
encrypt = "none"
[[columns]]
name = "IID (%)"
settings = { data.partition = "iid" }
[[columns]]
name = "Non-IID (%)"
settings = { data.partition = "classes:2" }
[[rows]]
name = "FedTAN"
settings = { algorithm.name = "fedtan" }
paper = { "IID (%)" = "91.26 ± 0.21", "Non-IID (%)" = "87.66" }
[[rows]]
name = "FedAvg+BN"
settings = { algorithm.name = "fedavg" }
paper."IID (%)" = [90.0, 91.0, 92.5]
"""


@pytest.fixture
def tiny(tmp_path):
    """A file with the tiny recipe, some of its text replaced."""

    def make(old="", new=""):
        assert old in TINY
        path = tmp_path / "tiny.toml"
        path.write_text(TINY.replace(old, new, 1) if old else TINY)
        return path

    return make


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Runs of a blink: they draw no pictures, and leave the other cores alone."""
    drawn = dict.fromkeys(("traffic.png", "accuracy.png"), b"a picture")
    monkeypatch.setattr(finish, "pictures", lambda _: drawn)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def invoke(*arguments):
    return CliRunner().invoke(main, ["reproduce", *map(str, arguments)])


class StopError(Exception):
    """Stands for a crash."""


def test_a_cells_settings_are_the_common_ones_then_its_columns_then_its_rows(tiny):
    """What a row says wins over its column, and what a column says over the whole table."""
    path = tiny('settings = { algorithm.name = "fedavg" }', "settings.data.partition = 'classes:4'")
    cells = {(cell.row, cell.column): cell for cell in load_recipe(path).cells}
    config = cells["FedTAN", "IID (%)"].config(seed=3)
    assert (config.algorithm.name, config.algorithm.local_steps) == ("fedtan", 1)
    assert (config.data.partition, config.run.seed, config.run.rounds) == ("iid", 3, 2)
    assert config.run.name == "fedtan--iid"
    assert cells["FedAvg+BN", "IID (%)"].config(0).data.partition == "classes:4"
    assert cells["FedTAN", "Non-IID (%)"].config(0).data.partition == "classes:2"


def test_printed_values_are_kept_as_they_were_printed(tiny):
    """A mean with its deviation, a mean alone, several values whose mean counts, or nothing."""
    cells = {(cell.row, cell.column): cell.printed for cell in load_recipe(tiny()).cells}
    one, other = cells["FedTAN", "IID (%)"], cells["FedTAN", "Non-IID (%)"]
    assert (one.text, one.mean, one.std) == ("91.26 ± 0.21", 91.26, 0.21)
    assert (other.text, other.mean, other.std) == ("87.66", 87.66, None)
    several = cells["FedAvg+BN", "IID (%)"]
    assert several.mean == pytest.approx(273.5 / 3)
    assert several.text == "91.17 (mean of 3)"
    assert cells["FedAvg+BN", "Non-IID (%)"] is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title =", "titel =", "titel: no such key; did you mean title?"),
        ("[run]", "[rnu]", "rnu: no such key; did you mean run?"),
        ("seeds = 2", "seeds = 0", "seeds = 0: .* greater than or equal to 1"),
        ("rounds = 2", "round = 2", "'FedTAN', column 'IID .*: run.round: .* mean run.rounds?"),
        ("rounds = 2", "seed = 2", "run.seed: a recipe's runs get theirs from its seeds"),
        ("[run]\nrounds = 2", "run = 2", "tiny.toml: run is a table: write run.key = value"),
        ("data.partition", "data.partitoin", r"column 'IID \(%\)': data.partitoin: no such key"),
        ("data.partition", "data", "columns.0.settings.data"),
        ('"fedtan"', '"fedtann"', "row 'FedTAN', column 'IID .*algorithm.name = 'fedtann'"),
        ('"fedtan"', '"centralised", exchange.encrypt = "model"', "row 'FedTAN'.*centralised"),
        ("settings = { a", "setting = { a", "rows.0.setting: no such key; did you mean rows.0.se"),
        ('"IID (%)" = "91', '"IDI (%)" = "91', "'FedTAN': there is no column 'IDI .*mean IID"),
        ("91.26 ± 0.21", "91.26 +- 0.21", "paper = '91.26 .- 0.21': write \"87.66\""),
        ("[90.0, 91.0, 92.5]", "[]", "at least 1 item"),
        ("[90.0, 91.0, 92.5]", "91.0", "rows.1.paper"),
        ("[90.0, 91.0, 92.5]", "[nan, 1.0]", "rows.1.paper.*nan: input should be a finite number"),
        ("[90.0, 91.0, 92.5]", "[1.0, -inf]", "rows.1.paper.*-inf: input should be a finite"),
        ("91.26 ± 0.21", "9" * 400, "paper = '9+': write"),
        ("91.26 ± 0.21", f"91.26 ± {'9' * 400}", "paper = '91.26 ± 9+': write"),
        ('name = "IID (%)"', 'name = "IID\\n(%)"', "columns.0.name = 'IID.*match pattern"),
        ('name = "FedTAN"', 'name = "Fed\\u2028TAN"', "rows.0.name = .*match pattern"),
        ('name = "FedTAN"', 'name = "Fed\\u001bTAN"', "rows.0.name = .*match pattern"),
        ('name = "FedAvg+BN"', 'name = "fedtan"', "rows: 'fedtan' and 'FedTAN': names"),
        ('name = "FedAvg+BN"', 'name = "%"', "rows: '%': names"),
        ("seeds = 2", 'seeds = 2\nmeasure.quantity = "accurcy"', "quantity = 'accurcy'"),
        ("seeds = 2", "seeds = 2\nmeasure.target = 9.0", "rounds-to-target"),
        ("seeds = 2", 'seeds = 2\nmeasure.quantity = "rounds-to-target"', "needs a target"),
        (
            "seeds = 2",
            "seeds = 2\nmeasure.tagret = 9.0",
            "tagret: no such key; did you mean target",
        ),
        ('name = "FedTAN"', 'name = "FedTAN"\ncolumns = ["x"]', "there is no column 'x'"),
    ],
)
def test_a_wrong_recipe_is_refused_with_the_place_and_the_way_out(tiny, old, new, message):
    """A slip of the pen costs a line to read, not a night of training."""
    with pytest.raises(ConfigError, match=message) as caught:
        load_recipe(tiny(old, new))
    assert str(caught.value).startswith(str(tiny()))


def test_one_slip_is_one_message(tiny):
    """An unknown key in a row does not leave the table without rows, too."""
    with pytest.raises(ConfigError) as caught:
        load_recipe(tiny("settings = { algorithm.name", "setting = { algorithm.name"))
    path = tiny()
    assert str(caught.value) == (
        f"{path}: rows.0.setting: no such key; did you mean rows.0.settings?"
    )


def test_results_hold_no_number_that_json_has_not(tiny, tmp_path, monkeypatch):
    """NaN in results.json is what other readers of JSON stop at."""
    monkeypatch.setattr(reproducing, "measured", lambda *_: math.nan)
    table = reproduce(load_recipe(tiny("rounds = 2", "rounds = 1")), tmp_path, seeds=1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        table.write(tmp_path, "securefl reproduce")
    assert not (tmp_path / "results.json").exists()


def test_names_become_folders_that_differ():
    """Letters and digits stay, decimal points too."""
    assert slug("FedTAN-II (M = 1000)") == "fedtan-ii-m-1000"
    assert slug("τ = 0.9") == "τ-0.9"
    assert slug("IID (%)") == "iid"


def test_a_whole_table(tiny, tmp_path):
    """Two rows, two columns, two seeds: printed and measured side by side, and all kept."""
    result = invoke(tiny(), "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    folders = {path.name for path in (tmp_path / "out" / "runs").iterdir()}
    rows, columns = ("fedtan", "fedavg-bn"), ("iid", "non-iid")
    assert folders == {f"{r}--{c}.{seed}" for r in rows for c in columns for seed in (0, 1)}
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["command"] == f"securefl reproduce {tiny()} --seeds 2 --out {tmp_path / 'out'}"
    page = (tmp_path / "out" / "table.md").read_text()
    assert results["command"] in page
    for cell in results["cells"]:
        records = [read_run(tmp_path / "out" / path) for path in cell["runs"]]
        assert [record.config.run.seed for record in records] == [0, 1]
        one, other = (100 * record.metrics[-1].accuracy for record in records)
        assert cell["values"] == [one, other]
        assert cell["mean"] == pytest.approx((one + other) / 2)
        assert cell["std"] == pytest.approx(abs(one - other) / math.sqrt(2))
        text = f"{cell['mean']:.2f} ± {cell['std']:.2f}"
        assert text in result.stdout
        assert text in page
    assert results["cells"][0]["paper"] == {"mean": 91.26, "std": 0.21}
    assert "91.26 ± 0.21" in result.stdout
    assert "91.26 ± 0.21" in page


@pytest.mark.parametrize("name", ["...toml", "..toml", "--.toml"])
def test_a_file_without_a_name_writes_nowhere_by_itself(tiny, tmp_path, monkeypatch, name):
    """Its folder would be the one that the command was called in."""
    (tmp_path / name).write_bytes(tiny().read_bytes())
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    result = invoke(f"./{name}")
    assert result.exit_code == 2
    assert "give --out DIR" in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_names_the_folder_of_its_table(tiny, tmp_path, monkeypatch):
    """By its letters and digits, in `runs`."""
    tiny().rename(tmp_path / "My table.toml")
    monkeypatch.chdir(tmp_path)
    assert invoke("My table.toml", "--seeds", "1").exit_code == 0
    assert (tmp_path / "runs" / "my-table" / "table.md").is_file()


def test_what_is_complete_is_read_back(tiny, tmp_path):
    """A second time nothing is trained, and the table is the same."""
    recipe = load_recipe(tiny())
    first = reproduce(recipe, tmp_path, seeds=1)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    calls = []
    again = reproduce(recipe, tmp_path, seeds=1, on_run=lambda run, done: calls.append(done))
    assert again.lines() == first.lines()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")} == kept
    assert calls == [2] * 4


def test_one_seed_has_no_deviation(tiny, tmp_path):
    """A single run is shown as the number that it is."""
    ((_, *texts), *_) = reproduce(load_recipe(tiny()), tmp_path, seeds=1).lines()
    assert texts[0] == "91.26 ± 0.21"
    assert "±" not in texts[1]
    assert float(texts[1]) >= 0


def test_an_interrupted_table_goes_on_in_the_middle_of_a_run(tiny, tmp_path):
    """The cut run is resumed, complete ones stay, and the numbers are those of an uncut table."""
    recipe = load_recipe(tiny("rounds = 2", "rounds = 4"))
    whole = reproduce(recipe, tmp_path / "whole", seeds=1)

    def stop(run, done):
        if run.config.name == "fedtan--non-iid" and done == 2:
            raise StopError

    with pytest.raises(StopError):
        reproduce(recipe, tmp_path / "cut", seeds=1, on_run=stop)
    started = {}
    table = reproduce(
        recipe,
        tmp_path / "cut",
        seeds=1,
        on_run=lambda run, done: started.setdefault(run.config.name, done),
    )
    assert started == {
        "fedtan--iid": 4,
        "fedtan--non-iid": 2,
        "fedavg-bn--iid": 0,
        "fedavg-bn--non-iid": 0,
    }
    assert [cell.values for cell in table.cells] == [cell.values for cell in whole.cells]
    cut, uncut = (
        tmp_path / d / "runs/fedtan--non-iid.0/model.safetensors" for d in ("cut", "whole")
    )
    assert cut.read_bytes() == uncut.read_bytes()


def test_runs_of_a_changed_recipe_are_not_mixed_with_older_ones(tiny, tmp_path):
    """The message names the run and the setting, and nothing is trained."""
    assert invoke(tiny(), "--seeds", 1, "--out", tmp_path / "out").exit_code == 0
    path = tiny('algorithm.name = "fedavg"', 'algorithm.name = "fedavg", train.lr = 0.25')
    before = sorted((tmp_path / "out").rglob("*"))
    result = invoke(path, "--seeds", 2, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert f"{tmp_path}/out/runs/fedavg-bn--iid.0: this run has other settings" in result.stderr
    assert "train.lr = 0.5, not 0.25" in result.stderr
    assert sorted((tmp_path / "out").rglob("*")) == before


def test_cells_that_differ_in_what_is_measured_share_a_run(tiny, tmp_path):
    """Accuracy and traffic of one method cost one training."""
    text = TINY.replace('settings = { data.partition = "iid" }', "") + (
        '[[columns]]\nname = "MB"\nmeasure = { quantity = "megabytes-per-round" }\n'
    )
    path = tiny()
    path.write_text(text)
    recipe = load_recipe(path)
    table = reproduce(recipe, tmp_path / "out", seeds=1)
    assert len(list((tmp_path / "out/runs").iterdir())) == 2  # classes:2 is the default, too
    (values,) = {cell.values for cell in table.cells[1::3]} - {table.cells[4].values}
    assert values == table.cells[0].values
    assert table.cells[2].values == (pytest.approx(2500 * 6 * 4 / 2**20),)


def test_every_quantity_of_the_traffic(tiny, tmp_path):
    """2320 weights and 60 statistics as model, 120 values more for FedTAN, in 4 exchanges."""
    quantities = {
        "exchanges": (8, 2),
        "extra-exchanges": (75, 0),
        "gigabytes": (2 * 2500 * 24 / 2**30, 2 * 2380 * 24 / 2**30),
        "gigabits": (2 * 2500 * 192 / 2**30, 2 * 2380 * 192 / 2**30),
        "extra-traffic": (100 * 120 / 2500, 0),
    }
    columns = "".join(
        f'[[columns]]\nname = "{name}"\nmeasure = {{ quantity = "{name}" }}\n'
        for name in quantities
    )
    path = tiny()
    path.write_text(TINY + columns)
    table = reproduce(load_recipe(path), tmp_path / "out", seeds=1)
    for (name, expected), place in zip(quantities.items(), range(2, 7), strict=True):
        found = [table.cells[place].values, table.cells[place + 7].values]
        assert [cell.measure.quantity for cell in (table.cells[place].cell,)] == [name]
        assert found == [(pytest.approx(value, abs=1e-9),) for value in expected]


def test_rounds_to_a_target(tiny, tmp_path):
    """The first round that is good enough; a run that never is says so."""
    path = tiny(
        'name = "Non-IID (%)"',
        'name = "Non-IID (%)"\nmeasure = { quantity = "rounds-to-target", target = 100.0 }',
    )
    easy = (
        '[[columns]]\nname = "rounds"\nmeasure = { quantity = "rounds-to-target", target = 1.0 }\n'
    )
    path.write_text(path.read_text() + easy)
    first, *_ = reproduce(load_recipe(path), tmp_path / "out", seeds=2).lines()
    assert first[4] == "never"
    assert first[6] == "1.0 ± 0.0"


def test_a_run_that_diverges_is_a_cell_and_not_the_end(tiny, tmp_path, monkeypatch):
    """The others are trained; the table says how many runs were lost, also the next time."""
    really_run = securefl.run

    def run(config, **more):
        if config.name == "fedtan--iid":
            raise Diverged("NaN")
        if config.name == "fedavg-bn--iid" and config.run.seed == 1:
            raise Diverged("NaN")
        return really_run(config, **more)

    monkeypatch.setattr(reproducing, "run", run)
    for _ in range(2):
        result = invoke(tiny(), "--out", tmp_path / "out")
        assert result.exit_code == 0, result.output
        table = (tmp_path / "out/table.md").read_text()
        assert "| 91.26 ± 0.21 | diverged |" in table
        assert "(1 of 2 diverged)" in table
        cells = json.loads((tmp_path / "out/results.json").read_text())["cells"]
        assert (cells[0]["values"], cells[0]["mean"]) == (["diverged", "diverged"], None)


def test_a_training_that_leaves_the_numbers_is_such_a_cell(tiny, tmp_path):
    """A learning rate of 1e30 ends in NaN, and its rounds before stay in its folder."""
    path = tiny('algorithm.name = "fedavg"', 'algorithm.name = "fedavg", train.lr = 1e30')
    for _ in range(2):
        table = reproduce(load_recipe(path), tmp_path / "out", seeds=1)
        assert [cell.text for cell in table.cells[2:]] == ["diverged", "diverged"]
        assert all(cell.mean is not None for cell in table.cells[:2])


def test_a_row_may_stand_in_some_columns_alone(tiny, tmp_path):
    """What a paper leaves empty is not trained."""
    path = tiny('name = "FedTAN"', 'name = "FedTAN"\ncolumns = ["Non-IID (%)"]')
    path.write_text(path.read_text().replace('"IID (%)" = "91.26 ± 0.21", ', ""))
    lines = reproduce(load_recipe(path), tmp_path / "out", seeds=1).lines()
    assert lines[0][1:3] == ["", ""]
    assert len(list((tmp_path / "out/runs").iterdir())) == 3


def test_names_of_recipes_are_suggested(tmp_path):
    """A slip in the name shows the nearest one; so does no name at all show the way."""
    result = invoke("fedtan-tabel1")
    assert result.exit_code == 2
    assert "did you mean fedtan-table1?" in result.stderr
    assert "--list" in invoke().stderr
    missing = invoke(tmp_path / "none.toml")
    assert missing.exit_code == 2
    assert "cannot be read" in missing.stderr


def test_ctrl_c_says_how_to_go_on(tiny, tmp_path):
    """After it, the same command ends the table."""
    path = tiny("rounds = 2", "rounds = 300")
    command = [*SECUREFL, "reproduce", path, "--seeds", "1", "--out"]
    out = tmp_path / "out dir"
    process = subprocess.Popen([*command, out], stderr=subprocess.PIPE, text=True)
    metrics = out / "runs/fedtan--iid.0/metrics.jsonl"
    give_up = time.monotonic() + 60
    while not (metrics.exists() and len(metrics.read_text().splitlines()) >= 3):
        assert time.monotonic() < give_up
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"Go on with: securefl reproduce {path} --seeds 1 --out '{out}'" in stderr
    assert "Traceback" not in stderr
    (cut,) = (out / "runs").iterdir()
    assert not is_finished(cut)
    assert not (out / "table.md").exists()


def test_the_list_of_one_scale_says_that_there_are_others():
    """On stderr, so that the list is the list; the help names them."""
    assert "--scale natural and --scale paper" in invoke("--list").stderr
    natural = invoke("--list", "--scale", "natural")
    assert "--scale digits and --scale paper" in natural.stderr
    assert len(natural.stdout.splitlines()) == len(shipped_recipes("natural"))
    assert "--list --scale natural" in invoke("--help").stdout


def test_help_and_the_list_of_recipes_load_no_torch():
    """Who looks up a name does not wait."""
    for arguments in (["reproduce", "--help"], ["reproduce", "--list"]):
        script = (
            "import sys\nfrom securefl_cli.main import main\n"
            f"try:\n    main({arguments})\nexcept SystemExit:\n    pass\n"
            "print('torch' in sys.modules, file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ,
        )
        assert done.stderr.endswith("False\n")


def test_a_plan_holds_every_cell_and_seed(tiny, tmp_path):
    """Folders are told apart by row, column and seed."""
    planned = plan(load_recipe(tiny()), tmp_path, seeds=3)
    folders = [run.folder for cell in planned.values() for run in cell]
    assert len(folders) == len(set(folders)) == 12
    assert all(Path(folder).parent == tmp_path / "runs" for folder in folders)
