"""Lines that a server's requests leave in the authority's logs end no process."""

from __future__ import annotations

import json
import os
from base64 import b64encode

import pytest
from over_loopback import NAMES, Consortium, Job, OnTask, made_up_task
from processes import SETTINGS, Site, asked_of_the_authority

import securefl.io.files
import securefl.network.authority
from securefl.errors import OpeningRefused, RunFolderError
from securefl.exchange.sums import ONE_TIME, Sealed
from securefl.federation.message import Expected, header_for
from securefl.federation.opening import Opening
from securefl.network import bodies
from securefl.network.authority import AuthorityLog
from securefl.network.authority_line import ask_what_holds
from securefl.network.fetched_openings import MAX_LOG_BYTES
from securefl.network.frames import SMALL, Frame
from securefl.runs.folder_files import OPENINGS
from securefl.runs.folder_reader import read_rows

pytestmark = pytest.mark.usefixtures("quick", "cheap_guesses", "no_hang")
RUN, OTHER = "ab" * 32, "cd" * 32
READY = bodies.Ready(run=RUN, settings=SETTINGS, round=1, known=(0, 0), needed=10)
N_HEADERS = 4500
GRIN = "\N{GRINNING FACE}"
"""Twelve bytes of a line of ASCII."""


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("consortium"))


def unsigned(sender):
    """A header that nobody has signed."""
    about = Expected(RUN, 1, "a/mean", ONE_TIME, "0" * 64, epoch=1, n_values=10)
    header = header_for(about, sender, Sealed(b"", "0" * 32)).model_dump_json()
    return {"header": b64encode(header.encode()).decode(), "signature": "AAAA"}


def request_of(site, senders):
    """The frame of a request that is refused, with headers of these senders."""
    key_id = site.bundle("server").card_keys.key_id
    about = {"run": RUN, "round": 1, "name": "a/mean", "n_values": 10, "state": "", "model": ""}
    key = {"form": ONE_TIME, "key_id": key_id, "epoch": 1}
    return json.dumps({**about, **key, "signed": list(map(unsigned, senders))}).encode()


async def rows_of(link, run):
    """The log of a session, as the server gets it."""
    await ask_what_holds(link, READY.model_copy(update={"run": run}))
    await link.send(Frame.LOG, bodies.LogRequest(run=run, known=0).to_bytes())
    received = await link.receive({Frame.LOG_ROWS: MAX_LOG_BYTES, Frame.REFUSED: SMALL})
    if received.frame is Frame.REFUSED:
        raise OpeningRefused(bodies.parsed(bodies.Refusal, received.body, "authority").reason)
    return received.body


def test_headers_of_nobody_leave_no_line_that_stops_the_authority(tmp_path):
    """Names of the roster are in it; of the others it has the number alone."""
    site = Site(tmp_path / "site")
    strangers = [GRIN * 96 + f"{i:04d}" for i in range(N_HEADERS)]
    body = request_of(site, [*strangers, "alice", "bob"])

    async def spoil(link):
        await ask_what_holds(link, READY)
        await link.send(Frame.OPEN, body)
        await link.send(Frame.CIPHERTEXT, bytes(14336))
        await link.receive({Frame.REFUSED: SMALL})
        return await rows_of(link, RUN)

    (row,) = map(json.loads, asked_of_the_authority(site, spoil).splitlines())
    assert row["signers"] == ["alice", "bob"]
    assert row["refused"].endswith(
        f" ({N_HEADERS} of {N_HEADERS + 2} headers are of no client in force)"
    )
    assert len(site.openings.read_bytes()) < 10_000
    assert asked_of_the_authority(site, lambda link: rows_of(link, OTHER)) == b""


def test_a_log_that_cannot_be_read_ends_no_authority(tmp_path):
    """One of an older release may have such a line; the server is told, and asks on."""
    site = Site(tmp_path / "site")
    site.openings.parent.mkdir(parents=True, exist_ok=True)
    site.openings.write_bytes(b"x" * (securefl.io.files.MAX_LINE_BYTES + 2) + b"\n")

    async def twice(link):
        for _ in range(2):
            with pytest.raises(OpeningRefused, match="a line of more than"):
                await rows_of(link, RUN)
        return await ask_what_holds(link, READY)

    said = []
    assert asked_of_the_authority(site, twice, said=said).bundles
    assert sum("Refused: " in line and "cannot be read" in line for line in said) == 2


def test_a_run_goes_on_beside_a_log_that_cannot_be_read(consortium, tmp_path):
    """The server says why it has no rows."""
    settings = ("exchange.encrypt=model", "run.reproducible=false")
    here = Job(consortium, tmp_path / "job", settings, made_up_task())
    here.openings.parent.mkdir()
    here.openings.write_bytes(b"x" * (securefl.io.files.MAX_LINE_BYTES + 2) + b"\n")
    loop = OnTask(here)
    record = loop.run()
    assert len(record.metrics) == 2
    assert loop.ended == dict.fromkeys(NAMES)
    assert loop.has_said("a line of more than .* its log is fetched with the next round")


def test_no_line_is_written_that_no_reader_takes(tmp_path, monkeypatch):
    """Neither of an opening nor of a release: what it stands for is not released."""
    monkeypatch.setattr(securefl.network.authority, "MAX_LINE_BYTES", 1000)
    log = AuthorityLog(tmp_path, "")
    row = Opening(1, "x", 1, ("a" * 1000,), 3, run=RUN)
    with pytest.raises(RunFolderError, match="at most 1000 fit"):
        log.note(row)
    with pytest.raises(RunFolderError, match="at most 1000 fit"):
        log.history.claim((RUN, 1, "x" * 1000))
    assert not (tmp_path / OPENINGS).exists()
    log.history.claim((RUN, 1, "x"))


def test_logs_of_its_own_may_be_longer_than_others(tmp_path, monkeypatch):
    """An authority of many runs starts, and answers."""
    log = AuthorityLog(tmp_path, "")
    for number in range(1, 9):
        log.history.claim((RUN, number, "x"))
        log.note(Opening(number, "x", 1, ("a", "b", "c"), 3, run=RUN))
    checked = securefl.io.files._checked

    def two_gib(status, path, max_bytes):
        return checked(os.stat_result([*status[:6], 2**31, *status[7:]]), path, max_bytes)

    monkeypatch.setattr(securefl.io.files, "_checked", two_gib)
    with pytest.raises(RunFolderError, match="2147483648 bytes; such a file has at most"):
        read_rows(tmp_path / OPENINGS, Opening)
    again = AuthorityLog(tmp_path, "")
    assert again.history.n_asked(RUN) == 8
    assert len(again.rows(RUN, 0).splitlines()) == 8
