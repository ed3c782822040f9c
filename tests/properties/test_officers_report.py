"""What an officer finds in a report beside verdicts: meanings of words, and an assessment."""

from __future__ import annotations

import platform
import re
from dataclasses import replace

from audited_runs import settings, task_of
from made_findings import FINDINGS

import securefl
from securefl.audit.assessment import YOURS, outline
from securefl.audit.exposure.evidence import FolderEvidence
from securefl.audit.glossary import MEANINGS, used
from securefl.audit.page import html_page
from securefl.audit.provenance import Auditor, Provenance
from securefl.audit.rules import Verdict
from securefl.runs.folder_reader import read_run


def test_words_are_explained_where_they_stand_and_no_others():
    """Plurals and the beginnings of sentences too; not within other words."""
    found = used(["Canaries and batches; TPR at 1 % FPR.", "a subtotal", "ε ≥ 2"])
    assert list(found) == ["batch", "canary", "ε", "FPR", "TPR"]
    page = html_page(FINDINGS)
    auc, lira = (MEANINGS[word].split(",")[0] for word in ("AUC", "LiRA"))
    assert auc in page
    assert lira not in page
    assert page.index(auc) < page.index('<div class="facts" id="words"')


def test_a_word_is_explained_where_it_is_used_first():
    """Once, in a line that everybody sees, below the sentence or above the table that has it."""
    sections = [
        replace(FINDINGS.sections[0], verdict=Verdict.LEAKS, words="Canary records show nothing."),
        replace(FINDINGS.sections[1], words="An attack on 20 dB."),
        replace(FINDINGS.sections[2], verdict=Verdict.HOLDS),
    ]
    page = html_page(replace(FINDINGS, sections=sections))
    body = page[page.index("<body>") : page.index('<div class="facts" id="words"')]
    for word, first, then in (
        ("canary", "Canary records show nothing.", "An attack on 20 dB."),
        ("attack", "An attack on 20 dB.", '<section id="epsilon"'),
        ("dB", "An attack on 20 dB.", '<section id="epsilon"'),
        ("AUC", '<section id="inversion"', "<h3>Attacks</h3>"),
    ):
        (place,) = (found.start() for found in re.finditer(f"<dfn>{word}</dfn>", body))
        assert body.index(first) < place < body.index(then)


LIAR, COMPARING = "a server that lies", "clients that compare notes"
TOGETHER = "server and authority together"
SIMULATED = ("Processing (7 a)", "Data subjects (7 a)", "Controllers")
POINTS = ("Art. 13, 14, 21", "Art. 26", "Art. 28", "Art. 36", "(11)", "(DPO)", "final model")
CHECKED = replace(FINDINGS.sections[1], title="Openings", attacked=False)


def test_an_assessment_says_what_the_run_knows_and_leaves_the_rest_open(tmp_path):
    """Sizes, recipients, risks and measures follow the run: here one in the clear, one sealed."""
    found = {}
    for name in ("nothing", "model"):
        task, folder = task_of(name), tmp_path / name
        securefl.run(settings(name), task, out=folder)
        run = read_run(folder)
        of = Provenance.of(run, task, (), Auditor(), shipped=False)
        sections = [*FINDINGS.sections, replace(CHECKED, pictures_of_records=name == "model")]
        found[name] = dict(outline(FolderEvidence.of(run), of, sections).rows)
    clear, sealed = found["nothing"], found["model"]
    n = sum(len(y) for _, y in task_of("model").clients)
    n_test = len(task_of("model").test[1])
    assert f"{n:,} records train, and {n_test:,} test, one set" in sealed["Data subjects (7 a)"]
    assert sealed["Purpose, and legal basis (7 a)"] == YOURS
    assert "one client's own values" in clear["Recipient: server (30 d)"]
    assert "one client's own values" not in sealed["Recipient: server (30 d)"]
    assert "ciphertexts that it cannot read" in sealed["Recipient: server (30 d)"]
    assert "Nothing is sealed" in clear["Measures (7 d)"]
    assert "(exchange.encrypt = model): parameters, statistics; a" in sealed["Measures (7 d)"]
    risks = {point for point in sealed if point.startswith("Risk")}
    of_sections = {f"Risk (7 c): {s.title}" for s in FINDINGS.sections if s.verdict != "holds"}
    of_parties = {f"Risk (7 c): {who}" for who in (LIAR, COMPARING, TOGETHER)}
    assert risks == of_parties | of_sections
    for rows in (clear, sealed):
        assert "of 3 clients: 2 of them that compare notes have" in rows[f"Risk (7 c): {COMPARING}"]
        assert all(rows[who].startswith("Simulation: one") for who in SIMULATED)
    assert "Here one process of one operator was both" in sealed[f"Risk (7 c): {TOGETHER}"]
    assert "by itself" in clear[f"Risk (7 c): {TOGETHER}"]
    assert "124 of 160 records" in sealed["Risk (7 c): a server that lies"]
    yours = {point for point, said in sealed.items() if said == YOURS}
    assert {
        "Transfers to third countries (Art. 44)",
        "Notice of a breach (Art. 33, 34): who tells whom, by when",
        "Severity and likelihood of each risk (7 c)",
    } <= yours
    for point in POINTS:
        assert any(point in row for row in sealed), point
    assert "one operator held all records" in sealed["Processing (7 a)"]
    erasure = sealed["Access, rectification, erasure (Art. 15 to 17)"]
    assert erasure.startswith("A record is changed or deleted with the operator of the one process")
    assert "test set that all share" in erasure
    assert "Nor does the report: pictures" in erasure
    assert "Holds all records" in sealed["Recipient: whoever audits (30 d)"]
    assert "pictures" in sealed["Recipient: whoever gets the report (30 d)"]
    assert not any("pictures" in said for said in clear.values())
    assert "and none that an attack rebuilt" in clear["Recipient: whoever gets the report (30 d)"]
    assert sealed["Attacked, and stood (7 c)"] == "Encryption"
    assert sealed["Checked against the run's own files, not attacked (7 c)"] == "Openings"


def test_the_table_of_data_has_the_tests_that_count(tmp_path):
    """Each client's own in the place of a test set that all share, which scores nothing then."""
    task = task_of("model")
    own = replace(task, client_tests=[task.test] * 3)
    for each in (task, own):
        folder = tmp_path / str(len(each.client_tests))
        securefl.run(settings("model"), each, out=folder)
        of = Provenance.of(read_run(folder), each, (), Auditor(), shipped=False)
        (table,) = (t for t in of.tables() if t.title == "Model and data of the user's own")
        rows = {name for name, _ in table.rows if "test" in name}
        tests = {f"client-{i}, its own test" for i in (1, 2, 3)}
        assert rows == (tests if each is own else {"test"})


def test_what_to_do_stands_behind_the_verdicts():
    """Of sections that have something, the most alarming first."""
    advice = 'Set exchange.encrypt = "model".'
    sections = [
        replace(s, do=advice) if s.key in {"inversion", "exposure"} else s
        for s in FINDINGS.sections
    ]
    page = html_page(replace(FINDINGS, sections=sections))
    list_of = page[page.index("What to do") : page.index('<section id="epsilon"')]
    assert list_of.index("Gradient inversion") < list_of.index("Who saw what")
    assert list_of.count("exchange.encrypt") == 1
    assert "What to do" not in html_page(FINDINGS)


def test_the_page_has_the_tables_of_what_it_was_made_of(tmp_path):
    task = task_of("model")
    securefl.run(settings("model"), task, out=tmp_path)
    run = read_run(tmp_path)
    of = Provenance.of(run, task, (), Auditor(), shipped=False)
    tables = (outline(FolderEvidence.of(run), of, ()), *of.tables())
    page = html_page(replace(FINDINGS, facts=of.facts(), tables=tables))
    (session,) = of.sessions
    for said in (session["run"], f"python {platform.python_version()}, torch", platform.platform()):
        assert f"<dd>{said}" in page
    again = replace(of, sessions=[session, session | {"run": "ff" * 32}]).facts()
    assert again["Run's id, of each session"] == f"{session['run']}; {'ff' * 32}"
    assert again["Machine"] == of.facts()["Machine"]
    assert all(digest in page for digest in of.files.values())
    assert 'id="provenance"' in page
    assert 'id="provenance"' not in html_page(FINDINGS)
