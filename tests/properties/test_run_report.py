"""The report of a run: its numbers as the folder has them, in one file that asks for nothing."""

import json
import os
import re
import shutil
from dataclasses import asdict, replace

import pytest
from browser import CHROMIUM, browser
from click.testing import CliRunner

import securefl
from securefl.algorithms.solvers.fedprox import FedProx
from securefl.audit.encryption.opened import EncryptionEvidence
from securefl.audit.exposure.evidence import FolderEvidence, leaks_in
from securefl.errors import RunFolderError
from securefl.export.card import model_card
from securefl.federation.incidents import Incident
from securefl.federation.ledger import Entry
from securefl.federation.opening import Opening
from securefl.report.census import clients, rounds_counted
from securefl.report.repeated import commands_of_roles, repeated
from securefl.report.run_page import comparison_page, run_page
from securefl.runs.folder_files import ACCURACY, INCIDENTS, LEDGER, METRICS, OPENINGS, REPORT
from securefl.runs.folder_reader import read_rows, read_run, unopened, untold
from securefl.runs.round_metrics import ClientScore
from securefl.selection.round_participants import RoundParticipants
from securefl.types import Kind
from securefl_cli.compare import compare
from securefl_cli.main import main
from securefl_cli.report import report
from securefl_cli.status import status

RUNS = {
    "sealed": ("algorithm.name=fedtan", "run.name=sealed"),
    "own models": ("algorithm.name=fedbn", "exchange.encrypt=none", "run.name=own-models"),
    "private": (
        *("algorithm.name=fixbn", "algorithm.weights=uniform", "privacy.level=client"),
        *("privacy.sigma=2.0", "run.name=private"),
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Runs of two rounds, by name."""
    made = {}
    for name, settings in RUNS.items():
        made[name] = tmp_path_factory.mktemp("runs") / name.replace(" ", "-")
        config = securefl.load_config(settings=("run.rounds=2", *settings))
        securefl.run(config, out=made[name])
    return made


def text_of(page):
    """What a reader reads, white space squeezed."""
    body = page[page.index("<body>") :]
    return " ".join(re.sub(r"<[^>]+>", " ", body).replace("\N{NO-BREAK SPACE}", " ").split())


@pytest.mark.parametrize("name", RUNS)
def test_it_says_what_the_folder_has(folders, name):
    record = read_run(folders[name])
    said = text_of(run_page(record))
    last = record.metrics[-1]
    assert f"after {last.round} of 2 rounds" in said
    assert "5 clients" in said
    assert all(f"client-{i}" in said for i in range(1, 6))
    assert "algorithm.name" in said
    assert f"securefl run {folders[name]}/config.json" in said
    parts = {
        "sealed": ("nothing; only totals of gradients, parameters, statistics", "Opened Refused"),
        "own models": ("the worst client in the last round is", "parameters"),
        "private": ("at δ = 1e-05", "From whom it protects"),
    }
    assert all(part.lower() in said.lower() for part in parts[name])
    assert ("s score stands in metrics.jsonl" in said) == (name == "own models")
    shared = "no curve of the worst client: all have one model, which is scored on test data that"
    assert (shared in said) == (name != "own models")
    assert ("securefl.Task(client_tests=…)" in said) == (name != "own models")
    assert ("What was asked for under them" in said) == (name != "own models")
    phases = ("clients, messages", "scoring", *(["opening"] if name != "own models" else []))
    assert all(phase in said for phase in phases)
    seconds = sum(of.seconds for of in record.metrics)
    assert sum(sum(of.phases.values()) for of in record.metrics) == pytest.approx(seconds, rel=0.2)


class Mine(FedProx):
    """A solver that is nobody else's."""


def test_own_code_and_keys_are_part_of_what_repeats_it(folders):
    record = read_run(folders["sealed"])
    name = f"{__name__}:Mine"
    own = replace(record, config=record.config.with_choices([Mine()]))
    assert f"`securefl --code {name} run {record.path}/config.json " in repeated(own)
    of_a_script = type("Mine", (FedProx,), {"__module__": "__main__", "__annotations__": {}})
    script = replace(record, config=record.config.with_choices([of_a_script()]))
    assert repeated(script).endswith("by the script that began it, which has `__main__:Mine`.")
    assert "add `--keys FOLDER`" in repeated(record)
    assert "--keys" not in repeated(read_run(folders["own models"]))


def test_processes_are_repeated_by_a_line_for_each_role(folders, tmp_path):
    """Each line is read by its command, all but the folders that are not there."""
    run = shutil.copytree(folders["sealed"], tmp_path / "run")
    started = {"bundle": "/b", "identity": "/i", "listen": "127.0.0.1:0"}
    patience = {"joining_s": 1, "timeout_s": 1, "away_s": 1}
    (run / "server.json").write_text(json.dumps(started | patience))
    record = read_run(run)
    exchange = record.config.exchange.model_copy(update={"officers": 3})
    config = record.config.model_copy(update={"exchange": exchange})
    roles = dict(commands_of_roles(replace(record, config=config)).rows)
    assert list(roles) == ["server", "authority", "each other officer", "each site"]
    assert list(dict(commands_of_roles(record).rows)) == ["server", "authority", "each site"]
    for line in roles.values():
        words = line.replace("config.json", str(run / "config.json"))
        words = words.replace("HOST:PORT", "127.0.0.1:7443").split()[1:]
        done = CliRunner().invoke(main, words)
        lacks = any(part in done.output for part in ("consortium/ca.crt", "FOLDER"))
        assert (done.exit_code, lacks) == (2, True), (line, done.output)
    said = text_of(run_page(record))
    assert all(line in said for line in (roles["server"], roles["each site"]))
    assert "all have one model" in said
    own = config.model_copy(update={"algorithm": read_run(folders["own models"]).config.algorithm})
    said = text_of(run_page(replace(record, config=own)))
    said = said.replace("&#39;", "'").replace("&#34;", '"')
    assert "of the worst client: of sites' scores the mean alone is known" in said
    assert 'with "each" the server reads every site\'s, and there is one' in said


def test_a_best_round_before_the_last_is_one_sentence(folders):
    """Of a score over all samples, which is said once."""
    record = read_run(folders["own models"])
    first, last = record.metrics
    better = replace(first, score=0.99, pooled=replace(last.pooled, value=0.99))
    said = text_of(run_page(replace(record, metrics=(better, last))))
    value = f"{100 * last.pooled.value:.1f} %"
    assert f"Accuracy over all samples {value} after 2 of 2 rounds; the best was 99.0 %, in" in said


def test_one_of_several_officers_is_told_no_total(folders):
    record = read_run(folders["sealed"])
    exchange = record.config.exchange.model_copy(update={"officers": 3})
    config = record.config.model_copy(update={"exchange": exchange})
    said = text_of(run_page(replace(record, config=config)))
    who = "each of 3 officers, of whom the authority is one"
    assert f"{who} keys of its own from each client" in said
    assert f"{who} no value: it answers with a sum of keys gradients, parameters" in said
    assert "authority totals over clients" not in said
    assert "authority totals over clients" in text_of(run_page(record))
    assert "1 officer with the server reads nothing more" in said


def test_a_round_that_passed_is_counted_for_nobody(folders):
    """Its clients have sent, and stand in selections.jsonl, as all of a run that draws nobody."""
    record = read_run(folders["own models"])
    assert rounds_counted(record) == dict.fromkeys(clients(record), 2)
    names = clients(record)
    passed = RoundParticipants(2, dict.fromkeys(names, 1), names, uncounted=names)
    less = replace(record, participants=(passed,))
    assert rounds_counted(less) == dict.fromkeys(names, 1)
    one_away = replace(passed, uncounted=names[:1])
    assert rounds_counted(replace(record, participants=(one_away,)))[names[0]] == 1
    said = text_of(run_page(less))
    assert "Client Rounds it counted in Incidents MiB sent Accuracy client-1 1 0" in said


@pytest.mark.parametrize("lost", ["gone", "a pipe", "its first round"])
def test_a_lost_ledger_is_no_all_clear(folders, tmp_path, lost):
    """Of a run in the clear: no reader says "nothing", "nobody" or a number of what it lacks."""
    run = shutil.copytree(folders["own models"], tmp_path / "run")
    ledger, lines = run / LEDGER, (run / LEDGER).read_text().splitlines(keepends=True)
    ledger.unlink()
    if lost == "a pipe":
        os.mkfifo(ledger)
    elif lost == "its first round":
        ledger.write_text("".join(line for line in lines if '"round": 1,' not in line))
    why = "not known: " + ("the ledger lacks round 1" if "round" in lost else "no ledger")
    record = read_run(run)
    said = text_of(run_page(record))
    assert f"Of each client the server could read: {why}." in said
    assert f"Number of clients {why}." in said
    assert "Rounds it counted in" not in said
    assert "It reads" not in said
    assert why in text_of(comparison_page({"a": record}))
    assert f"number of clients {why}" in model_card(run).lower()
    table = CliRunner().invoke(compare, [str(run)], catch_exceptions=False).stdout
    assert "not known" in table
    assert "nothing" not in table
    (row,) = json.loads(CliRunner().invoke(compare, [str(run), "--json"]).stdout)
    assert (row["the_server_could_read"], row["upload_bytes"]) == (why, None)
    if lost != "its first round":
        found = CliRunner().invoke(status, [str(run)]).stdout
        assert "not known, as the ledger lacks the last round" in found
        state = json.loads(CliRunner().invoke(status, [str(run), "--json"]).stdout)
        assert (state["clients"], state["openings"], state["missing"]) == (None, None, {})


@pytest.mark.parametrize("lost", ["all", "the last round"])
def test_lost_logs_of_openings_and_incidents_are_not_nothing(folders, tmp_path, lost):
    """Where the ledger has what an authority sent, and a round names clients that were refused."""
    run = shutil.copytree(folders["sealed"], tmp_path / "run")
    lines = (run / OPENINGS).read_text().splitlines(keepends=True)
    first = "".join(line for line in lines if '"round": 1,' in line)
    incident = json.dumps(asdict(Incident(1, "model", "client-2", "client-2: late"))) + "\n"
    for log, kept in {OPENINGS: first, INCIDENTS: incident}.items():
        (run / log).unlink()
        if lost != "all":
            (run / log).write_text(kept)
    metrics = (run / METRICS).read_text().replace('"dropped": []', '"dropped": ["client-2"]')
    (run / METRICS).write_text(metrics)
    why = "not known: " + ("no log of {}" if lost == "all" else "the log of {} lacks round 2")
    said = text_of(run_page(read_run(run)))
    assert f"What was opened is {why.format('openings')}." in said
    assert "What was asked for under them" not in said
    assert f"Incidents are {why.format('incidents')}." in said
    assert "Client Rounds it counted in MiB sent" in said
    found = CliRunner().invoke(status, [str(run)]).stdout
    assert "not count: not known, as incidents lack the last round" in found
    state = json.loads(CliRunner().invoke(status, [str(run), "--json"]).stdout)
    assert (state["missing"], state["uncounted"]) == (None, None)
    assert state["openings"] == 10  # as the ledger has them
    leaks = leaks_in(FolderEvidence.of(read_run(run)), read_run(run).ledger, "float32")
    assert f"incidents are {why.format('incidents')}" in {leak.why for leak in leaks}


@pytest.mark.parametrize("refused", [False, True])
def test_each_line_of_the_log_of_openings_is_missed(folders, tmp_path, refused):
    """One that is lost beside others of its round, too, by name and round, in report and audit."""
    run = shutil.copytree(folders["sealed"], tmp_path / "run")
    rows = [json.loads(line) for line in (run / OPENINGS).read_text().splitlines()]
    if refused:  # the last total: it was asked for, and not answered
        rows[-1] |= {"refused": "too few", "n_clients": 0}
        ledger = (run / LEDGER).read_text().splitlines(keepends=True)
        answers = [line for line in ledger if '"sender": "authority"' in line]
        (run / LEDGER).write_text("".join(line for line in ledger if line != answers[-1]))
    record, kept = read_run(run), [json.dumps(row) + "\n" for row in rows]
    for i, row in enumerate(rows):
        (run / OPENINGS).write_text("".join(kept[:i] + kept[i + 1 :]))
        why = f"not known: the log of openings lacks {row['name']} of round {row['round']}"
        evidence = FolderEvidence.of(record)
        seen = EncryptionEvidence(record.config, evidence.openings, record.ledger)
        assert seen.unlogged == why
        where = {(leak.round, leak.what) for leak in leaks_in(evidence, record.ledger, "float32")}
        assert (row["round"], row["name"]) in where
    assert f"What was opened is {why}. Put a copy of {OPENINGS} back." in text_of(run_page(record))
    (run / OPENINGS).write_text("".join(kept[1:-1]))
    rest = read_rows(run / OPENINGS, Opening)
    assert unopened(rest, record.ledger).endswith(f"lacks {rows[0]['name']} of round 1, and 1 more")


def test_each_message_and_each_refusal_is_missed(folders):
    """By the bytes of a round, and the clients that its metrics name."""
    record = read_run(folders["sealed"])
    for i, entry in enumerate(record.ledger):
        less = replace(record, ledger=(*record.ledger[:i], *record.ledger[i + 1 :]))
        due = f"not known: the ledger lacks messages of round {entry.round}"
        assert less.unlisted == (due if entry.sender.startswith("client") else "")
    metrics = [replace(record.metrics[0], dropped=("client-1", "client-2"))]
    one = [Incident(1, "model", "client-1", "client-1: late")]
    assert untold(one, metrics) == "not known: the log of incidents lacks client-2 of round 1"


def test_it_asks_for_nothing(folders):
    for page in (run_page(read_run(folder)) for folder in folders.values()):
        assert "default-src 'none'" in page
        assert set(re.findall(r'(?:src|href)="(data:image/png|#|[^"]{,9})', page)) <= {
            *("data:image/png", "#"),
        }
        assert "<script" not in page


def test_several_runs_stand_side_by_side(folders):
    records = {name: read_run(folder) for name, folder in folders.items()}
    said = text_of(comparison_page(records))
    assert all(f"{name} : Accuracy" in said for name in records)
    differ = said[said.index("Settings in which they differ") :]
    assert "algorithm.name fedtan fedbn fixbn" in differ
    assert "run.rounds" not in differ


def test_names_from_outside_are_text(folders):
    """A client, a run, a path that would be a page's elements."""
    record = read_run(folders["sealed"])
    bad = '<img src=x onerror="alert(1)">'
    ledger = tuple(replace(e, sender=bad) if e.sender == "client-1" else e for e in record.ledger)
    page = run_page(replace(record, ledger=ledger))
    assert bad not in page
    assert "&lt;img src=x" in page


def test_many_rounds_and_clients_make_no_large_page(folders, tmp_path):
    """Of 500 rounds and 100 clients: at most 3 MB."""
    record = read_run(folders["own models"])
    names = [f"hospital-{i}" for i in range(100)]
    scores = {name: ClientScore(0.5 + i / 300, 1.0) for i, name in enumerate(names)}
    rounds = [replace(record.metrics[0], round=n + 1, clients=scores) for n in range(500)]
    sent = [
        Entry(n + 1, 1, "update", Kind.PARAMETERS, name, "server", "plaintext", 100, 500)
        for n in range(500)
        for name in names
    ]
    many = replace(record, path=tmp_path, metrics=tuple(rounds), ledger=tuple(sent))
    page = run_page(many)
    assert "100 clients" in text_of(page)
    assert len(page.encode()) < 3e6


def test_the_commands_write_it(folders, tmp_path):
    run = shutil.copytree(folders["sealed"], tmp_path / "run")
    left = (run / REPORT).read_text()  # by securefl.run
    assert left.replace(str(folders["sealed"]), str(run)) == run_page(read_run(run))
    found = CliRunner().invoke(report, [str(run)], catch_exceptions=False)
    assert found.output == f"Report: {run / REPORT}\n"
    assert (run / REPORT).read_text() == run_page(read_run(run))
    (run / ACCURACY).write_bytes(b"<svg onload=alert(1)>" * 200_000)  # it is not read
    CliRunner().invoke(report, [str(run)], catch_exceptions=False)
    assert (run / REPORT).read_text() == run_page(read_run(run))
    both = [str(run), str(folders["private"])]
    options = ["--html", str(tmp_path / "both.html"), "--out", str(tmp_path / "p.png")]
    assert CliRunner().invoke(compare, [*both, *options]).exit_code == 0
    assert "Settings in which they differ" in (tmp_path / "both.html").read_text()
    (run / "metrics.jsonl").unlink()
    with pytest.raises(RunFolderError, match="no round is complete"):
        CliRunner().invoke(report, [str(run)], catch_exceptions=False, standalone_mode=False)


@pytest.mark.skipif(not CHROMIUM, reason="no chromium here")
def test_it_fits_phone_and_desk_in_light_and_dark(folders, tmp_path):
    page = tmp_path / "report.html"
    page.write_text(run_page(read_run(folders["own models"])))
    with browser(tmp_path / "profile") as tab:
        for width in (390, 1280):
            for scheme in ("light", "dark"):
                tab.visit(page.as_uri(), width, scheme=scheme)
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
                colours = tab.evaluate("getComputedStyle(document.body).backgroundColor")
                assert colours == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(22, 24, 27)")
                assert {r.split(":")[0] for r in tab.requests} <= {"file", "data"}
