"""Officers as processes: a run of 2 of 3 ends as that of one authority, whoever of them fails."""

from __future__ import annotations

import asyncio
import json
import secrets

import pytest
import torch
from cryptography.hazmat.primitives import hashes
from over_loopback import NAMES, incidents_of, made_up_task, model_of
from process_axes import SELECTIONS
from with_officers import OFFICERS, OTHERS, SEALED, Officers, OfficersJob, WithOfficers

from securefl.audit.exposure.evidence import FolderEvidence, leaks_in
from securefl.audit.provenance import Provenance
from securefl.audit.replay import replayed
from securefl.build.training import precision_of
from securefl.crypto.one_time import KEY_SUM_BYTES
from securefl.errors import ConfigError, OpeningRefused, PeerError
from securefl.federation.message import SCORING
from securefl.federation.opening import Opening
from securefl.network import bodies
from securefl.network.authority import AuthorityProcess
from securefl.runs.folder_files import OFFICERS_OPENINGS, OPENINGS
from securefl.runs.folder_reader import read_rows, read_run
from securefl_cli.audit_report import auditor
from securefl_keys.certificates import CertificateFile
from securefl_keys.layout import IDENTITY_CERTIFICATE

pytestmark = pytest.mark.usefixtures("quick", "no_hang", "cheap_guesses")
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Officers(tmp_path_factory.mktemp("officers"))


@pytest.fixture
def job(consortium, tmp_path):
    return lambda *settings, **task: OfficersJob(
        consortium, tmp_path / "job", (*SEALED, *settings), made_up_task(**task)
    )


@pytest.fixture(scope="module")
def usual(consortium, tmp_path_factory):
    """The model of the same job where nobody fails, in one process."""
    here = OfficersJob(consortium, tmp_path_factory.mktemp("usual"), SEALED)
    return model_of(here.simulated(consortium.key_set()))


def assert_same(run, wanted):
    found = model_of(run)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=ROUNDING, msg=name)


def rows(run, name=OPENINGS):
    return read_rows(run / name, Opening)


def answered(run, name=OPENINGS):
    """What was opened of whom, in any order."""
    return {(row.round, row.name, row.signers) for row in rows(run, name) if not row.refused}


def test_a_run_with_officers_is_that_of_a_simulation(job, usual):
    """The same model to rounding, all totals opened, and in the folder each officer's own log.

    A report by a client's bundle names authority and officers by their certificates.
    """
    here = job()
    loop = WithOfficers(here)
    loop.run()
    run = here.folder / "run"
    assert loop.ended == dict.fromkeys(NAMES), loop.said
    assert_same(run, usual)
    assert incidents_of(run) == ""
    opened = rows(run)
    assert opened
    assert {row.n_clients for row in opened} == {len(NAMES)}
    assert {row.key_id for row in opened} == {here.bundle("server").card_keys.key_id}
    for number, name in enumerate(OFFICERS):
        log = here.folder / "authority" if name == "authority" else here.officer_folder(name)
        fetched = (run / OFFICERS_OPENINGS[number]).read_text()
        assert fetched == (log / OPENINGS).read_text()
    site = here.consortium.site
    by = auditor(site.folder / "bundles/client", None, None)
    of = Provenance.of(read_run(run), here.task, opened, by, shipped=True)
    parties = {row[0]: row[1:] for row in of.tables()[0].rows}
    assert [parties[name][0] for name in OFFICERS] == ["authority", "officer", "officer"]
    for name in OFFICERS:
        own = site.keys / name if name == "authority" else site.folder / name
        certificate = CertificateFile.parse((own / IDENTITY_CERTIFICATE).read_text()).identity
        assert parties[name][1] == certificate.fingerprint(hashes.SHA256()).hex()
        assert parties[name][-1] == "valid"
        assert answered(run, OFFICERS_OPENINGS[number]) == answered(run)
    assert not (run / OFFICERS_OPENINGS[3]).exists()


def numbers_of(loop):
    return {number.name: number.values for number in loop.server.monitor.numbers()}


@pytest.mark.parametrize("name", OTHERS)
def test_an_officer_that_is_killed_in_mid_run_stops_nothing_and_is_named(job, usual, name):
    """From then on two of three open; each round says who is away."""
    here = job("run.rounds=3")
    loop, at = WithOfficers(here), {}

    async def killed(_loop):
        await loop.wait_for("^Round 1/")
        at["before"] = numbers_of(loop)
        await loop.kill(name)

    loop.run(killed)
    run, number = here.folder / "run", OFFICERS.index(name)
    assert {row.n_clients for row in rows(run)} == {len(NAMES)}
    assert len(answered(run, OFFICERS_OPENINGS[number])) < len(answered(run))
    told = [json.loads(line) for line in incidents_of(run).splitlines()]
    assert told
    assert {(row["name"], row["client"]) for row in told} == {("officers", "")}
    assert {row["reason"].split(":")[0] for row in told} == {f"officer {name}"}
    assert len(told) == len({row["round"] for row in told})
    assert at["before"]["officers_connected"] == {(): 3}
    assert at["before"]["authority_connected"] == {(): 1}
    assert numbers_of(loop)["client_missed"] == {("officers", "dropped"): len(told)}


def test_an_officer_that_comes_back_is_given_all_cards(job):
    """It has forgotten them, and answers again."""
    here = job("run.rounds=4")
    loop = WithOfficers(here)

    async def restarted(_loop):
        await loop.wait_for("^Round 1/")
        await loop.kill("olga")
        await loop.wait_for("^Round 2/")
        loop.start("olga")

    loop.run(restarted)
    run = here.folder / "run"
    there = {number for number, *_ in answered(run, OFFICERS_OPENINGS[1])}
    assert {1, 4} <= there
    assert {row.n_clients for row in rows(run)} == {len(NAMES)}


def test_the_authority_may_be_the_one_that_is_away(job, usual):
    """Officers are alike: the first has no more to say than the others."""
    here = job()
    loop = WithOfficers(here)
    loop.keeper = None
    loop.run()
    assert_same(here.folder / "run", usual)
    assert "the authority: is away" in incidents_of(here.folder / "run")


def test_a_run_that_two_officers_leave_ends_in_words(job):
    """With the number that is needed, and who is away."""
    here = job("run.rounds=50")
    loop = WithOfficers(here)

    async def killed(_loop):
        await loop.wait_for("^Round 1/")
        for name in OTHERS:
            await loop.kill(name)

    with pytest.raises((PeerError, OpeningRefused), match=r"1 of 3 officers.*and 2 are needed"):
        loop.run(killed)


def test_a_run_whose_officers_never_call_ends_in_words(job):
    """Before the first round."""
    here = job()
    loop = WithOfficers(here, joining_s=1.0)
    loop.absent = {*OTHERS}
    with pytest.raises(PeerError, match="1 of 3 officers have called within 1 s, and 2 are needed"):
        loop.run()


class Liar(AuthorityProcess):
    """Adds one to a coefficient of its first sum."""

    async def _key_sums(self, *about):
        body = bytearray(await super()._key_sums(*about))
        body[28] ^= 1
        return bytes(body)


class Short(AuthorityProcess):
    """Leaves a sum out."""

    async def _key_sums(self, *about):
        return (await super()._key_sums(*about))[KEY_SUM_BYTES:]


class Large(AuthorityProcess):
    """Answers with sums of more keys than there are."""

    async def _key_sums(self, *about):
        return bytes.fromhex("ffffff7f") * (len(await super()._key_sums(*about)) // 4)


class Long(AuthorityProcess):
    """Answers with more than an answer has."""

    async def _key_sums(self, *about):
        return secrets.token_bytes(2**20)


class Refuser(AuthorityProcess):
    """Refuses all cards."""

    def _taken(self, link, body, announced):
        given = bodies.parsed(bodies.CardsGiven, body, link.name)
        return bodies.cards_taken(dict.fromkeys(given.cards, "it does not please me"))


class Silent(AuthorityProcess):
    """Is asked for sums, and says nothing."""

    async def _key_sums(self, *about):
        await asyncio.sleep(3600)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Liar, "gave a wrong sum of keys for"),
        (Short, "sums of keys of 8192 bytes, expected 2 sums"),
        (Large, "no sum of 5 keys has so large a coefficient"),
        (Long, "KEY_SUMS_ANSWER of 1048576 bytes, at most 16384 fit"),
        (Refuser, "refuses the card of alice: it does not please me"),
        (Silent, "no answer within 5 s"),
    ],
    ids=lambda of: getattr(of, "__name__", ""),
)
def test_an_officer_that_misbehaves_stops_nothing_and_is_named(job, usual, kind, reason):
    """Once a round, and the model is that of the others."""
    here = job()
    loop = WithOfficers(here, kinds={"otto": kind})
    loop.run()
    run = here.folder / "run"
    assert_same(run, usual)
    told = [json.loads(line) for line in incidents_of(run).splitlines()]
    assert told
    assert all(row["reason"].startswith("officer otto: ") for row in told)
    assert reason in told[0]["reason"]
    assert [row["round"] for row in told] == sorted({row["round"] for row in told})


def test_scores_of_profiles_are_opened_by_the_officers_parts(consortium, tmp_path):
    """As a simulation's: the same clients are selected, and so the model is the same."""
    sealed = [s for s in SEALED if not s.startswith("exchange.encrypt")]
    encrypt = "exchange.encrypt=statistics,profiles"
    settings = *sealed, encrypt, *SELECTIONS["fedprof"]
    here = OfficersJob(consortium, tmp_path / "job", settings, made_up_task())
    wanted = model_of(here.simulated(consortium.key_set()))
    WithOfficers(here).run()
    run = here.folder / "run"
    assert_same(run, wanted)
    assert incidents_of(run) == ""
    assert "profile/score" in {row.name for row in rows(run)}
    assert answered(run, OFFICERS_OPENINGS[2]) == answered(run)


def test_officers_are_asked_all_at_once(job, usual):
    """Each waits for the other to be asked, and neither is late."""
    here, asked = job(), {}

    class Waits(AuthorityProcess):
        async def _key_sums(self, link, body, announced):
            about = bodies.parsed(bodies.OpenRequest, body, link.name)
            met = asked.setdefault((about.round, about.name), asyncio.Barrier(len(OTHERS)))
            await met.wait()
            return await super()._key_sums(link, body, announced)

    WithOfficers(here, kinds=dict.fromkeys(OTHERS, Waits)).run()
    assert_same(here.folder / "run", usual)
    assert asked
    assert incidents_of(here.folder / "run") == ""


def test_an_authority_with_officers_opens_nothing_alone(job):
    """Whoever asks it for a total is refused, and that is logged."""
    here = job()
    loop = WithOfficers(here)
    process = AuthorityProcess(
        loop.keeper, here.config, loop.officer("olga")._log, loop.said.append
    )
    assert type(process._role).__name__ == "CheckingOfficer"
    assert not hasattr(process._role, "open")


def test_settings_of_other_officers_than_the_consortiums_are_refused(job):
    """By the server, and by each officer, with both numbers."""
    here = job("exchange.threshold=3")
    words = "exchange.officers = 3, of whom 3 open sums, and the consortium's keys are of 3, of"
    with pytest.raises(ConfigError, match=words):
        WithOfficers(here).officer("olga")
    loop = WithOfficers(here)
    loop.keeper, loop.absent = None, {*OTHERS}
    with pytest.raises(ConfigError, match=words):
        loop.run()


def leaks(here):
    record = here.record
    again = replayed(record.config, here.task, lambda _done, _all: None, record.participants)
    return leaks_in(FolderEvidence.of(record), again.ledger, precision_of(here.task.model))


def test_an_audit_finds_lists_that_officers_were_shown(job):
    """None in an honest run; two lists, or a short one, in an officer's log are found.

    An officer's own log is held against the folder's copy of it: one that was away lacks rows.
    """
    here = job()
    WithOfficers(here).run()
    path = here.folder / "run" / OFFICERS_OPENINGS[1]
    about = [leak for leak in leaks(here) if leak.what not in SCORING]
    assert about == []
    honest = path.read_text()
    own = here.officer_folder(OTHERS[0]) / OPENINGS
    assert FolderEvidence.of(here.record, own).differences == ()
    path.write_text("".join(honest.splitlines(keepends=True)[:-2]))
    assert FolderEvidence.of(here.record, own).differences == ()
    for name in (OFFICERS_OPENINGS[0], OFFICERS_OPENINGS[2]):
        (here.folder / "run" / name).unlink()
    (one, two) = FolderEvidence.of(here.record, own).differences
    assert one.why == two.why == "opened, and not in the folder"
    own.write_text(path.read_text())
    assert FolderEvidence.of(here.record, own).differences == ()
    row = json.loads(honest.splitlines()[0])
    other = row | {"signers": row["signers"][:4], "n_clients": 4}
    path.write_text(honest + json.dumps(other) + "\n")
    assert "officers were shown 2 lists" in {leak.why.split(":")[0] for leak in leaks(here)}
    few = row | {"signers": row["signers"][:2], "n_clients": 2}
    path.write_text(honest + json.dumps(few) + "\n")
    assert "opened of 2 clients, below 3" in {leak.why for leak in leaks(here)}
    path.write_text(honest + json.dumps(row | {"more": 1}) + "\n")
    assert (path.name, "more") in {(leak.who, leak.what) for leak in leaks(here)}
