"""What an officer signs: who, when, of which parties, keys and files; and the check of all that."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from audited_runs import expected, settings, task_of
from click.testing import CliRunner
from consortium_files import BUNDLES, CLIENTS, SERVER, joined, make_consortium, revoke
from made_findings import FINDINGS

import securefl
from securefl.audit import audits
from securefl.audit.encryption.opened import answered_again
from securefl.audit.exposure.evidence import FolderEvidence, leaks_in
from securefl.audit.provenance import (
    BY_NAME,
    OF_LATER_KEYS,
    Auditor,
    ConsortiumFiles,
    Party,
    Provenance,
    account,
    differences,
)
from securefl.build.training import precision_of
from securefl.errors import CertificateRefused, ConfigError, RunFolderError
from securefl.exchange.policy import OpeningRule, Policy
from securefl.federation.ledger import utc_now
from securefl.federation.lineage import Shown, Statement, beginning, extended
from securefl.federation.opening import Opening
from securefl.network.models_shown import CONTRADICTION, Contradiction, Said
from securefl.runs.folder_files import OPENINGS
from securefl.runs.folder_reader import read_rows, read_run
from securefl.runs.session import PROCESSES
from securefl_cli import audit_report
from securefl_cli.audit_report import auditor
from securefl_cli.main import main
from securefl_keys.identity import load_identity
from securefl_keys.roster import load_roster

pytestmark = pytest.mark.usefixtures("quick", "cheap_guesses")


@pytest.fixture(scope="module")
def sealed(tmp_path_factory):
    """Return the folder of a sealed run on a task of one's own."""
    folder = tmp_path_factory.mktemp("sealed") / "run"
    securefl.run(settings("fedtan"), task_of("fedtan"), out=folder)
    return folder


def provenance_of(folder, by):
    run, openings = read_run(folder), read_rows(folder / OPENINGS, Opening)
    return Provenance.of(run, task_of("fedtan"), openings, by, shipped=False)


def test_it_names_times_versions_keys_sizes_and_the_users_own_model(sealed):
    """Classes, shapes and counts, never the names of defaults; digests of data stay at home."""
    before, found = utc_now(), provenance_of(sealed, Auditor())
    task = task_of("fedtan")
    assert found.began <= found.ended <= before <= found.made
    assert [use.refused for use in found.keys] == [0]
    assert found.keys[0].opened == len((sealed / OPENINGS).read_text().splitlines())
    assert found.keys[0].key_id == found.sessions[0]["key_id"]
    assert {n.train for n in found.data.values()} == {len(y) for _, y in task.clients}
    assert found.task.model.name == "torch.nn.modules.container.Sequential"
    assert "model" not in found.settings
    assert {data.sha256 for data in found.task.clients.values()} == {None}
    text = json.dumps(found.as_json()) + str(found.facts()) + str(found.tables())
    assert "digits" not in text
    assert "mlp" not in text
    assert {party.name for party in found.parties} == {"authority", "server", *found.data}
    assert {row[2] for row in found.tables()[0].rows} == {"none: no process of its own"}
    processes = [session | {"engine": PROCESSES} for session in found.sessions]
    apart = replace(found, sessions=processes)
    assert {row[2] for row in apart.tables()[0].rows} == {"no --keys given"}


def test_each_file_counts_and_a_change_is_named(sealed, tmp_path):
    """Changed by a byte, missing, or not there before."""
    folder = shutil.copytree(sealed, tmp_path / "run")
    found = replace(FINDINGS, provenance=provenance_of(folder, Auditor()).as_json()).to_json()
    assert differences(folder, found) == []
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) >= 9
    for name in names:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if content else b"x")
        assert differences(folder, found) == [f"{name}: changed"]
        (folder / name).unlink()
        assert differences(folder, found) == [f"{name}: missing"]
        (folder / name).write_bytes(content)
    (folder / "more.txt").write_text("")
    assert differences(folder, found) == ["more.txt: was not there"]
    (folder / "more.txt").unlink()
    (folder / "more" / "deep").mkdir(parents=True)
    assert differences(folder, found) == ["more/deep/: was not there"]
    (folder / "more" / "deep").rmdir()
    (folder / "more").rmdir()
    for name in ("audit.html", "audit.json", "audit.north.sig"):
        (folder / name).write_text("of a report that lies in the folder")
    assert differences(folder, found, None) == []  # of one that does not
    with pytest.raises(RunFolderError, match="name no files"):
        differences(folder, b"{}")


def test_the_authoritys_own_log_is_held_against_the_folders(sealed, tmp_path):
    """A row too few or too many is a leak; other runs' rows are nobody's business.

    A row of which one field is another is one difference, of one opening, whichever field it is.
    """
    run, task = read_run(sealed), task_of("fedtan")
    lines = (sealed / OPENINGS).read_text().splitlines()
    first = json.loads(lines[0])
    other = json.dumps(first | {"run": "ab" * 32, "model": "cd" * 32})
    unnamed = json.dumps(first | {"run": "ab" * 32})
    own = tmp_path / "own.jsonl"

    def leaks(rows):
        own.write_text("".join(f"{row}\n" for row in rows))
        evidence = FolderEvidence.of(run, own)
        return [
            leak.why for leak in leaks_in(evidence, expected(run, task), precision_of(task.model))
        ]

    assert leaks([other, *lines, other]) == []
    assert leaks([*lines, unnamed]) == ["opened, and not in the folder"]
    assert leaks(lines[1:]) == ["not in the authority's own log"]
    more = json.dumps(json.loads(lines[0]) | {"round": 99})
    assert leaks([*lines, more]) == ["opened, and not in the folder"]
    changes = {
        "n_values": first["n_values"] + 1,
        "n_clients": 4,
        "signers": first["signers"][:2],
        "model": "ab" * 32,
        "epoch": 7,
        "key_id": "cd" * 32,
        "name": "update/other",
        "round": 99,
        "run": "ef" * 32,
        "refused": "no",
        "at": "2026-01-01T00:00:00Z",
    }
    for field, value in changes.items():
        (said,) = leaks([json.dumps(first | {field: value}), *lines[1:]])
        assert re.fullmatch(f"{field} .+ in the folder, and .+ in the authority's own log", said)
        found = FolderEvidence.of(run, own)
        assert len(found.all_openings) == len(lines)
        assert answered_again(found.all_openings) == 0
    without = [json.dumps({k: v for k, v in first.items() if k != "at"}), *lines[1:]]
    assert leaks(without) == [
        f"at {first['at']} in the folder, and empty in the authority's own log"
    ]
    few = replace(FolderEvidence.of(run).openings[0], signers=tuple(first["signers"][:2]))
    evidence = replace(FolderEvidence.of(run), openings=[few])
    said = {leak.why for leak in leaks_in(evidence, expected(run, task), precision_of(task.model))}
    assert "opened of 3 clients by its row, 2 by its list, below 3" in said
    with pytest.raises(RunFolderError, match="no log of openings"):
        FolderEvidence.of(run, tmp_path / "nowhere.jsonl")
    with pytest.raises(ConfigError, match="the run's own log, which is to be held against"):
        FolderEvidence.of(run, sealed / OPENINGS)


@pytest.fixture
def audited(monkeypatch):
    """Each audit is found at once, of the folder as it is."""

    def audit_run(folder, _effort, *, by, **_):
        of = provenance_of(folder, by)
        return replace(FINDINGS, provenance=of.as_json(), tables=of.tables())

    monkeypatch.setattr(audits, "audit_run", audit_run)


def invoke(*arguments):
    return CliRunner().invoke(main, ["audit", *map(str, arguments)])


def signing(consortium, words, name, *more):
    """Return the options by which a client signs that has read the report."""
    words.write_text(f"of {name}")
    identity = ("--sign", consortium.root / name, "--passphrase-file", words)
    return "--keys", consortium.keys, *identity, *(more or ("--yes",))


@pytest.fixture
def report(consortium, tmp_path, audited):
    """Return the folder of a run in the clear, with a report that nobody has signed yet."""
    folder = tmp_path / "run"
    securefl.run(settings("nothing"), task_of("fedtan"), out=folder)
    assert invoke(folder, "--keys", consortium.keys).exit_code == 0
    return folder


def test_a_report_names_who_audited_and_parties_and_not_who_signs(sealed, report, consortium):
    """By the consortium's files, of the versions that it names."""
    found = json.loads((report / "audit.json").read_text())["provenance"]
    assert found["audited_by"] == account()
    roster = load_roster(consortium.keys)
    assert found["consortium"]["roster_version"] == roster.file.version
    parties = found["parties"]
    known = {p["name"] for p in parties if len(p["fingerprint"]) == 64 and p["since"] < p["until"]}
    assert known == {SERVER, "Nord"}
    assert {p["name"] for p in parties} - known == {f"client-{i}" for i in range(1, 4)}
    keys_of = {p["name"]: p["key"] for p in parties}
    assert keys_of[SERVER] == roster.members[SERVER].key_id
    assert {p["name"] for p in parties if p["by_name"]} == known  # the run is in the clear
    assert (report / "audit.html").read_text().count(BY_NAME) == len(known)
    foreign = invoke(sealed, "--keys", consortium.keys)
    assert foreign.exit_code != 0
    assert "under other keys than those of --keys" in foreign.output
    assert "audit without --keys" in " ".join(foreign.output.split())


def test_a_report_that_nobody_signed_is_refused(report, consortium):
    """With keys; without them it is said that no signature was checked."""
    bundle = ("--keys", consortium.bundle("client"), "--verify")
    unsigned = invoke(report, *bundle)
    assert unsigned.exit_code != 0
    assert "not signed; no signature lies beside it" in unsigned.output
    whole = (
        f"{report / 'audit.html'} and each file of {report} are as {report / 'audit.json'} says."
    )
    assert whole in unsigned.output
    plain = invoke(report, "--verify")
    assert plain.exit_code == 0, plain.output
    assert "No signature was checked" in plain.output
    found = json.loads(invoke(report, "--verify", "--json").stdout)
    assert (found["signatures_checked"], found["problems"]) == (False, [])
    (problem,) = json.loads(invoke(report, *bundle, "--json").stdout)["problems"]
    assert problem.endswith("not signed; no signature lies beside it")
    assert "goes with --keys" in invoke(report, "--sign", consortium.root / CLIENTS[0]).output
    words = report.parent / "words"
    ways = (("--verify",), bundle, signing(consortium, words, CLIENTS[0]))
    page = report / "audit.html"
    honest = page.read_bytes()
    assert b">Weak<" in honest
    page.write_bytes(honest.replace(b">Weak<", b">Holds<"))
    for options in ways:
        failed = invoke(report, *options)
        assert failed.exit_code != 0
        assert "page: not the one that was written with these findings" in failed.output
    page.write_bytes(honest)
    numbers = report / "audit.json"
    found = numbers.read_bytes()
    for said, other in ((b'"weak"', b'"holds"'), (b'"roster_version": ', b'"roster_version": 9')):
        numbers.write_bytes(found.replace(said, other, 1))
        assert numbers.read_bytes() != found
        for options in ways:
            failed = invoke(report, *options)
            assert failed.exit_code != 0
            assert "JSON: not the findings that the page was made of" in failed.output
    numbers.write_bytes(found)
    (report / "metrics.jsonl").write_text("{}")
    for options in ways:
        failed = invoke(report, *options)
        assert failed.exit_code != 0
        assert "metrics.jsonl: changed" in failed.output
    assert not list(report.glob("*.sig"))


def test_members_sign_the_same_bytes_and_anybody_with_the_bundle_checks(
    report, consortium, tmp_path
):
    """Each changed file of report or run makes the check fail; a revoked signer fails alone."""
    first, second = CLIENTS[0], CLIENTS[2]
    keys, bundle = ("--keys", consortium.keys), ("--keys", consortium.bundle("client"), "--verify")
    content = {name: (report / name).read_bytes() for name in ("audit.html", "audit.json")}
    for name in (first, second):
        done = invoke(report, *signing(consortium, tmp_path / "words", name))
        assert done.exit_code == 0, done.output
        assert "audit.json:\n  OPEN    Bounds on ε\n  HOLDS   Encryption\n" in done.output
    for name in (*content, f"audit.{first}.sig", f"audit.{second}.sig"):
        assert (report / name).stat().st_mode & 0o077 == 0
    (report / f"audit.{first}.sig").rename(report / "audit.sig")  # as an older release called it
    checked = invoke(report, *bundle)
    assert checked.exit_code == 0, checked.output
    for name in (first, second):
        assert f"  {name} (client), by its own clock on 2" in checked.output
    version = load_roster(consortium.bundle("client")).file.version
    found = json.loads(invoke(report, *bundle, "--json").stdout)
    assert {of["name"]: of["role"] for of in found["signed_by"]} == dict.fromkeys(
        (first, second), "client"
    )
    assert (found["problems"], found["roster_version"]) == ([], version)
    ca = consortium.ca.fingerprint
    assert found["certificate_authority"] == ca
    named = f"of Nord, certificate authority SHA-256 {ca}, as in the report"
    assert f"Checked by roster version {version} {named}" in checked.output
    assert named.removeprefix("of ") in done.stderr
    assert "ask for the newest bundle" in checked.output
    assert "is signed (audit." in invoke(report, *keys).output  # and not written over
    assert {name: (report / name).read_bytes() for name in content} == content
    every_changed_file_is_named(report, bundle)
    revoke(consortium.keys, first)
    revoked = invoke(report, *keys, "--verify")
    assert revoked.exit_code != 0
    found = invoke(report, *keys, "--verify", "--json")
    (problem,) = json.loads(found.stdout)["problems"]
    assert (found.exit_code, [of["name"] for of in json.loads(found.stdout)["signed_by"]]) == (
        1,
        [second],
    )
    assert "was revoked" in problem
    assert "was revoked, and nobody knows when" in revoked.output
    assert "have another member read and sign the report" in revoked.output
    assert "use neither run nor report" not in revoked.output
    assert "sign it anew" not in revoked.output
    (report / "metrics.jsonl").write_text("{}")
    assert "use neither run nor report" in invoke(report, *keys, "--verify").output
    assert f"Signatures that hold:\n  {second} (client)" in revoked.output
    older = invoke(report, *bundle)  # an older bundle knows of no revocation, and says which it is
    assert "metrics.jsonl: changed" in older.output
    assert "revoked" not in older.output.replace("no later revocation", "")


def test_a_member_whom_the_roster_does_not_list_is_no_signer(report, consortium, tmp_path):
    """Of a bundle of before it joined: said so, and no word on files that differ."""
    joined(consortium.keys, tmp_path, "olga", "of olga", "officer")
    words = tmp_path / "words"
    words.write_text("of olga")
    identity = ("--sign", tmp_path / "olga", "--passphrase-file", words, "--yes")
    done = invoke(report, "--keys", consortium.keys, *identity)
    assert done.exit_code == 0, done.output
    checked = ("--keys", consortium.bundle("client"), "--verify")
    version = load_roster(consortium.bundle("client")).file.version
    refused = invoke(report, *checked)
    assert refused.exit_code != 0
    assert f"audit.olga.sig: 'olga' is not listed by roster version {version}" in refused.output
    assert "ask for the newest bundle, and check again" in refused.output
    assert "use neither run nor report" not in refused.output
    told = json.loads(invoke(report, *checked, "--json").stdout)
    assert (told["signed_by"], len(told["problems"])) == ([], 1)
    assert "olga (officer)" in invoke(report, "--keys", consortium.keys, "--verify").output
    revoke(consortium.keys, "olga")  # the only signer: its files are compared all the same
    alone = invoke(report, "--keys", consortium.keys, "--verify")
    assert alone.exit_code != 0
    assert "have another member read and sign the report" in alone.output
    (report / "metrics.jsonl").write_text("{}")
    assert "metrics.jsonl: changed" in invoke(report, "--keys", consortium.keys, "--verify").output


def test_verdicts_are_shown_and_asked_about_before_anything_is_signed(
    report, consortium, tmp_path, monkeypatch
):
    """Nobody at a terminal, or a no: no signature, and no passphrase is read."""
    asked = signing(consortium, tmp_path / "words", CLIENTS[0])[:-1]
    shown = "audit.json:\n  OPEN    Bounds on ε\n"
    piped = CliRunner().invoke(main, ["audit", str(report), *map(str, asked)], input="y\n")
    assert (piped.exit_code, piped.stdout) == (2, "")
    assert "give --yes where they were" in piped.stderr
    on_one = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(audit_report, "sys", on_one)
    (tmp_path / "words").write_text("another's")
    refused = CliRunner().invoke(main, ["audit", str(report), *map(str, asked)], input="n\n")
    assert refused.exit_code == 1
    assert "nothing was signed: read it first" in refused.stderr
    assert not list(report.glob("*.sig"))
    (tmp_path / "words").write_text(f"of {CLIENTS[0]}")
    done = CliRunner().invoke(main, ["audit", str(report), *map(str, asked)], input="y\n")
    assert done.exit_code == 0, done.output
    for told in (piped, refused, done):
        assert shown in told.stderr
    assert done.stderr.index(shown) < done.stderr.index("Are these the verdicts that you have read")
    assert (report / f"audit.{CLIENTS[0]}.sig").exists()
    assert invoke(report, "--yes").exit_code == 2


def test_another_consortium_of_the_same_name_neither_signs_nor_checks(report, consortium, tmp_path):
    """Both authorities are named by their fingerprints; a report that names none says so."""
    other = make_consortium(tmp_path / "other")
    assert other.ca.name == consortium.ca.name
    words = tmp_path / "words"
    for ways in (
        signing(other, words, CLIENTS[0]),
        ("--keys", other.keys, "--verify"),
        ("--keys", other.bundle("client"), "--verify", "--json"),
    ):
        refused = invoke(report, *ways)
        assert refused.exit_code != 0
        assert f"is of the certificate authority {consortium.ca.fingerprint}, " in refused.output
        assert f" of {other.ca.fingerprint}, 'Nord': give the folder" in refused.output
    assert not list(report.glob("*.sig"))
    assert invoke(report).exit_code == 0  # without --keys
    done = invoke(report, *signing(other, words, CLIENTS[0]))
    assert done.exit_code == 0, done.output
    assert f"{other.ca.fingerprint}; the report names none, since it was made" in done.output


def test_a_signature_of_another_certificate_is_not_written_over(report, consortium, tmp_path):
    """Of the same name in another consortium, or no signature at all; one's own is made anew."""
    own, other = signing(consortium, tmp_path / "words", CLIENTS[0]), tmp_path / "other"
    assert invoke(report, *own).exit_code == 0
    assert invoke(report, *own).exit_code == 0
    (path,) = report.glob("*.sig")
    kept = path.read_bytes()
    foreign = make_consortium(other)
    bare = invoke(report, "--out", tmp_path / "bare.html")  # without --keys
    assert bare.exit_code == 0, bare.output
    place = tmp_path / path.name.replace("audit.", "bare.")
    for content in (kept, b"a note"):
        place.write_bytes(content)
        options = ("--out", tmp_path / "bare.html")
        refused = invoke(report, *options, *signing(foreign, tmp_path / "words", CLIENTS[0]))
        assert refused.exit_code != 0
        assert "it is not written over; move it away" in refused.output
        assert place.read_bytes() == content
    assert path.read_bytes() == kept


def every_changed_file_is_named(folder, bundle):
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        path.write_bytes(content + b"x")
        failed = invoke(folder, *bundle)
        assert failed.exit_code != 0
        assert path.name in failed.output
        assert "docs/officer.md, If it differs" in failed.output
        path.write_bytes(content)
    copied = next(folder.glob("audit.*.sig"))
    shutil.copy(copied, folder / "audit.another.sig")
    assert invoke(folder, *bundle).output.count("by its own clock") == 2
    (folder / "audit.another.sig").unlink()
    (folder / "audit.nobody.sig").write_text("{}")
    assert "audit.nobody.sig: " in invoke(folder, *bundle).output
    (folder / "audit.nobody.sig").unlink()


def test_signing_and_checking_do_nothing_else(sealed, consortium, tmp_path):
    """An option of an audit beside them would be one that does nothing."""
    words = tmp_path / "words"
    for options in (("--full",), ("--openings", "log"), ("--verify",)):
        refused = invoke(sealed, *signing(consortium, words, CLIENTS[2]), *options)
        assert refused.exit_code == 2
        assert "--sign and --verify take the report that is there" in refused.output


def test_certificates_and_policy_of_the_audit_are_not_taken_for_the_runs(sealed):
    """Members of the run's key are more than names; a policy signed since may forbid the run."""
    mine = read_rows(sealed / OPENINGS, Opening)[0]
    member = Party(SERVER, "server", "ab" * 32, "2026-01-01", "2999-01-01")
    files = ConsortiumFiles("Nord", 3, 2, "cd" * 32)

    def found(key_id, **rules):
        by = Auditor([member], key_id, mine.epoch + 1, consortium=files, policy=Policy(**rules))
        of = provenance_of(sealed, by)
        (server,) = (party for party in of.parties if party.name == SERVER)
        (row,) = (row for row in of.tables()[0].rows if row[0] == SERVER)
        assert row[-1].endswith("; its part was played by the one process")
        return server.state(of.began, of.ended), of.facts()["Consortium"]

    n = len(read_rows(sealed / OPENINGS, Opening))
    state, said = found(mine.key_id)
    assert state == "valid"
    assert said.startswith("Nord, by --keys as of the audit: roster version 3, policy version 2 (")
    assert said.endswith(
        "is not recorded; by names and numbers of clients this policy allows all "
        f"{n} openings of the run"
    )
    state, said = found("ef" * 32, min_contributions=5)
    assert state == OF_LATER_KEYS
    assert f"this policy would refuse {n} of {n} openings, first round 1, " in said
    assert ": 3 contributions, at least 5 (" in said
    _, said = found(mine.key_id, rules=(OpeningRule("update/*"),))
    assert f"this policy would refuse {n - updates(sealed)} of {n} openings, first" in said
    assert "the policy opens no '" in said


def updates(folder):
    return sum(row.name.startswith("update/") for row in read_rows(folder / OPENINGS, Opening))


@pytest.mark.parametrize(
    ("dates", "state"),
    [
        ({"since": "2026-01-01", "until": "2027-01-01"}, "valid"),
        ({"since": "2026-06-02", "until": "2027-01-01"}, "not valid all the time"),
        ({"since": "2026-01-01", "until": "2026-06-02"}, "not valid all the time"),
        ({"revoked": "2026-06-02"}, "revoked on 2026-06-02, before the run ended"),
        ({"revoked": "2026-07-01"}, "revoked on 2026-07-01, after the run"),
        ({}, "-"),
    ],
)
def test_a_partys_certificate_has_a_state_at_the_run(dates, state):
    assert Party("a", "client", **dates).state("2026-06-01", "2026-06-03") == state


def test_the_authoritys_own_certificate_is_named_from_its_key_folder_and_any_bundle(consortium):
    """It is in no roster; a bundle of an older release lacks it; a member's is none."""
    old = consortium.bundle("client")
    places = [consortium.keys, *map(consortium.bundle, BUNDLES)]
    named = [{p.name: p for p in auditor(place, None, None).members} for place in places]
    authority, server = named[0]["authority"], named[0][SERVER]
    assert (authority.role, len(authority.fingerprint), len(authority.key)) == ("authority", 64, 64)
    assert [found["authority"] for found in named] == [authority] * 4
    own = old / "consortium/authority.crt"
    shutil.copy(consortium.root / CLIENTS[0] / "identity.crt", own)
    with pytest.raises(CertificateRefused, match="for the role client, not for authority"):
        auditor(old, None, None)
    own.unlink()
    assert "authority" not in {party.name for party in auditor(old, None, None).members}
    shown = Provenance(
        "", "", (), [authority, server], (), {}, {}, 0, None, {}
    ).tables()  # both digests, each under its name
    assert shown[0].columns[2:4] == ("SHA-256 of the certificate", "SHA-256 of the public key")
    assert shown[0].rows[0][2:4] == (authority.fingerprint, authority.key)


STUDY = """
from audited_runs import task_of

def task():
    return task_of("fedtan")

def broken():
    raise RuntimeError("no file")


def number():
    return 3
"""


def test_a_run_on_an_own_task_is_audited_and_signed_from_the_command_line(
    sealed, consortium, tmp_path, monkeypatch
):
    """By a function that gives the task; one that gives something else is refused."""
    (tmp_path / "own_study.py").write_text(STUDY)
    monkeypatch.syspath_prepend(tmp_path)
    given = []

    def audit_run(folder, _effort, *, task, by, **_):
        given.append(task)
        return replace(FINDINGS, provenance=provenance_of(folder, by).as_json())

    monkeypatch.setattr(audits, "audit_run", audit_run)
    folder, words = shutil.copytree(sealed, tmp_path / "run"), tmp_path / "words"
    page = ("--keys", consortium.keys, "--out", tmp_path / "report.html")
    monkeypatch.setattr("securefl.audit.provenance._parties", lambda *_: iter(()))
    done = invoke(folder, "--task", "own_study:task", *page)
    assert done.exit_code == 0, done.output
    done = invoke(folder, *page, *signing(consortium, words, CLIENTS[2]))
    assert done.exit_code == 0, done.output
    assert (tmp_path / f"report.{CLIENTS[2]}.sig").exists()
    assert isinstance(given[0], securefl.Task)
    assert f"  {CLIENTS[2]} (client), by" in invoke(folder, *page, "--verify").output
    assert "returns a int: have it return" in invoke(folder, "--task", "own_study:number").output
    assert "raised a RuntimeError (no file)" in invoke(folder, "--task", "own_study:broken").output
    assert "is missing): name a function" in invoke(folder, "--task", "own_study:none").output
    assert "has one task" in invoke(folder, "--task", "own_study:task", "--site", "a=b").output


def contradicting(consortium, name=SERVER, *, lies=True, job="ab" * 32):
    """Return what a client keeps of two statements on one round, the second of another model."""
    identity = load_identity(consortium.root / name, f"of {name}")

    def said(model):
        lineage = extended(beginning(job), Shown(1, model))
        signed = identity.private_key.sign(Statement.content(job, 1, lineage)).hex()
        return Said(Statement(job, 1, lineage, signed), identity.certificate_pem)

    models = "11" * 32, ("22" if lies else "11") * 32
    known, then = map(said, models)
    return CONTRADICTION.dump_json(Contradiction(known, then, [Shown(1, models[1])]))


def test_two_models_that_a_server_has_signed_are_proof_for_anybody_with_the_bundle(
    consortium, tmp_path
):
    """Of one server of the consortium; nothing else is."""
    file = tmp_path / "JOB.contradiction.json"

    def checked(content, *more):
        file.write_bytes(content)
        bundle = ("--keys", str(consortium.bundle("client")))
        return CliRunner().invoke(main, ["keys", "contradiction", str(file), *bundle, *more])

    proof = checked(contradicting(consortium))
    assert proof.exit_code == 0, proof.output
    assert f"{SERVER}, server of Nord, has signed what cannot both be true" in proof.output
    found = json.loads(checked(contradicting(consortium), "--json").stdout)
    assert found == {"server": SERVER, "consortium": "Nord", "job": found["job"], "rounds": [1, 1]}
    for content, why in (
        (contradicting(consortium, lies=False), "may both be true"),
        (contradicting(consortium, CLIENTS[2]), "not for server as needed"),
        (contradicting(consortium).replace(b'"round":1', b'"round":2'), "not signed by the server"),
        (b"{}", "JOB.contradiction.json"),
    ):
        refused = checked(content)
        assert refused.exit_code == 2
        assert why in refused.output
