"""A server that is stopped waits for nobody any more: neither authority nor officers call again."""

import asyncio
import threading
import time
from dataclasses import replace

import pytest
from over_loopback import Consortium, Job, OnTask
from with_officers import OFFICERS, SEALED, Officers, OfficersJob, WithOfficers

from securefl.network.authority_line import Line
from securefl.network.server import ServerProcess
from securefl.runs.folder_reader import read_run
from securefl.runs.folder_writer import RunFolder

pytestmark = pytest.mark.usefixtures("quick", "no_hang")

AWAY_S = 25.0
"""For the authority, or as many officers as are needed, to call again."""
AT_ONCE_S = 8.0
"""Farewells to all parties and the end of their connections, with room to spare."""
MOMENTS = [
    pytest.param(ServerProcess, "ready_for", id="before a round is announced"),
    pytest.param(RunFolder, "note_in_flight", id="before a total is opened"),
]
ALONE = ("exchange.encrypt=model", "algorithm.name=fedtan")


def patient(kind):
    """A loop of this kind whose server waits long for who opens totals."""

    class Patient(kind):
        def _server(self):
            self.patience = replace(self.patience, authority_s=AWAY_S)
            return super()._server()

    return Patient


def stopped(monkeypatch, loop, n_lines, where, name):
    """Stop the server in its second round, at that call; returns seconds until it has ended.

    The call goes on once the server has taken leave of the authority and all officers.
    """
    parted, stopped_at = threading.Semaphore(0), []
    part, call = Line.part, getattr(where, name)

    async def noted(line, reason):
        await part(line, reason)
        parted.release()

    def stopping(*args):
        if len(read_run(loop.site.folder / "run").metrics) == 1 and not stopped_at:
            stopped_at.append(time.monotonic())
            loop.serving.get_loop().call_soon_threadsafe(loop.serving.cancel)
            assert all(parted.acquire(timeout=AWAY_S) for _ in range(n_lines))
        return call(*args)

    monkeypatch.setattr(Line, "part", noted)
    monkeypatch.setattr(where, name, stopping)
    with pytest.raises(asyncio.CancelledError):
        loop.run()
    (began,) = stopped_at
    return time.monotonic() - began


@pytest.mark.parametrize(("where", "name"), MOMENTS)
def test_it_ends_at_once_without_the_authority(tmp_path, monkeypatch, where, name):
    job = Job(Consortium(tmp_path / "consortium"), tmp_path / "job", ALONE)
    loop = patient(OnTask)(job)
    assert stopped(monkeypatch, loop, 1, where, name) < AT_ONCE_S
    assert [m.round for m in read_run(job.folder / "run").metrics] == [1]


@pytest.mark.parametrize(("where", "name"), MOMENTS)
def test_it_ends_at_once_without_officers(tmp_path, monkeypatch, where, name):
    job = OfficersJob(Officers(tmp_path / "consortium"), tmp_path / "job", SEALED)
    loop = patient(WithOfficers)(job)
    assert stopped(monkeypatch, loop, len(OFFICERS), where, name) < AT_ONCE_S
    assert [m.round for m in read_run(job.folder / "run").metrics] == [1]
