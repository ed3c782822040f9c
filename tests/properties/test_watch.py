"""`securefl watch`: a page that follows a run, for this machine alone, and asks nobody else."""

import http.client
import json
import os
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from browser import CHROMIUM, browser
from click.testing import CliRunner
from hand_made import write_run

import securefl
from securefl.errors import ConfigError, RunFolderError
from securefl.report.watching import FollowedRun, watching
from securefl.runs.folder_files import CONFIG, METRICS, PHASE, read_phase
from securefl.runs.follow import follow, read_title
from securefl.runs.progress import progress_bar
from securefl.runs.round_metrics import RoundMetrics, read_metrics
from securefl_cli.compare import compare
from securefl_cli.watch import watch

FIRST = RoundMetrics(1, 0.25, 2.0, 0.1, 1000, (), 30.0, score=0.25, phases={"scoring": 0.5})
NASTY = "<script>alert(1)</script>"


@pytest.fixture
def run():
    """A run of ten rounds, of which one is done."""
    return FollowedRun(NASTY, 10, [FIRST])


def answer(address, path="", host=None, method="GET"):
    """Status and body of a request."""
    at = urlsplit(address)
    connection = http.client.HTTPConnection(at.hostname, at.port, timeout=10)
    target = path if path.startswith("/") else at.path + path
    connection.request(method, target, headers={"Host": host or at.netloc})
    found = connection.getresponse()
    return found.status, found.read()


def test_it_gives_rounds_once_and_says_what_is_left(run):
    with watching(run) as address:
        _, body = answer(address, "rounds?after=0")
        found = json.loads(body)
        assert [of["round"] for of in found["rounds"]] == [1]
        assert found["state"] == "Round 1 of 10, about 4 min left"  # nine of 30 s
        run.phase = "scoring"
        now = json.loads(answer(address, "rounds?after=1")[1])["state"]
        assert now == "Round 1 of 10, about 4 min left (now: scoring)"
        assert found["last"]["of these scoring"] == "0.50"
        assert not found["over"]
        turned = "no\u202erth"  # a character that turns what follows round is not seen as such
        run.seen.append(
            replace(
                replace(FIRST, round=2, loss=float("nan"), epsilon=1.5),
                dropped=(turned,),
                phases={f"phase {turned}": 1.0},
                at=turned,
            )
        )
        run.ended = "the run has stopped"
        found = json.loads(answer(address, "rounds?after=1")[1])
        assert [of["round"] for of in found["rounds"]] == [2]
        assert "loss" not in found["rounds"][0]  # JSON has no NaN
        assert found["state"] == "Round 2 of 10: the run has stopped"
        assert found["last"]["Clients refused"] == found["last"]["Ended at"] == r"no\u202erth"
        assert found["last"][r"of these phase no\u202erth"] == "1.00"
        assert found["last"]["ε spent"] == "1.5"
        assert found["over"]


def test_nobody_else_reads_it(run):
    with watching(run) as address:
        assert urlsplit(address).hostname == "127.0.0.1"
        for path in ("/", "/rounds?after=0", "/x/", "/../../etc/passwd", "%00", "other"):
            assert answer(address, path)[0] == 404
        assert answer(address, host="evil.example:80")[0] == 404
        assert answer(address, method="POST")[0] == 501
        assert answer(address, "rounds?after=" + "9" * 50)[0] == 200
        assert answer(address)[0] == 200
    with pytest.raises(ConnectionRefusedError):
        answer(address)


def test_a_port_that_is_taken_is_named(run):
    with watching(run) as address:
        port = urlsplit(address).port
        with (
            pytest.raises(ConfigError, match=rf"--port {port}: cannot be had"),
            watching(run, port),
        ):
            pass


@pytest.mark.skipif(not CHROMIUM, reason="no chromium here")
def test_a_browser_follows_and_asks_nobody_else(run, tmp_path):
    with watching(run) as address, browser(tmp_path / "profile") as tab:
        for width in (390, 1280):
            tab.visit(address, width)
            _until(tab, "document.getElementById('bar').value === 1")
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            assert tab.evaluate("document.querySelector('h1').textContent") == NASTY
        run.seen.append(replace(FIRST, round=2, score=0.5))
        _until(tab, "document.getElementById('bar').value === 2")
        assert "now 0.5000" in tab.evaluate("document.getElementById('score-ends').textContent")
        points = tab.evaluate("document.getElementById('score').getAttribute('points')")
        assert points == "0.0,150.0 600.0,10.0"
        run.ended = "the run is complete"
        _until(tab, "document.getElementById('state').textContent.includes('complete')")
        assert {urlsplit(asked).netloc for asked in tab.requests} == {urlsplit(address).netloc}


def _until(tab, condition):
    for _ in range(100):
        if tab.evaluate(condition):
            return
        time.sleep(0.1)
    raise AssertionError(f"{condition}: not in 10 s")


def test_the_command_waits_for_a_run_and_follows_it_to_its_end(tmp_path, monkeypatch):
    """While it is at work its phase is known, by a file that goes with it."""
    config = securefl.load_config(settings=["run.rounds=2", "exchange.encrypt=none"])

    class SeenError(Exception):
        """End of following."""

    def seen(phase):
        raise SeenError(phase)

    def on_round(_metrics):
        with pytest.raises(SeenError, match="scoring"):
            list(follow(tmp_path / "run", on_phase=seen))

    def begin(_seconds):
        securefl.run(config, out=tmp_path / "run", on_round=on_round)

    monkeypatch.setattr(
        sys.modules[watch.callback.__module__], "time", SimpleNamespace(sleep=begin)
    )
    waited = CliRunner().invoke(watch, [str(tmp_path / "run"), "--once"], catch_exceptions=False)
    assert "no run has begun here. Waits for one; Ctrl-C ends.\nPage: " in waited.output
    assert "Round 2 of 2: the run is complete." in waited.output
    assert not (tmp_path / "run" / PHASE).exists()
    (tmp_path / "run" / PHASE).write_bytes(b"\x1b[2Jscoring")
    assert read_phase(tmp_path / "run") == r"\x1b[2Jscoring"
    found = CliRunner().invoke(watch, [str(tmp_path / "run"), "--once"], catch_exceptions=False)
    assert found.exit_code == 0
    assert found.output.startswith("Page: http://127.0.0.1:")


def test_a_foreign_folder_sends_no_commands_to_a_terminal(tmp_path, capsys):
    """Nor does it keep who follows it, or show a number of rounds that no run has."""
    run = tmp_path / "run"
    write_run(run, rows=[replace(FIRST, metric="\x1b]52;c;\x07m")])
    found = CliRunner().invoke(watch, [str(run), "--once"], catch_exceptions=False)
    compared = CliRunner().invoke(compare, [str(run), str(run)])
    said = found.output + compared.output + capsys.readouterr().err
    assert r"\x1b]52;" in said
    assert "\x1b" not in said
    write_run(tmp_path / "other", rows=[replace(FIRST, metric="m\x9b2J\u202e")])
    as_json = CliRunner().invoke(compare, [str(tmp_path / "other"), "--json"]).output
    assert r"m\u009b2J\u202e" in as_json
    assert as_json.isascii()
    settings = json.loads((run / CONFIG).read_text())
    for rounds in (0, -3, True):
        settings["run"]["rounds"] = rounds
        (run / CONFIG).write_text(json.dumps(settings))
        with pytest.raises(RunFolderError, match=r"run\.rounds of 1 or more"):
            read_title(run)
    (run / METRICS).unlink()
    os.mkfifo(run / METRICS)
    with pytest.raises(RunFolderError, match="no file"):
        list(follow(run))
    with pytest.raises(RunFolderError, match="no file"):
        read_metrics(run)


def test_a_terminal_that_can_draw_no_bar_has_lines(monkeypatch, capsys):
    """As an editor's often is."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar("job", 1) as bar:
        bar.on_round(FIRST)
    assert capsys.readouterr().err == "job: round 1/1  25.0 %     0.0 MB up\n"
