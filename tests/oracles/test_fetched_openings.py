"""The authority's log of a run lies in the server's folder, whatever happens on the way."""

from __future__ import annotations

import json

import pytest
from over_loopback import NAMES, Consortium, Job, OnTask, made_up_task

from securefl.audit.exposure.evidence import FolderEvidence, leaks_in
from securefl.audit.replay import replayed
from securefl.build.training import precision_of
from securefl.errors import RunFolderError
from securefl.federation.opening import Opening
from securefl.network.authority import AuthorityLog
from securefl.runs.folder_files import OPENINGS
from securefl.runs.folder_reader import read_rows
from securefl.runs.folder_writer import RunFolder

pytestmark = pytest.mark.usefixtures("quick", "no_hang")
SEALED = ("exchange.encrypt=model", "run.reproducible=false")


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture
def job(consortium, tmp_path):
    return lambda *settings, **task: Job(
        consortium, tmp_path / "job", (*SEALED, *settings), made_up_task(**task)
    )


def logged(here):
    """The authority's own rows."""
    return [json.loads(line) for line in here.openings.read_text().splitlines()]


def test_it_is_there_after_each_round_and_at_the_end(job, monkeypatch):
    here, seen = job(), []
    note_round = RunFolder.note_round

    def noted(self, metrics, *more):
        note_round(self, metrics, *more)
        seen.append(len(read_rows(self.path / OPENINGS, Opening)))

    monkeypatch.setattr(RunFolder, "note_round", noted)
    OnTask(here).run()
    fetched = (here.folder / "run" / OPENINGS).read_text()
    assert fetched == here.openings.read_text()
    assert seen == [0, sum(row["round"] == 1 for row in logged(here))]
    assert {row["run"] for row in logged(here)} == {*RunFolder(here.folder / "run").session_ids()}


def test_what_a_session_had_opened_before_it_died_is_fetched_in_the_next(job, monkeypatch):
    here, note_round = job("algorithm.name=fedtan"), RunFolder.note_round

    def full(self, metrics, *more):
        if metrics.round == 2:
            raise RunFolderError("no space left")
        note_round(self, metrics, *more)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "note_round", full)
        with pytest.raises(RunFolderError):
            OnTask(here).run()
    folder = RunFolder(here.folder / "run")
    assert len(read_rows(folder.path / OPENINGS, Opening)) < len(logged(here))
    OnTask(here).run()
    fetched = (folder.path / OPENINGS).read_text().splitlines()
    assert sorted(fetched) == sorted(here.openings.read_text().splitlines())
    assert len(folder.session_ids()) == 2
    assert leaks(here) == []


def leaks(here, scores=None):
    record = here.record
    again = replayed(record.config, here.task, lambda _done, _all: None, record.participants)
    dtype = precision_of(here.task.model)
    return leaks_in(FolderEvidence.of(record), again.ledger, dtype, scores or {})


def test_long_logs_come_in_pages(tmp_path, monkeypatch):
    log = AuthorityLog(tmp_path, "")
    rows = [Opening(n, "x", 1, ("a", "b", "c"), 3, run=run) for n in range(1, 9) for run in "ab"]
    for row in rows:
        log.note(row)
    length = len(log.rows("a", 7))
    monkeypatch.setattr("securefl.network.authority.MAX_LOG_BYTES", 3 * length + 3)
    pages = [log.rows("a", known).splitlines() for known in (0, 3, 6, 8)]
    assert [len(page) for page in pages] == [3, 3, 2, 0]
    found = [json.loads(line) for page in pages for line in page]
    assert [(row["run"], row["round"]) for row in found] == [("a", n) for n in range(1, 9)]
    assert log.rows("c", 0) == b""


@pytest.mark.parametrize("sent", ["another session", "no row", "{}"])
def test_what_is_no_log_of_the_run_is_not_written(job, monkeypatch, sent):
    here, rows = job(), AuthorityLog.rows

    def lies(self, run, known):
        if sent == "another session":
            return rows(self, run, known).replace(run.encode(), b"0" * 64) or b""
        return sent.encode()

    monkeypatch.setattr(AuthorityLog, "rows", lies)
    loop = OnTask(here)
    loop.run()
    assert not (here.folder / "run" / OPENINGS).exists()
    assert loop.has_said("its log is fetched with the next round")


def test_scores_over_processes_are_no_leak_and_more_of_them_are(job):
    """The audit plays the run again in one process, where nobody sends any."""
    here = job("algorithm.name=silobn", own_tests=True)
    here = job("algorithm.name=silobn", "sites.scores=mean", own_tests=True)
    OnTask(here).run()
    assert leaks(here, {"score/mean": 11}) == []
    assert {leak.what for leak in leaks(here)} == {"score/mean"}
    assert {leak.what for leak in leaks(here, {"score/mean": 1})} == {"score/mean"}
    ledger = here.folder / "run/ledger.jsonl"
    row = next(line for line in ledger.read_text().splitlines() if '"score/mean"' in line)
    assert json.loads(row)["sender"] in NAMES
    with ledger.open("a") as file:
        file.write(row + "\n")
    assert "score/mean" in {leak.what for leak in leaks(here, {"score/mean": 11})}
