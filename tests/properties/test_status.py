"""`securefl status` tells from a run's folder how it stands, and leaves the folder as it is."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from processes import Site

import securefl
from securefl.federation.incidents import PASSED, Incident
from securefl.runs.folder_files import INCIDENTS, MODEL, SELECTIONS, TRAFFIC
from securefl.runs.folder_reader import read_run
from securefl.runs.folder_writer import RunFolder
from securefl.runs.status import status_of
from securefl.selection.round_participants import RoundParticipants
from securefl_cli.main import main
from securefl_cli.passed_rounds import passed_rounds


def told(folder, *more):
    return CliRunner().invoke(main, ["status", str(folder), *more])


def contents(folder):
    """Names, bytes and times."""
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def simulated(tmp_path, quick):
    """The folder of a sealed simulation of two rounds."""
    settings = {"run.rounds": 2, "run.name": "first", "run.engine": "sequential"}
    settings |= {"data.clients": 3, "data.partition": "classes:4", "model.name": "mlp"}
    config = securefl.load_config(None, [f"{k}={json.dumps(v)}" for k, v in settings.items()])
    result = securefl.run(config, out=tmp_path / "run")
    (tmp_path / "run" / TRAFFIC).touch()  # pictures are left out here
    return tmp_path / "run", result


def test_a_simulation_that_is_complete(simulated):
    """Round, score, clients and openings are the run's own."""
    folder, result = simulated
    before = contents(folder)
    found = status_of(folder)
    assert contents(folder) == before
    assert (found.name, found.state, found.at_work) == ("first", "complete", False)
    assert (found.round, found.rounds, found.over_processes) == (2, 2, False)
    assert found.score == result.score
    assert (found.best_round, found.best_score) == (result.best.round, result.best.score)
    assert found.openings == len(result.openings) > 0
    assert found.openings_to_come == 0
    assert len(found.clients) == 3
    assert found.missing == {}
    ended = datetime.fromisoformat(found.ended)
    assert timedelta() <= datetime.now(UTC) - ended < timedelta(minutes=5)
    done = told(folder)
    assert done.exit_code == 0
    first, second, *_ = done.stdout.splitlines()
    assert first == "first: complete"
    assert second == f"Round 2 of 2, which ended at {found.ended}"
    best = f"Best round: {found.best_round}, {100 * found.best_score:.1f} %"
    assert f"\n{best} (best.safetensors)\n" in done.stdout
    assert json.loads(told(folder, "--json").stdout) == json.loads(json.dumps(asdict(found)))


def test_officers_are_who_opens(simulated):
    """Of a run that names them, with how many are needed."""
    folder, _ = simulated
    assert "\nOpened by the authority: 10\n" in told(folder).stdout
    tables = json.loads((folder / "config.json").read_text())
    tables["exchange"]["officers"], tables["run"]["rounds"] = 3, 3
    (folder / "config.json").write_text(json.dumps(tables))
    (folder / MODEL).unlink()
    said = told(folder).stdout
    assert "\nOpened by 2 of 3 officers: 10; the rounds left will ask for about 5. " in said
    assert "How many they still open, each says itself" in said
    assert "authority" not in said


def test_a_run_at_work_and_one_that_has_stopped(simulated):
    """By the lock that a writer has; one that stopped before its end is code 1."""
    folder, _ = simulated
    (folder / MODEL).unlink()
    stopped = told(folder)
    assert stopped.exit_code == 1
    assert "first: stopped, no process is at work on it" in stopped.stdout
    with RunFolder(folder).locked():
        assert told(folder).exit_code == 0
        assert status_of(folder).state == "running"
    with RunFolder(folder).locked():  # who looked has left nothing behind
        pass


def test_what_a_peer_has_said_is_shown_as_text(simulated):
    """A name or a reason is no command to a terminal, and no line of its own."""
    folder, _ = simulated
    reason = "eve: late\n\x1b[2JRound 9 of 9"
    row = asdict(Incident(2, "model", "eve", reason))
    (folder / INCIDENTS).write_text(json.dumps(row) + "\n")
    done = told(folder)
    assert r"Missing: eve: late\n\x1b[2JRound 9 of 9" in done.stdout.splitlines()
    assert status_of(folder).missing == {"eve": reason}


def passed(folder, rounds, why="the round passes: bob was lost"):
    """Have these rounds of a folder be such that nobody counted in."""
    clients = ("client-1", "client-2")
    rows = [RoundParticipants(n, {}, clients, uncounted=clients) for n in rounds]
    (folder / SELECTIONS).write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    incidents = [asdict(Incident(n, PASSED, c, f"{c}: {why}")) for n in rounds for c in clients]
    (folder / INCIDENTS).write_text("".join(json.dumps(row) + "\n" for row in incidents))


def test_a_round_in_which_nobody_counted_is_told(simulated):
    """Who was there is not missing."""
    folder, _ = simulated
    passed(folder, [2])
    found = status_of(folder)
    assert found.missing == {}
    assert set(found.uncounted) == {"client-1", "client-2"}
    assert found.passed == 1
    lines = told(folder).stdout.splitlines()
    assert "Did not count: client-1: the round passes: bob was lost" in lines
    assert "No contribution counted in 1 of 2 rounds, which left the model as it was" in lines
    assert not any(line.startswith("Missing") for line in lines)


def test_a_run_says_who_did_not_count_and_why(simulated):
    """And that nothing was trained, where nobody counted in any round."""
    folder, _ = simulated
    assert passed_rounds(read_run(folder)) == ""
    passed(folder, [2])
    assert passed_rounds(read_run(folder)).startswith(
        "in 1 of 2 rounds no contribution counted, and the model stayed as it was (client-1: the "
        "round passes: bob was lost; client-2: the round passes"
    )
    assert not read_run(folder).all_passed
    passed(folder, [1, 2])
    assert read_run(folder).all_passed
    assert passed_rounds(read_run(folder)).endswith("nothing was trained")


def test_a_run_that_has_not_begun_and_a_folder_that_is_none(tmp_path):
    """No round, nobody; and words where there is no run."""
    RunFolder.create(tmp_path / "new", securefl.Config())
    found = status_of(tmp_path / "new")
    assert (found.state, found.round, found.ended, found.score) == ("stopped", 0, None, None)
    assert "Took part: nobody yet" in told(tmp_path / "new").stdout
    done = told(tmp_path)
    assert done.exit_code == 1
    assert "is no run's folder" in done.output


def test_a_ledger_that_is_damaged_is_told(simulated):
    folder, _ = simulated
    with (folder / "ledger.jsonl").open("ab") as file:
        file.write(b'{"round": 2, "exchange": "\n')
    assert "damaged" in told(folder).output


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.full
def test_a_servers_folder_says_who_was_missing_and_why(tmp_path):
    """While the server is at work, and after it was killed."""
    names = ("a1", "b1", "c1", "d1", "e1")
    site = Site(tmp_path / "site", rounds=60, reproducible=False, names=names)
    try:
        site.rotate(revoking="e1")  # and so is not waited for
        site.authority()
        server = site.server()
        clients = {name: site.client(name) for name in site.names if name != "e1"}
        server.wait_for("Round 1/60")
        clients["d1"].stop()
        server.wait_for("without d1")
        said = server.wait_for(r"without d1(?s:.*)Round (\d+)/60")
        found = status_of(site.folder / "run")
        assert (found.state, found.over_processes, found.rounds) == ("running", True, 60)
        assert found.round >= int(said[1])
        assert set(found.clients) == {"a1", "b1", "c1"}
        assert found.missing["e1"] == "was not there"
        assert set(found.missing) == {"d1", "e1"}
        openings = len(site.openings.read_text().splitlines())
        assert 0 < found.openings <= openings
        assert found.openings_to_come == 4 * (60 - found.round)
        server.process.send_signal(signal.SIGKILL)
        server.ended()
        done = told(site.folder / "run")
        assert done.exit_code == 1
        assert "stopped, no process is at work on it\n" in done.stdout
        assert re.search(r"^Round \d+ of 60, which ended at \S*Z$", done.stdout, re.MULTILINE)
    finally:
        site.stop()


@pytest.mark.parametrize("module", ["securefl_cli", "securefl_cli.main"])
def test_the_command_is_a_module_too(module, tmp_path):
    """It says the same, with the same exit code."""
    done = subprocess.run(
        [sys.executable, "-m", module, "status", tmp_path / "none"],
        capture_output=True,
        text=True,
        check=False,
    )
    asked = CliRunner().invoke(main, ["status", str(tmp_path / "none")])
    assert (done.returncode, done.stderr) == (asked.exit_code, asked.stderr)
    assert "no run's folder" in done.stderr
