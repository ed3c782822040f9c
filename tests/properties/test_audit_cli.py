"""`securefl audit`: what it says, what it writes, and what it refuses before minutes of work."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from interruptible import SECUREFL
from made_findings import FINDINGS, LEAK
from small_audit import audits_are_tiny

import securefl
from securefl.audit import audits
from securefl.errors import ConfigError
from securefl.runs.task_record import SiteRecord, site_record
from securefl_cli.main import main

pytestmark = pytest.mark.usefixtures("quick")

SETTINGS = ["data.clients=3", "data.partition=iid", "run.rounds=3", "algorithm.name=fedavg"]
SECTIONS = ["exposure", "membership", "epsilon", "inversion", "tracing", "encryption"]


def invoke(*arguments):
    return CliRunner().invoke(main, ["audit", *map(str, arguments)])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def made_run(tmp_path_factory):
    """Three clients, three rounds of one step."""
    folder = tmp_path_factory.mktemp("made") / "run"
    config = securefl.load_config(None, [*SETTINGS, "algorithm.local_steps=1"])
    securefl.run(config, out=folder)
    return folder


@pytest.fixture
def audited(monkeypatch):
    """Each audit is found at once; what was asked for."""
    asked = []

    def audit_run(folder, effort, *, task, seed, on_step, by):
        on_step("playing the run again", 0, 2)
        on_step("playing the run again", 2, 2)
        asked.append((folder, effort.name, seed))
        return FINDINGS

    monkeypatch.setattr(audits, "audit_run", audit_run)
    return asked


@pytest.mark.slow
def test_a_run_is_audited_from_end_to_end_and_the_same_twice(made_run, tmp_path, monkeypatch):
    """All sections are measured; the run's folder stays as it was; the files repeat."""
    audits_are_tiny(monkeypatch)
    before = contents(made_run)
    for name in ("one", "two"):
        done = invoke(made_run, "--out", tmp_path / f"{name}.html", "--seed", "5")
        assert done.exit_code == 0, done.output
    assert contents(made_run) == before
    found, again = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("one", "two"))
    times = [of["provenance"]["made"] for of in (found, again)]
    pages = [
        hashlib.sha256((tmp_path / f"{n}.html").read_bytes()).hexdigest() for n in ("one", "two")
    ]
    assert pages == [found["page"], again["page"]]
    made_of = [
        re.findall(r'id="findings">(\w{64})<', (tmp_path / f"{n}.html").read_text())[0]
        for n in ("one", "two")
    ]
    for kind in ("json", "html"):  # but for the time at which each was made
        one, two = ((tmp_path / f"{name}.{kind}").read_text() for name in ("one", "two"))
        for said in ('"made": "{}"', "{}, by SecureFL"):
            one = one.replace(said.format(times[0]), said.format(times[1]))
        assert one.replace(*pages).replace(*made_of) == two
    assert (found["run"], found["effort"], found["seed"]) == ("fedavg-mlp-batch", "quick", 5)
    assert list(found["chapters"]) == SECTIONS
    for section in found["chapters"].values():
        assert not section["words"].startswith("Not measured")
        word = section["verdict"].upper()
        assert f"{word:7} {section['title']}: " in done.stdout
        assert section["numbers"]
    assert '"fedavg" (as in this run)' in found["chapters"]["epsilon"]["do"]
    assert "data:image/png" in (tmp_path / "one.html").read_text()
    assert done.stderr.splitlines()[0] == "playing the run again …"
    assert "Membership inference …" in done.stderr


@pytest.mark.slow
def test_full_is_an_audit_from_end_to_end(made_run, tmp_path, monkeypatch):
    """Its own effort, of which each section is measured."""
    audits_are_tiny(monkeypatch)
    done = invoke(made_run, "--full", "--out", tmp_path / "report.html")
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "report.json").read_text())
    assert (found["effort"], list(found["chapters"])) == ("full", SECTIONS)
    for section in found["chapters"].values():
        assert not section["words"].startswith("Not measured")


def test_verdicts_are_data_and_progress_is_for_people(audited, tmp_path):
    """The former on stdout, with where the report is; the latter on stderr."""
    out = tmp_path / "report.html"
    done = invoke(tmp_path, "--out", out)
    assert done.exit_code == 0
    assert done.stderr == "playing the run again …\n"
    first, second, *_, report, numbers = done.stdout.splitlines()
    assert (first, second) == ("OPEN    Bounds on ε: Nothing was claimed.", "")
    assert f"LEAKS   Gradient inversion: {LEAK.words}" in done.stdout
    assert "\nOPEN    nothing was claimed, or too little was there to measure" in done.stdout
    assert (report, numbers) == (f"Report: {out}", f"Numbers: {out.with_suffix('.json')}")
    assert sorted(contents(tmp_path)) == ["report.html", "report.json"]


def test_verdicts_are_for_programs_too(audited, tmp_path):
    found = json.loads(invoke(tmp_path, "--json").stdout)
    section = FINDINGS.sections[0]
    assert found["verdicts"][section.key]["verdict"] == section.said
    assert found["verdicts"].keys() == {of.key for of in FINDINGS.sections}
    assert found["numbers"] == str(tmp_path / "audit.json")


def test_quick_is_what_nobody_asked_for(audited, tmp_path):
    """--full is another effort; a report lies in the run's folder where no other is named."""
    for options in ([], ["--quick"], ["--full"], ["--seed", "9"]):
        assert invoke(tmp_path, *options).exit_code == 0
    asked = [("quick", 0), ("quick", 0), ("full", 0), ("quick", 9)]
    assert audited == [(tmp_path, *chosen) for chosen in asked]
    assert sorted(contents(tmp_path)) == ["audit.html", "audit.json"]
    assert "[default: quick]" in invoke("--help").stdout


def test_help_loads_no_torch():
    script = (
        "import sys\nfrom securefl_cli.main import main\n"
        "try: main(['audit', '--help'])\nexcept SystemExit as end: assert not end.code\n"
        "print('LOADED', sorted({'torch', 'numpy', 'jinja2', 'tenseal'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "LOADED []" in done.stdout
    assert "Example" in done.stdout


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("no-such-folder/report.html", "no-such-folder: no such folder; make it first"),
        ("numbers.json", "the report is HTML"),
        ("numbers.JSON", "the report is HTML"),
        ("package.html", "package.json, where the numbers would go, is another file"),
        ("folder.html", "is a directory"),
    ],
)
def test_a_target_that_will_not_do_is_refused_at_once(audited, tmp_path, monkeypatch, out, message):
    """Nothing is audited, nothing is written, and no file of another kind is lost."""
    monkeypatch.chdir(tmp_path)
    Path("package.json").write_text('{"name": "mine"}')
    Path("folder.html").mkdir()
    done = invoke("run", "--out", out)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not audited
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.html", "package.json"]
    assert Path("package.json").read_text() == '{"name": "mine"}'


def test_a_run_loses_no_file_to_a_report_in_its_folder(made_run):
    """RUN/config.html would have its numbers where the settings are."""
    before = contents(made_run)
    done = invoke(made_run, "--out", made_run / "config.html")
    assert done.exit_code == 2
    assert "config.json, where the numbers would go" in done.stderr
    assert contents(made_run) == before


def test_a_folder_that_cannot_be_written_is_refused_at_once(audited, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    done = invoke(tmp_path / "run", "--out", tmp_path / "report.html")
    assert done.exit_code == 2
    assert f"{tmp_path}: cannot be written; choose a place with --out" in done.stderr
    assert not audited


@pytest.mark.parametrize("full", [".json", ".html"])
def test_a_disk_that_is_full_leaves_an_older_report_whole(audited, tmp_path, monkeypatch, full):
    """Nothing half-written stays, the verdicts are said, and the error names the file."""
    (tmp_path / "audit.html").write_text("an older one")
    replace = Path.replace

    def fill(self, target):
        if target.suffix == full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fill)
    done = invoke(tmp_path)
    assert done.exit_code == 1
    assert f"audit{full}: cannot be written" in done.stderr
    assert "No space left" in done.stderr
    assert "resume" not in done.stderr
    assert "LEAKS" in done.stdout
    assert (tmp_path / "audit.html").read_text() == "an older one"
    assert contents(tmp_path).keys() <= {"audit.html", "audit.json"}


def test_what_is_no_finished_run_is_one_clear_line(made_run, tmp_path):
    """No folder, an empty one, and a run that was broken off; none gets a report."""
    (tmp_path / "empty").mkdir()
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    for name, content in contents(made_run).items():
        if name != "model.safetensors":
            (unfinished / name).write_bytes(content)
    for name, message in {
        "none": "is no run's folder",
        "empty": "is no run's folder",
        "unfinished": f"go on with `securefl run --resume {unfinished}`",
    }.items():
        done = invoke(tmp_path / name)
        assert done.exit_code == 1
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not (tmp_path / name / "audit.html").exists()


def test_a_run_on_data_of_your_own_is_audited_from_python(tiny_task, tiny_config, tmp_path):
    """The command says so, and the function refuses the one without the other."""
    securefl.run(tiny_config(exchange={"encrypt": "none"}), tiny_task(), out=tmp_path / "run")
    done = invoke(tmp_path / "run")
    assert done.exit_code == 2
    assert "this run had a task of its own" in done.stderr
    assert "securefl.audit_run(folder, task=task)" in " ".join(invoke("--help").stdout.split())
    with pytest.raises(ConfigError, match="task of its own"):
        audits.audit_run(tmp_path / "run")


SITES = ("north", "south", "east")


@pytest.fixture
def sites_run(tmp_path):
    """Return the folder of a sealed run of three sites, as its server leaves it.

    Their files lie beside it, each with the record that its site keeps.
    """
    files = {name: tmp_path / name / "site.toml" for name in SITES}
    for number, file in enumerate(files.values()):
        file.parent.mkdir()
        file.write_text('train = "patients.csv"\ntest = 0.25\n')
        rows = "".join(f"{number + i % 7},{'yes' if i % 7 > 3 else 'no'}\n" for i in range(40))
        (file.parent / "patients.csv").write_text(f"age,ill\n{rows}")
    names, columns = f"data.names={json.dumps(SITES)}", 'samples.columns=["age"]'
    target = ["samples.target=ill", 'samples.classes=["no", "yes"]', "samples.most=100"]
    short = ["run.rounds=2", "algorithm.local_steps=1"]
    config = securefl.load_config(None, [*short, names, columns, *target])
    task, folder = securefl.task_of_sites(config, files), tmp_path / "run"
    securefl.run(config, task, out=folder)
    (folder / "task.json").unlink()
    (folder / "job.id").write_text("ab" * 32)
    environment = folder / "environment.json"
    told, n = re.subn('"engine": "[^"]+"', '"engine": "processes"', environment.read_text())
    assert n == 1
    environment.write_text(told)
    for name, train, test in zip(task.names, task.clients, task.client_tests, strict=True):
        record = tmp_path / name / site_record("ab" * 32)
        record.parent.mkdir()
        record.write_bytes(SiteRecord.of(train, test).to_json())
    return folder


def test_other_data_than_each_site_has_written_down_are_refused(sites_run, monkeypatch):
    """Where no record is at hand, all that is said of data says whose files they are."""
    audits_are_tiny(monkeypatch)
    monkeypatch.setattr(audits._Audits, "sections", lambda _self: iter(()))
    monkeypatch.chdir(sites_run.parent)
    given = [part for name in SITES for part in ("--site", f"{name}={name}/site.toml")]

    def report():
        done = invoke("run", *given)
        assert done.exit_code == 0, done.output
        found = json.loads((sites_run / "audit.json").read_text())
        return found, (sites_run / "audit.html").read_text()

    found, page = report()
    assert found["provenance"]["unproven"] == ""
    assert "given to this audit" not in page
    assert "clients of separate processes draw anew" in found["facts"]["Played again"]
    table = Path("north/patients.csv")
    honest = table.read_text()
    table.write_text(honest.replace("\n0,no", "\n9,no"))
    refused = invoke("run", *given)
    assert refused.exit_code == 2
    assert "north: its samples that train are others than it began the run with: 30" in (
        refused.stderr
    )
    for name in SITES[:2]:
        (Path(name) / site_record("ab" * 32)).unlink()
    found, page = report()
    words = "files given to this audit; no record shows that they are the run's (north, south)"
    html = words.replace("'", "&#39;")
    assert found["provenance"]["unproven"].endswith(words)
    assert f"Sizes of data, of the {html}" in page
    assert f"90 records train, and 30 test, of the {html}. How many persons" in page
    assert words in found["facts"]["Data"]
    assert "or the files given to this audit are not the run's" in found["facts"]["Played again"]
    assert "All else is of the recorded" not in page


def test_logs_alone_are_audited_where_no_data_are_given(sites_run, tmp_path):
    """Sections on records are not measured; a row that a log lacks leaks all the same."""
    own = tmp_path / "own.jsonl"
    rows = (sites_run / "openings.jsonl").read_text().splitlines(keepends=True)

    def verdicts(kept):
        own.write_text("".join(kept))
        done = invoke(sites_run, "--openings", own)
        assert done.exit_code == 0, done.output
        return json.loads((sites_run / "audit.json").read_text())

    found = verdicts(rows)
    told = {key: of["verdict"] for key, of in found["chapters"].items()}
    assert told == dict.fromkeys(SECTIONS, "open") | {
        "exposure": "checked",
        "encryption": "checked",
    }
    for key in set(SECTIONS) - {"exposure", "encryption"}:
        words = found["chapters"][key]["words"]
        assert words.startswith("Not measured: no data were given to this audit. Give each site's")
    n = {of["name"]: of["value"] for of in found["chapters"]["exposure"]["numbers"]}
    assert n["leaks in the folder"] == 0
    assert not n.keys() & {"leaks on the wire", "wire bytes seen of those written down"}
    assert {of["train"] for of in found["provenance"]["data"].values()} == {None}
    page = (sites_run / "audit.html").read_text()
    assert "Records, not known: no data were given to this audit. How many persons" in page
    assert "Holds the run&#39;s folder. Who that is" in page
    assert "Receives names of clients, and what the logs say; nothing on records. Who" in page
    assert "No round was played again and looked at byte by byte" in page
    assert verdicts(rows[1:])["chapters"]["exposure"]["verdict"] == "leaks"


def test_ctrl_c_ends_it_without_a_report(made_run, tmp_path):
    """With the exit code for that, one word on stderr, and no traceback."""
    process = subprocess.Popen(
        [*SECUREFL, "audit", made_run, "--out", tmp_path / "report.html"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr.readline() == "playing the run again …\n"
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.endswith("Interrupted.\n")
    assert "Traceback" not in stderr
    assert stdout == ""
    assert not list(tmp_path.iterdir())
