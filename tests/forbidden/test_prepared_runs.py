"""Runs that are prepared, honest ones and others: the verdict and the sentence of each.

Each sentence is written down here in full, so that one that is false of its run has to be written
twice to stay.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

import pytest
from audited_runs import settings, task_of
from processes import Loop, Site
from small_audit import TINY
from test_audit_mutants import MUTANTS

import securefl
from securefl.audit import audits
from securefl.audit.bounds import report_section as bounds
from securefl.audit.encryption import verdict as encryption
from securefl.audit.exposure import verdict as exposure
from securefl.audit.exposure.evidence import FolderEvidence
from securefl.evaluation.evaluate import load_trained
from securefl.privacy import client_level
from securefl.privacy.history import History
from securefl.runs.folder_reader import OPENINGS, read_run

pytestmark = pytest.mark.usefixtures("no_hang", "quick", "cheap_guesses")

EXPOSURE, ENCRYPTION, EPSILON = "exposure", "encryption", "epsilon"
ALL_SEALED = (
    "holds",
    (
        "The server could read nothing of any single client: all that clients sent it was sealed, "
        "and it learnt totals alone."
    ),
)
AS_SET = (
    "weak",
    (
        "As the settings say, and no more: the server could read the {} of every single client. "
        "The rest was sealed."
    ),
)
DECRYPTED = "Decrypted by the authority: {} totals, each of 3 clients or more."
READ = " Not encrypted, and read by the server of each client: {}."


def of(rule, *values):
    return rule[0], rule[1].format(*values)


@dataclass(frozen=True)
class Prepared:
    """A run's folder, and what an audit is given beside it."""

    folder: object
    task: object
    log: object = None


def sections(run):
    """Return verdict and words of the sections that go by what the run left behind."""
    record = read_run(run.folder)
    trained = load_trained(run.folder, run.task)
    evidence = FolderEvidence.of(record, run.log)
    found = audits._Audits(record, trained, TINY, 0, lambda *_: None, evidence, shipped=False)
    made = found._exposure(), found._encryption()
    return {section.key: (str(section.verdict), section.words) for section in made}


def played(name, folder):
    securefl.run(settings(name), task_of(name), out=folder)
    return Prepared(folder, task_of(name))


def changed(change):
    """Return a preparation: the model sealed, and then its log of openings is changed."""

    def prepare(folder):
        run = played("model", folder)
        log = folder / OPENINGS
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        log.write_text("".join(json.dumps(row) + "\n" for row in change(rows)))
        return run

    return prepare


def of_two(rows):
    """Return rows of which the first is of two clients."""
    first = rows[0]["signers"]
    return [rows[0] | {"signers": first[:2], "n_clients": 2}, *rows[1:]]


def in_the_clear_against_the_settings(folder):
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS["parameters unsealed"].install(patch)
        return played("model", folder)


def opened_elsewhere(folder):
    run = played("model", folder)
    log = folder.parent / "log.jsonl"
    rows = (folder / OPENINGS).read_text()
    more = json.loads(rows.splitlines()[0]) | {"name": "update/other"}
    log.write_text(f"{rows}{json.dumps(more)}\n")
    return replace(run, log=log)


def without_a_log(folder):
    run = played("model", folder)
    (folder / OPENINGS).unlink()
    return run


class StoppedError(Exception):
    """Stands for a machine that stops."""


def gone_on_with(folder):
    def stop(metrics):
        if metrics.round == 1:
            raise StoppedError

    with pytest.raises(StoppedError):
        securefl.run(settings("model"), task_of("model"), out=folder, on_round=stop)
    securefl.resume(folder, task_of("model"))
    return Prepared(folder, task_of("model"))


def over_processes(folder):
    run = Loop(Site(folder.parent / "site")).run()
    return Prepared(run.path, None)


PREPARED = {
    "nothing sealed": (
        lambda folder: played("nothing", folder),
        {
            EXPOSURE: (
                "leaks",
                (
                    "Nothing was encrypted: the server could read the parameters and statistics of "
                    "every single client."
                ),
            ),
            ENCRYPTION: (
                "open",
                (
                    "Nothing was encrypted, so whatever clients sent could be read. The server "
                    "could read each client's parameters, statistics."
                ),
            ),
        },
    ),
    "statistics sealed": (
        lambda folder: played("fedavg", folder),
        {
            EXPOSURE: of(AS_SET, "parameters"),
            ENCRYPTION: ("holds", DECRYPTED.format(2) + READ.format("parameters")),
        },
    ),
    "model sealed": (
        lambda folder: played("model", folder),
        {EXPOSURE: ALL_SEALED, ENCRYPTION: ("holds", DECRYPTED.format(4))},
    ),
    "totals for clients alone": (
        lambda folder: played("blind", folder),
        {
            EXPOSURE: of(AS_SET, "parameters"),
            ENCRYPTION: ("holds", DECRYPTED.format(8) + READ.format("parameters")),
        },
    ),
    "profiles sealed": (
        lambda folder: played("profiles", folder),
        {
            EXPOSURE: of(AS_SET, "parameters and statistics"),
            ENCRYPTION: (
                "holds",
                "Decrypted by the authority: 7 scores of profiles, each of one client."
                + READ.format("parameters, statistics"),
            ),
        },
    ),
    "in the clear against the settings": (
        in_the_clear_against_the_settings,
        {EXPOSURE: ("leaks", r".* not as the settings promise: .*update/parameters.*plaintext.*")},
    ),
    "fewer clients than the rule": (
        changed(of_two),
        {
            EXPOSURE: ("leaks", r".* not as the settings promise: .*"),
            ENCRYPTION: (
                "leaks",
                "A total of 2 clients was decrypted, and the rule is 3 at least.",
            ),
        },
    ),
    "opened again": (
        changed(lambda rows: [*rows, rows[0]]),
        {
            EXPOSURE: ("leaks", r".* not as the settings promise: .*opened.*"),
            ENCRYPTION: (
                "leaks",
                (
                    "1 time a total or a score was opened for a session, round and name that had "
                    "one already: the difference of two totals shows the clients that are in one "
                    "of them alone, and a second score is a second number of a client's profile."
                ),
            ),
        },
    ),
    "opened, and not in the folder": (
        opened_elsewhere,
        {
            EXPOSURE: (
                "leaks",
                r"Messages .*: 1\. .*update/other, .*: opened, and not in the folder\.",
            )
        },
    ),
    "no log of openings": (
        without_a_log,
        {
            ENCRYPTION: (
                "open",
                "The run has no log of openings, so nobody knows what was decrypted.",
            )
        },
    ),
    "gone on with": (
        gone_on_with,
        {EXPOSURE: ALL_SEALED, ENCRYPTION: ("holds", DECRYPTED.format(4))},
    ),
    "processes of a consortium": (
        over_processes,
        {
            EXPOSURE: of(AS_SET, "parameters"),
            ENCRYPTION: (
                "holds",
                r"Decrypted by the authority: \d+ totals, each of 3 clients or more\."
                + READ.format("parameters"),
            ),
        },
    ),
}


def check(name, found):
    """Compare what an audit says of a prepared run with what is true of it."""
    for key, (verdict, words) in PREPARED[name][1].items():
        assert found[key][0] == verdict, f"{name}: {found[key]}"
        same = found[key][1] == words or re.fullmatch(words, found[key][1])
        assert same, f"{name}: {found[key][1]}"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Return the prepared run of a name, each made once."""
    made = {}

    def of_name(name):
        if name not in made:
            made[name] = PREPARED[name][0](tmp_path_factory.mktemp("prepared") / "run")
        return made[name]

    return of_name


@pytest.mark.parametrize("name", PREPARED)
def test_verdict_and_sentence_are_true_of_the_run(prepared, name):
    check(name, sections(prepared(name)))


def saying(rules, place, words):
    """Return these rules, of which one says something else."""
    return (*rules[:place], replace(rules[place], words=lambda _: words), *rules[place + 1 :])


@pytest.mark.parametrize(
    ("name", "package", "place", "words"),
    [
        ("statistics sealed", exposure, -1, ALL_SEALED[1]),
        ("model sealed", encryption, -1, DECRYPTED.format(40)),
        ("fewer clients than the rule", encryption, 1, DECRYPTED.format(4)),
    ],
)
def test_a_false_sentence_is_found(prepared, monkeypatch, name, package, place, words):
    """The table above does not follow the code: what is planted there fails here."""
    place = place % len(package.RULES)
    monkeypatch.setattr(
        __import__(package.__name__.replace("verdict", "report_section"), fromlist=["RULES"]),
        "RULES",
        saying(package.RULES, place, words),
    )
    with pytest.raises(AssertionError, match=re.escape(name)):
        check(name, sections(prepared(name)))


NOISE_FOR_CLIENTS = [
    *(
        "algorithm.name=fedavg",
        "model.norm=group",
        "exchange.encrypt=none",
        "algorithm.weights=uniform",
    ),
    *("privacy.level=client", "privacy.sigma=1.0", "privacy.clip=0.3", "data.clients=5"),
]


def test_half_of_the_noise_refutes_a_claim(monkeypatch):
    """A thirteenth run: noise for clients, of which half was drawn."""
    config = securefl.load_config(None, NOISE_FOR_CLIENTS)
    noisy = client_level.noisy
    monkeypatch.setattr(
        client_level, "noisy", lambda value, randomness, sd: noisy(value, randomness, sd / 2)
    )
    found = bounds.client_test(config, 5, 0)
    section = bounds.epsilon_section(config, History(), None, found, 0)
    assert section.verdict == "leaks"
    assert re.match(
        r"The claim is refuted: a round's noise measures [\d.]+ clip norms where [\d.]+ are "
        r"promised, and canary clients show an ε of at least [\d.]+ where the round is said to "
        r"spend [\d.]+\.",
        section.words,
    )
