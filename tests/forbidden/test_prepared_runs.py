"""Runs that are prepared, honest ones and others: the verdict and the sentence of each.

Each sentence is written down here in full, so that one that is false of its run has to be written
twice to stay.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, replace
from math import inf

import pytest
from audited_runs import settings, task_of
from made_findings import records_showing
from matching_runs import make_task
from processes import Loop, Site
from small_audit import TINY
from test_audit_mutants import MUTANTS

import securefl
from securefl.audit import audits
from securefl.audit.assessment import outline
from securefl.audit.bounds import report_section as bounds
from securefl.audit.bounds import verdict as epsilon
from securefl.audit.bounds.verdict import CanaryBounds
from securefl.audit.encryption import verdict as encryption
from securefl.audit.exposure import verdict as exposure
from securefl.audit.exposure.evidence import FolderEvidence
from securefl.audit.incident_table import incident_table
from securefl.audit.inversion import verdict as inversion
from securefl.audit.inversion.hidden_statistics import Attacker, HiddenStatistics
from securefl.audit.inversion.verdict import SumsFound
from securefl.audit.membership import verdict as membership
from securefl.audit.membership.verdict import Compared, MeasuredAttack
from securefl.audit.page import html_page
from securefl.audit.provenance import Auditor, Provenance
from securefl.audit.rules import decided, deciding
from securefl.audit.statistics import Interval, Roc
from securefl.audit.tracing import verdict as tracing
from securefl.audit.tracing.verdict import SentStatistics, Traced, Visibility
from securefl.evaluation.evaluate import load_trained
from securefl.federation.round import ServerRound
from securefl.privacy import client_level
from securefl.privacy.history import History
from securefl.runs.folder_files import OPENINGS
from securefl.runs.folder_reader import read_run
from securefl.settings.axes import Weights
from securefl_keys.policy import DEFAULT

pytestmark = pytest.mark.usefixtures("no_hang", "quick", "cheap_guesses")

EXPOSURE, ENCRYPTION, EPSILON = "exposure", "encryption", "epsilon"
ALL_SEALED = (
    "holds",
    (
        "By its role, a server that kept to the protocol could read nothing of any single "
        "client: all that clients sent it was sealed, and it learnt totals alone."
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
BY_ONE = " So says the log of the one process that played all parties."
BY_FOLDER = " So says the run's folder alone: the authority's own log was not seen."
ARGUED = (
    " That a sum hides single clients is worth 131.5 bits by estimates of lattice attacks, and "
)
ARGUED += "rests on an argument of SecureFL's authors that nobody has reviewed."
READ = " Not encrypted, and read by the server of each client: {}."


MEMBERSHIP, INVERSION, TRACING = "membership", "inversion", "tracing"
TELLS = (
    "Who has seen enough can tell {} which records were trained on. The attack 'RMIA', open to "
    "whoever has the final model, picks the training record out of two in {} of the cases (50 % "
    "is guessing)."
)
SUM = "Nobody received a single client's update, and all parties the sum of all of a round. "
TOTAL = "Who reads a total of all clients says in {} of cases (50 % is guessing) which of two "
TOTAL += "records was in{}"
NO_CLAIM = "No ε is claimed, so nothing bounds what the model tells of a record. Canary records "
NO_CLAIM += (
    "show an ε of at least {}: {} (of an ε of just that, up to {} % of guesses at even odds "
)
NO_CLAIM += "may be right)."


def of(rule, *values):
    return rule[0], rule[1].format(*values)


@dataclass(frozen=True)
class Prepared:
    """A run's folder, and what an audit is given beside it."""

    folder: object
    task: object
    log: object = None


@dataclass(frozen=True)
class Measured:
    """What attacks on a run have found, in the place of minutes of attacks."""

    key: str
    rules: object
    found: object


def measured(key, rules, found):
    return lambda _folder: Measured(key, rules, found)


def told_by(area, rate, chance, replayed=None):
    """Return a membership attack's result of 400 records on each side.

    `replayed` is the AUC of another one, on the run played again.
    """
    by_rate = Interval(rate, rate / 2, 2 * rate)
    by_area = Interval(area, area - 0.03, area + 0.03)
    roc = Roc.of([1.0], [0.0])
    one = MeasuredAttack("RMIA", "whoever has the final model", "", roc, by_area, by_rate, chance)
    found = [one]
    if replayed:
        of_it = Interval(replayed, replayed - 0.03, replayed + 0.03)
        of_rounds = {"name": "rounds", "observer": "every client, and the server"}
        found += [replace(one, **of_rounds, area=of_it, p_value=1e-99, another_run=True)]
    return Compared(found, 400, 400, 0.01)


def gains(exact, adaptive, least):
    around = [Interval(value, value - 0.5, value + 0.5) for value in (exact, adaptive, least)]
    return HiddenStatistics(Attacker.JOINT, *around, around[2])


def summed(*telling):
    """Return a sum that is too large, and a smaller one that gave away more or less."""
    of = "rows", "4 clients, 5 steps of 32"
    return SumsFound(*of, False, False, 0.0, True, ("3 clients",), False, telling)


def traced(area, difference, **sent):
    found = [Interval(value, value - 0.04, value + 0.04) for value in (area, difference, 0.5)]
    totals = SentStatistics(Visibility.TOTALS, Visibility.NOT_SENT, 5, 32)
    return Traced(replace(totals, **sent), *found)


def sections(run):
    """Return verdict and words of the sections that go by what the run left behind."""
    if isinstance(run, Measured):
        verdict, words, _ = decided(run.rules, run.found)
        return {run.key: (str(verdict), words)}
    found = audits_of(run)
    made = found._exposure(), found._encryption()
    return {section.key: (str(section.verdict), section.words) for section in made}


def audits_of(run):
    record = read_run(run.folder)
    trained = load_trained(run.folder, run.task)
    evidence = FolderEvidence.of(record, run.log)
    return audits._Audits(record, trained, TINY, 0, lambda *_: None, evidence, shipped=False)


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


def sized(folder):
    """Weights by samples, and other clients in each round."""
    own, task = settings("dropouts"), make_task(4)
    config = own.model_copy(
        update={
            "run": own.run.model_copy(update={"rounds": 12}),
            "algorithm": own.algorithm.model_copy(update={"weights": Weights.SAMPLES}),
            "devices": own.devices.model_copy(update={"dropout": 0.0}),
        }
    )
    securefl.run(config, task, out=folder)
    return Prepared(folder, task)


def with_a_round_that_passed(folder):
    """Weights by samples; in the second round one client of three is lost, and nothing opened."""
    take = ServerRound.take

    def lost(self, client, sent):
        if (client, self.context.number) != ("client-2", 2):
            return take(self, client, sent)
        self.lose(client, "update", f"{client}: lost")
        return False

    own = settings("model")
    config = own.model_copy(
        update={
            "run": own.run.model_copy(update={"rounds": 3}),
            "algorithm": own.algorithm.model_copy(update={"weights": Weights.SAMPLES}),
            "sites": own.sites.model_copy(update={"late": "pass"}),
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerRound, "take", lost)
        securefl.run(config, task_of("model"), out=folder)
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
            ENCRYPTION: (
                "holds",
                DECRYPTED.format(2) + READ.format("parameters") + BY_ONE + ARGUED,
            ),
        },
    ),
    "model sealed": (
        lambda folder: played("model", folder),
        {EXPOSURE: ALL_SEALED, ENCRYPTION: ("holds", DECRYPTED.format(4) + BY_ONE + ARGUED)},
    ),
    "three of four, model sealed": (
        sized,
        {
            EXPOSURE: (
                "weak",
                (
                    "All that clients sent to the server was sealed. Totals of several lists of "
                    "clients were opened, each with its weight, and from these follows how many "
                    "samples 4 clients of the run trained on."
                ),
            )
        },
    ),
    "a round that passed": (
        with_a_round_that_passed,
        {
            EXPOSURE: ALL_SEALED,
            ENCRYPTION: (
                "holds",
                DECRYPTED.format(4) + " Requests refused: 1." + BY_ONE + ARGUED,
            ),
        },
    ),
    "totals for clients alone": (
        lambda folder: played("blind", folder),
        {
            EXPOSURE: of(AS_SET, "parameters"),
            ENCRYPTION: (
                "holds",
                DECRYPTED.format(8) + READ.format("parameters") + BY_ONE + ARGUED,
            ),
        },
    ),
    "profiles sealed": (
        lambda folder: played("profiles", folder),
        {
            EXPOSURE: of(AS_SET, "parameters and statistics"),
            ENCRYPTION: (
                "holds",
                "Decrypted by the authority: 7 scores of profiles, each of one client."
                + READ.format("parameters, statistics")
                + BY_ONE,
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
            ),
            ENCRYPTION: (
                "leaks",
                (
                    "The run's folder and the authority's own log do not say the same. Openings "
                    "that differ, or are in one of them alone: 1. The first: round 1, "
                    "'update/other': opened, and not in the folder."
                ),
            ),
        },
    ),
    "no log of openings": (
        without_a_log,
        {
            ENCRYPTION: (
                "open",
                "What was decrypted is not known: no log of openings.",
            )
        },
    ),
    "gone on with": (
        gone_on_with,
        {EXPOSURE: ALL_SEALED, ENCRYPTION: ("holds", DECRYPTED.format(4) + BY_ONE + ARGUED)},
    ),
    "processes of a consortium": (
        over_processes,
        {
            EXPOSURE: of(AS_SET, "parameters"),
            ENCRYPTION: (
                "weak",
                r"Decrypted by the authority: \d+ totals, each of 3 clients or more\."
                + READ.format("parameters")
                + BY_FOLDER
                + ARGUED,
            ),
        },
    ),
    "small and trained for long": (
        measured(MEMBERSHIP, membership.RULES, told_by(0.88, 0.009, 1e-9)),
        {MEMBERSHIP: ("leaks", TELLS.format("clearly", "88.0% (85.0% to 91.0%)"))},
    ),
    "trained for less": (
        measured(MEMBERSHIP, membership.RULES, told_by(0.71, 0.009, 1e-9)),
        {MEMBERSHIP: ("weak", TELLS.format("better than by chance", "71.0% (68.0% to 74.0%)"))},
    ),
    "trained for less, and played again as another run": (
        measured(MEMBERSHIP, membership.RULES, told_by(0.71, 0.009, 1e-9, replayed=0.72)),
        {MEMBERSHIP: ("weak", TELLS.format("better than by chance", "71.0% (68.0% to 74.0%)"))},
    ),
    "trained for less, and for long when played again": (
        measured(MEMBERSHIP, membership.RULES, told_by(0.71, 0.009, 1e-9, replayed=0.88)),
        {
            MEMBERSHIP: (
                "leaks",
                (
                    "Who has seen enough can tell clearly which records were trained on. The "
                    "attack 'rounds', open to every client, and the server, here tried on the run "
                    "played again, which is another one of the same settings, picks the training "
                    "record out of two in 88.0% (85.0% to 91.0%) of the cases (50 % is guessing)."
                ),
            )
        },
    ),
    "trained for little": (
        measured(MEMBERSHIP, membership.RULES, told_by(0.56, 0.009, 1e-3)),
        {
            MEMBERSHIP: (
                "weak",
                TELLS.format("slightly better than by chance", "56.0% (53.0% to 59.0%)"),
            )
        },
    ),
    "trained on hardly anything": (
        measured(MEMBERSHIP, membership.RULES, told_by(0.51, 0.009, 0.4)),
        {
            MEMBERSHIP: (
                "holds",
                (
                    r"None of 1 attack told training records from others better than by chance\. "
                    r"An attack that picks .* in 5[0-9]\.\d% of the cases \(50 % is guessing\) "
                    r"would have been noticed with these 400 and 400 records, in 95% of audits; a "
                    r"weaker one may have been missed\."
                ),
            )
        },
    ),
    "updates in the clear, statistics sealed": (
        measured(INVERSION, inversion.STATISTICS_SEALED, gains(20, 25, -5)),
        {
            INVERSION: (
                "leaks",
                (
                    "Sealing the statistics is no protection: who reads a client's gradient could "
                    "rebuild its images without them as well"
                ),
            )
        },
    ),
    "sums of many steps": (
        measured(
            INVERSION,
            inversion.UPDATES_SEALED,
            summed("3 clients"),
        ),
        {
            INVERSION: (
                "weak",
                (
                    SUM + "One of this run (4 clients, 5 steps of 32) is too large for these "
                    "attacks, which is no proof, since smaller ones gave something away"
                ),
            )
        },
    ),
    "sums of many steps, and of few a hair": (
        measured(INVERSION, inversion.UPDATES_SEALED, summed()),
        {
            INVERSION: (
                "weak",
                (
                    SUM + "One of this run (4 clients, 5 steps of 32) is too large for these "
                    "attacks, which is no proof, since smaller ones gave something away, if next "
                    "to nothing"
                ),
            )
        },
    ),
    "totals of five clients": (
        measured(TRACING, tracing.RULES, traced(0.65, 0.88)),
        {
            TRACING: (
                "weak",
                TOTAL.format("65.0% (61.0% to 69.0%)", ".") + " But two totals that differ by one "
                "client, while the model hardly changes, show that client as if it were in the "
                "clear (88.0% (84.0% to 92.0%) in a trial with 4 clients): the least number of "
                "clients does not stop that. Noise does. This run has 5 clients at a minimum of 3, "
                "so that such a pair can be opened; none was.",
            )
        },
    ),
    "totals of few records": (
        measured(TRACING, tracing.RULES, traced(0.974, 0.759)),
        {
            TRACING: (
                "leaks",
                TOTAL.format("97.4% (93.4% to 101.4%)", ".") + " Two totals that differ by one "
                "client, while the model hardly changes, show that client's records, too (75.9% "
                "(71.9% to 79.9%) in a trial with 4 clients): the least number of clients does not "
                "stop that. Noise does. This run has 5 clients at a minimum of 3, so that such a "
                "pair can be opened; none was.",
            )
        },
    ),
    "totals of three clients at a minimum of three": (
        measured(TRACING, tracing.RULES, traced(0.65, 0.88, n_clients=3)),
        {TRACING: ("weak", TOTAL.format("65.0% (61.0% to 69.0%)", "."))},
    ),
    "totals with noise of records": (
        measured(TRACING, tracing.RULES, traced(0.52, 0.9, sigma=0.01)),
        {
            TRACING: (
                "open",
                TOTAL.format("52.0% (48.0% to 56.0%)", ", which may be chance.")
                + " The difference of two totals was not measured with this noise.",
            )
        },
    ),
    "no noise": (
        measured(
            EPSILON, epsilon.RULES, CanaryBounds("none", inf, records_showing(0.646, 5.0), None)
        ),
        {EPSILON: of(("open", NO_CLAIM), "0.646", "records are told apart a little", "65.61")},
    ),
    "no noise, and nothing found": (
        measured(
            EPSILON, epsilon.RULES, CanaryBounds("none", inf, records_showing(0.16, 5.0), None)
        ),
        {
            EPSILON: of(
                ("open", NO_CLAIM),
                "0.16",
                "next to nothing; without noise that is no promise",
                "53.99",
            )
        },
    ),
    "less noise than is claimed": (
        measured(
            EPSILON, epsilon.RULES, CanaryBounds("record", 1.0, records_showing(2.5, 5.0), None)
        ),
        {
            EPSILON: (
                "leaks",
                (
                    "The claim is refuted: ε is said to be at most 1, and canary records show at "
                    "least 2.5."
                ),
            )
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


def test_the_authoritys_own_log_makes_a_run_of_processes_checked(prepared):
    """Without it the verdict is *weak*, by the table above."""
    run = prepared("processes of a consortium")
    (log,) = run.folder.parent.rglob("log/openings.jsonl")
    verdict, words = sections(replace(run, log=log))[ENCRYPTION]
    assert verdict == "holds"
    assert "So say the run's folder and the authority's own log." in words
    assert BY_FOLDER not in words


def test_a_total_in_the_authoritys_own_log_alone_counts_everywhere(prepared, tmp_path, monkeypatch):
    """In the section on encryption, against the policy, and in the assessment."""
    run = prepared("processes of a consortium")
    (own,) = run.folder.parent.rglob("log/openings.jsonl")
    first, *others = own.read_text().splitlines()
    of_two = json.loads(first)
    of_two |= {"name": "update/other", "n_clients": 2, "signers": of_two["signers"][:2]}
    log = tmp_path / "openings.jsonl"
    log.write_text("\n".join([first, *others, json.dumps(of_two), ""]))
    verdict, words = sections(replace(run, log=log))[ENCRYPTION]
    assert verdict == "leaks"
    assert words == "A total of 2 clients was decrypted, and the rule is 3 at least."
    monkeypatch.setattr(audits._Audits, "sections", lambda self: ())
    found = audits.audit_run(run.folder, by=Auditor(openings=log, policy=DEFAULT))
    assert f"would refuse 1 of {len(others) + 2} openings" in found.facts["Consortium"]
    said = dict(found.tables[0].rows)[COMPARING]
    assert said.startswith("The smallest total of this run is of 2 clients: ")


def assessment_of(run, sections=()):
    """Return the rows of the assessment."""
    evidence = FolderEvidence.of(read_run(run.folder), run.log)
    of = Provenance.of(evidence.run, run.task, evidence.openings, Auditor(), shipped=False)
    return dict(outline(evidence, of, sections).rows)


COMPARING = "Risk (7 c): clients that compare notes"
PROCESSORS = "Processors, and their contracts (Art. 28)"


@pytest.mark.parametrize(("name", "sealed"), [("nothing sealed", False), ("model sealed", True)])
def test_a_run_in_the_clear_has_no_authority_and_no_keys(prepared, monkeypatch, name, sealed):
    run = prepared(name)
    monkeypatch.setattr(audits._Audits, "sections", lambda self: ())
    found = audits.audit_run(run.folder, task=run.task)
    played = found.facts["Parties"]
    assert ("server, authority, client-1" in played, "all keys" in played) == (sealed, sealed)
    assert (found.facts["Authority's own log"] == "none: nothing was sealed") != sealed
    assert ("server and authority" in dict(found.tables[0].rows)[PROCESSORS]) == sealed
    (settings_of,) = (dict(t.rows) for t in found.tables if t.title.startswith("Settings"))
    assert settings_of["run.device"] == "None"  # the audit's is the CPU


@pytest.mark.parametrize(
    ("name", "n"),
    [("a round that passed", 3), ("no log of openings", 3), ("fewer clients than the rule", 2)],
)
def test_the_smallest_total_is_one_that_was_opened(prepared, name, n):
    """What a refused request asked for is none; a log that was lost hides none."""
    said = assessment_of(prepared(name))[COMPARING]
    assert said.startswith(f"The smallest total of this run is of {n} clients: ")


def test_a_round_that_passed_and_why_stand_on_the_page(prepared, monkeypatch):
    """In the facts, in the assessment and in a table; a client's value in a reason does not."""
    run = prepared("a round that passed")
    monkeypatch.setattr(audits._Audits, "sections", lambda self: ())
    found = audits.audit_run(run.folder, task=run.task)
    assert found.facts["Rounds"] == "3, of which 1 passed (no contribution counted)"
    assert found.facts["Incidents"] == "3, of 3 clients: see the table Incidents"
    processing = assessment_of(run)["Processing (7 a)"]
    assert "by fedavg in 3 rounds, of which 1 passed (no contribution counted), 20" in processing
    assert "did not count: 3, of 3 clients: see the table Incidents." in processing
    page = html_page(found)
    assert "<td>client-2</td><td>update</td><td>lost</td>" in page
    assert "the round passes: round 2" in page
    evidence = FolderEvidence.of(read_run(run.folder))
    told = replace(evidence.incidents[0], reason="client-2: a mean of 0.12345 is too large")
    (table,) = incident_table(replace(evidence, incidents=[told] * 101))
    assert table.title == "Incidents (and 1 more: incidents.jsonl)"
    assert table.rows[0][3] == "not shown: a client's value stands in it"
    assert list(incident_table(replace(evidence, incidents=[]))) == []


def test_a_run_of_processes_played_again_says_why_it_is_another_run(
    prepared, tmp_path, monkeypatch
):
    """Clients draw anew, but where the settings have them draw by the seed; and what follows."""
    run = shutil.copytree(prepared("processes of a consortium").folder, tmp_path / "run")
    monkeypatch.setattr(audits._Audits, "sections", lambda self: ())
    assert "is within" in audits.audit_run(run).facts["Played again"]
    again = audits_of(Prepared(run, None))
    assert not again._another_run
    monkeypatch.setattr(audits, "SAME", -1.0)
    by_seed = audits.audit_run(run).facts["Played again"]
    assert "it was on another machine, by another version, or files were changed. Of" in by_seed
    path = run / "config.json"
    settings = json.loads(path.read_text())
    settings["run"]["reproducible"] = False
    path.write_text(json.dumps(settings))
    monkeypatch.setattr(audits, "SAME", 1.0)  # however near it ends
    anew = audits.audit_run(run).facts["Played again"]
    assert "clients of separate processes draw anew in each session" in anew
    assert "files were changed" not in anew
    assert all(audits.OF_THE_REPLAY in said for said in (by_seed, anew))
    assert audits_of(Prepared(run, None))._another_run


OF_FOLDERS = {EXPOSURE, ENCRYPTION}
ATTACKED = [name for name, (_, true) in PREPARED.items() if not true.keys() & OF_FOLDERS]


@pytest.mark.parametrize("name", ATTACKED)
def test_a_false_sentence_of_what_attacks_found_is_found(prepared, name):
    """Another sentence, planted in the rule that decides, and another verdict."""
    run = prepared(name)
    place = list(run.rules).index(deciding(run.rules, run.found))
    false = replace(run, rules=saying(run.rules, place, "Records are safe."))
    calmer = (
        *run.rules[:place],
        replace(run.rules[place], verdict="calm"),
        *run.rules[place + 1 :],
    )
    for planted in (false, replace(run, rules=calmer)):
        with pytest.raises(AssertionError, match=re.escape(name)):
            check(name, sections(planted))


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
