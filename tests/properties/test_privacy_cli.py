"""`securefl privacy plan`: the noise for an ε, and the ε of a noise."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from securefl.errors import ConfigError
from securefl.privacy.accountants import Accountant, epsilon
from securefl.privacy.events import SampledGaussian
from securefl.privacy.plan import RecordPlan
from securefl_cli.main import main

RUN = ["--clients", "5", "--records", "50000", "--batch", "200", "--rounds", "100"]
DELTA = ["--delta", "1e-5"]


def plan(*arguments):
    return CliRunner().invoke(main, ["privacy", "plan", *arguments])


def number(text, label):
    return float(re.search(rf"{label} +([0-9.e+]+)", text).group(1).replace(",", ""))


def test_the_noise_for_an_epsilon_gives_that_epsilon_back():
    """σ for ε = 3, then ε of that σ, by both accountants."""
    there = plan("--target-epsilon", "3", *DELTA, *RUN)
    assert there.exit_code == 0, there.output
    sigma = number(there.output, "noise multiplier σ")
    back = plan("--sigma", str(sigma), *DELTA, *RUN)
    assert number(back.output, "ε by PLD") == pytest.approx(3, abs=2e-3)
    event = SampledGaussian(sigma, 0.02, 500)
    by_rdp = epsilon([event], 1e-5, Accountant.RDP)
    assert number(there.output, "ε by RDP") == pytest.approx(by_rdp, abs=2e-3)
    assert by_rdp > 3


@pytest.mark.parametrize("target", [pytest.param("0.3", marks=pytest.mark.full), "0.5"])
def test_the_noise_as_it_is_printed_is_enough(target):
    """Its last digit is rounded up: the ε of what a user copies is not above what was asked for."""
    short = [*RUN, "--rounds", "2"]
    printed = number(plan("--target-epsilon", target, *DELTA, *short).output, "noise multiplier σ")
    assert epsilon([SampledGaussian(printed, 0.02, 10)], 1e-5) <= float(target)


def test_what_is_protected_is_said_in_plain_words():
    """Of what, from whom, on which conditions; and what is not."""
    said = " ".join(plan("--sigma", "1", *DELTA, *RUN).output.split())
    assert "Protected: one record of one client" in said
    assert "From: everyone who sees what a client sends or the trained model" in said
    assert "each client holds at least 10,000 records" in said
    assert "Not protected: what a client's records have in common" in said


def test_clients_share_records_and_steps_are_rounds_of_local_steps():
    """A remainder is left out, which makes the sample rate larger, not smaller."""
    planned = RecordPlan(records=1007, batch=20, rounds=30, local_steps=4, clients=5)
    assert planned.event(1.0) == SampledGaussian(1.0, 20 / 201, 120)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*DELTA, *RUN], "give one of --target-epsilon, for its σ, and --sigma"),
        (["--sigma", "1", "--target-epsilon", "3", *DELTA, *RUN], "give one of"),
        (["--sigma", "0", *DELTA, *RUN], "noise multiplier σ = 0.0: must be"),
        (["--target-epsilon", "-1", *DELTA, *RUN], "target epsilon = -1: must be"),
        (["--sigma", "1", "--delta", "0.01", *RUN], "must be below 1 / records = 2e-05"),
        (["--sigma", "1", "--delta", "0", *RUN], "delta = 0: must be 1e-12..0.1"),
        (["--sigma", "1", *DELTA, *RUN, "--batch", "10000"], "must be below the 10000 records"),
        (["--sigma", "1", *DELTA, *RUN, "--rounds", "0"], "rounds = 0: must be a whole number"),
        (["--sigma", "1", *DELTA, *RUN, "--rounds", "999999999"], "must be at most 1,000,000,000"),
        (["--sigma", "1", *DELTA], "Missing option '--records'"),
    ],
)
def test_what_cannot_be_planned_says_why(arguments, message):
    """In one line, with exit code 2."""
    done = CliRunner().invoke(main, ["privacy", "plan", *arguments])
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.parametrize("field", ["records", "batch", "rounds", "local_steps", "clients"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_a_plan_is_made_of_whole_numbers(field, value):
    """Each from 1."""
    numbers = {"records": 1000, "batch": 10, "rounds": 5, "local_steps": 5, "clients": 2}
    with pytest.raises(ConfigError, match=f"{field} = {value}: must be a whole number"):
        RecordPlan(**numbers | {field: value})


def test_planning_loads_no_torch():
    """Not only the help: the plan itself takes dp-accounting alone, and says nothing on stderr."""
    arguments = ["privacy", "plan", "--sigma", "0.5", *DELTA, *RUN]
    script = (
        "import sys\n"
        "from securefl_cli.main import main\n"
        f"main({arguments!r})\n"
        "print('LOADED', sorted({'torch', 'opacus', 'tenseal'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "LOADED []" in done.stdout
    assert not done.stderr
