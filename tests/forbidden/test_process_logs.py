"""Logs of the three roles: one line each, with time and session, nothing secret; exit codes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from process_memory import found_under, secrets_of
from processes import SERVER, federations

from securefl.runs.folder_files import METRICS
from securefl_cli.connection import ended_by_sigterm
from securefl_cli.log import begin
from securefl_cli.main import main

ROLES = {"authority": "authority", "alice": "site", SERVER: "server"}


@pytest.fixture
def site(tmp_path):
    """Makes a federation; its processes end with the test."""
    with federations(tmp_path / "site") as make:
        yield make


@pytest.fixture(autouse=True)
def _plain_afterwards():
    """Lines that are of JSON in one test are plain in the next."""
    yield
    begin()


def rows(process):
    return [json.loads(line) for line in process.text().splitlines()]


CLOCK = r"\d\d:\d\d:\d\dZ"
NAMES = ("alice", "bob", "carol", "dora", "emil", "fay")
"""So many that a run goes on without one that is killed between two totals."""


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_json_lines_have_time_role_name_and_session_and_no_secret(site, monkeypatch):
    """Of a whole run, in which a client is killed: each line of each process is an object."""
    monkeypatch.setenv("SECUREFL_LOG", "json")
    here = site(rounds=4, reproducible=False, names=NAMES)
    authority, server = here.authority(), here.server()
    clients = dict(zip(here.names, here.clients(), strict=True))
    server.wait_for("Round 1/4")
    clients["dora"].stop()
    assert server.ended() == 0, server.text()
    assert clients["alice"].ended() == 0
    assert authority.interrupt(signal.SIGTERM) == 0
    sessions = set()
    for name, process in {"authority": authority, SERVER: server, **clients}.items():
        found = rows(process)
        assert {tuple(row) for row in found} == {
            ("time", "level", "role", "name", "run", "message")
        }
        assert {row["role"] for row in found} == {ROLES.get(name, "site")}
        assert {row["name"] for row in found} == {name}
        for row in found:
            at = datetime.fromisoformat(row["time"])
            assert timedelta() < datetime.now(UTC) - at < timedelta(minutes=5)
            assert row["time"].endswith("Z")
        sessions |= {row["run"] for row in found} - {""}
    (session,) = sessions
    assert re.fullmatch("[0-9a-f]{8}", session)
    for row in rows(server):
        if re.search("has joined|^Round|^Epoch", row["message"]):
            assert row["run"] == session
    warned = [row["message"] for row in rows(server) if row["level"] == "warning"]
    assert any("goes on without dora" in message for message in warned)
    assert all("Round 4/4" not in message for message in warned)
    logs = here.folder / "logs"
    logs.mkdir()
    for path in here.folder.glob("*.log"):
        path.rename(logs / path.name)
    needles = secrets_of(here)
    assert found_under([logs], needles) == set()
    (logs / "planted.log").write_bytes(needles["authority's passphrase"][0])
    assert found_under([logs], needles) == {"authority's passphrase"}


def test_text_lines_begin_with_time_level_who_and_session(site):
    """One that fails ends with an error line of the same form."""
    here = site(encrypt="none")
    process = here.client("alice", "--wait", "0", "--log", "text")
    assert process.ended() == 1
    (line,) = process.text().splitlines()
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.match(rf"{stamp} ERROR site/alice - \S+: nobody answers", line)


LINES = """
import sys, warnings
from securefl.network.saying import SESSION, Warned
from securefl_cli import log
log.begin(sys.argv[1], "server")
log.lines_are_of("hub\\u2028\\x1b[31m")
SESSION.set("ab" * 32)
log.say("joined: eve\\nERROR forged\\r\\u2028\\u0085\\x1b[2J\\x00 %s {message}")
log.say(Warned("late"))
warnings.warn("a library's")
raise RuntimeError("a fault\\nof two lines")
"""


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_name_begins_a_line_of_its_own(form):
    """Nor a colour; a library's warning and an error that nobody foresaw are lines, too."""
    done = subprocess.run([sys.executable, "-c", LINES, form], capture_output=True, check=False)
    lines = done.stderr.split(b"\n")
    assert done.returncode == 1
    assert lines.pop() == b""
    assert len(lines) == 4
    assert not re.search(rb"[\x00-\x1f\x7f]|\xe2\x80\xa8|\xc2\x85", b"".join(lines))
    if form == "json":
        joined, late, library, fault = map(json.loads, lines)
        shown = r"joined: eve\nERROR forged\r\u2028\x85\x1b[2J\x00 %s {message}"
        assert joined["message"] == shown
        assert (joined["level"], joined["run"]) == ("info", "abababab")
        assert (late["level"], library["level"]) == ("warning", "warning")
        assert "a library's" in library["message"]
        assert fault["level"] == "critical"
        assert "RuntimeError" in fault["trace"]


@pytest.mark.full
def test_lines_are_plain_where_nobody_asks_for_another_form(site):
    """With a time; and an unknown form is a wrong command."""
    here = site(encrypt="none")
    process = here.client("alice", "--wait", "0")
    assert process.ended() == 1
    assert re.match(rf"{CLOCK} Error: 127\.0\.0\.1:", process.text())
    asked = ["site", "join", str(here.job), "--log", "xml"]
    assert CliRunner().invoke(main, asked).exit_code == 2
    done = CliRunner(env={"SECUREFL_LOG": "json"}).invoke(main, ["site", "join", str(here.job)])
    assert done.exit_code == 2
    assert "Missing option" in json.loads(done.stderr)["message"]


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.full
def test_sigterm_ends_each_role_with_code_0_and_the_run_goes_on_later(site):
    """The server tells its clients, who end with 1; its folder goes on with the same commands."""
    here = site(rounds=40, reproducible=False)
    authority, server = here.authority(), here.server()
    clients = here.clients()
    server.wait_for("Round 2/40")
    assert server.interrupt(signal.SIGTERM) == 0
    assert re.search(rf"^{CLOCK} [0-9a-f]{{8}} Round 2/40", server.text(), re.MULTILINE)
    assert server.text().splitlines()[-1].endswith(" Stopped.")
    assert [client.ended() for client in clients] == [1, 1, 1]
    for client in clients:
        assert "the server was stopped" in client.text()
    assert authority.interrupt(signal.SIGTERM) == 0
    n_done = len((here.folder / "run" / METRICS).read_text().splitlines())
    assert 2 <= n_done < 40
    authority, server = here.authority(), here.server()
    clients = here.clients()
    (first,) = server.wait_for(r"Round (\d+)/40").groups()
    assert int(first) == n_done + 1
    assert clients[0].interrupt(signal.SIGTERM) == 0
    assert clients[0].text().splitlines()[-1].endswith(" Stopped.")
    server.wait_for("without alice|away: alice")


LOADS = """
import time
from securefl_cli.connection import ended_by_sigterm
@ended_by_sigterm()
def loads():
    print("begun", flush=True)
    time.sleep(60)
loads()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGTERM")
def test_sigterm_ends_a_role_that_still_loads_what_it_needs():
    """With a word and code 0; afterwards SIGTERM is what it was."""
    loading = subprocess.Popen(
        [sys.executable, "-c", LOADS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert loading.stdout.readline() == "begun\n"
    loading.send_signal(signal.SIGTERM)
    _, said = loading.communicate(timeout=20)
    assert (loading.returncode, said) == (0, "Stopped.\n")
    with ended_by_sigterm():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


LOSES = """
import os, signal
from securefl_cli.connection import ended_by_sigterm, run_until_done
class Loses:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        print("not told", flush=True)
async def works():
    print("works", flush=True)
@ended_by_sigterm()
def loads():
    Loses()
    run_until_done(works())
loads()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGTERM")
def test_sigterm_whose_exit_is_lost_ends_a_role_before_it_connects():
    """Python drops what is raised in a destructor, or in the callback after an import."""
    done = subprocess.run(
        [sys.executable, "-c", LOSES], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "Exception ignored in" in done.stderr
    assert done.stderr.splitlines()[-1] == "Stopped."


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGTERM")
@pytest.mark.parametrize("role", [pytest.param("authority", marks=pytest.mark.full), "server"])
def test_sigterm_ends_a_role_that_waits_for_its_peers(site, role):
    process = getattr(site(), role)()
    assert process.interrupt(signal.SIGTERM) == 0
    assert re.fullmatch(rf"{CLOCK} Stopped\.", process.text().splitlines()[-1])
