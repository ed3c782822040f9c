"""A wrong setting is refused before torch is imported, which takes seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

WRONG = "--set", "algorithm.nmae=fixbn"
PARTY = "--bundle", "bundle", "--identity", "me"
COMMANDS = {
    "run": ("run", *WRONG),
    "server": ("server", "serve", *WRONG, *PARTY),
    "authority": ("authority", "serve", *WRONG, "--keys", "keys"),
    "officer": ("officer", "serve", *WRONG, *PARTY),
    "site": ("site", "join", *WRONG, *PARTY),
    "review": ("site", "review", *WRONG),
    "privacy": ("privacy", "cost", *WRONG),
    "leave one out": ("leave-one-out", "job.toml", *WRONG, "--out", "out"),
    "NVFlare": ("nvflare", "export", "wrong.toml", "--out", "job"),
}
CALL = """
import sys
from securefl_cli.main import main
try:
    main(sys.argv[1:])
finally:
    print("torch" in sys.modules)
"""


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_torch_is_not_imported_for_it(command, tmp_path):
    (tmp_path / "job.toml").write_text("")
    (tmp_path / "wrong.toml").write_text('[algorithm]\nnmae = "fixbn"\n')
    done = called(command, tmp_path)
    assert "algorithm.nmae: no such key; did you mean algorithm.name?" in done.stderr


METRIC = "--set", "run.metric=r2", "--out", "out"


@pytest.mark.parametrize("command", [("run",), ("leave-one-out", "job.toml")], ids=" ".join)
def test_nor_for_a_metric_that_no_data_set_of_that_name_has(command, tmp_path):
    """The digits have classes."""
    (tmp_path / "job.toml").write_text("")
    done = called((*command, *METRIC), tmp_path)
    assert 'run.metric = "r2": needs a number for each target; by data.dataset = ' in done.stderr
    assert not (tmp_path / "out").exists()


LEFT_OUT = {
    "data.leave_out": (
        "data.leave_out=hospital-2.4",
        "leave-one-out leaves out each domain in turn",
    ),
    "the algorithm": ("algorithm.name=fedper", "none to score on other data"),
    "no domains": ("data.dataset=digits", "leaving one out needs two"),
}


@pytest.mark.parametrize(("setting", "rule"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_nor_for_what_leave_one_out_cannot_have(setting, rule, tmp_path):
    (tmp_path / "job.toml").write_text('data = {dataset = "azpro"}\n')
    done = called(("leave-one-out", "job.toml", "--set", setting, "--out", "out"), tmp_path)
    assert rule in done.stderr


def called(command, folder):
    """The refused command, which ended without torch."""
    done = subprocess.run(
        [sys.executable, "-c", CALL, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stdout == "False\n"
    return done
