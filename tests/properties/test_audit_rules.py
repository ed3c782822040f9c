"""Rules of verdicts: each can decide, each sentence is true at every value, the page shows all."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_findings import one_run, records_showing

from securefl import Config
from securefl.audit.bounds.canary_bounds import CanaryBound, ClientTest
from securefl.audit.bounds.verdict import CanaryBounds
from securefl.audit.encryption.measured import Precision, Security
from securefl.audit.encryption.opened import EncryptionEvidence, opened_by_name
from securefl.audit.encryption.verdict import Encrypted, ParameterSet
from securefl.audit.exposure.leaks import Leak
from securefl.audit.exposure.verdict import Exposed
from securefl.audit.fitting_advice import fitting
from securefl.audit.inversion.hidden_statistics import Attacker, HiddenStatistics
from securefl.audit.inversion.verdict import SumsFound, of_smaller
from securefl.audit.membership.verdict import Compared, MeasuredAttack
from securefl.audit.noise_advice import noise_advice
from securefl.audit.rules import MORE_NOISE, decided, deciding
from securefl.audit.statistics import Interval, Roc
from securefl.audit.tracing.verdict import SentStatistics, Traced, Visibility, trials
from securefl.errors import ConfigError
from securefl.federation.ledger import Entry
from securefl.federation.opening import Opening
from securefl.report.views import Field, PartyView, Shows
from securefl.settings.axes import NORMALISATIONS
from securefl.settings.data_set import require_run
from securefl.settings.load import load_config
from securefl.task import configured_task
from securefl.types import Kind

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import audit_table
from audit_table import RULES


def around(value, width=0.02):
    return Interval(value, value - width, value + width)


# Who saw what.

UPDATE = Field("update/*", Kind.PARAMETERS, "plaintext", ("a",), 1, 1, 1, Shows.ONE_CLIENT)
SEALED = replace(UPDATE, form="ciphertext", shows=Shows.LENGTH)
SCORE = replace(UPDATE, kind=Kind.PROFILES, shows=Shows.SCORES)
LEAK = Leak(1, "update/parameters", "a -> server", "in plaintext")


def exposed(*fields, leaks=(), noisy=False, sized=0):
    return Exposed([PartyView("server", fields)], leaks, noisy, sized)


# The advice to add noise.

LEVELS = {
    "record": ("privacy.level=record", "privacy.records=100", "train.batch_size=8"),
    "client": ("privacy.level=client",),
}
NEVER = {"centralised", "singlenet", "fedper"}
"""Gathers the records; leaves no model that all share; leaves none that others could use."""


def taken(level, chosen):
    """Names of the normalisations that the rules between settings let run at a level."""
    for name in NORMALISATIONS.own():
        settings_of = [*chosen, f"algorithm.name={name}", "algorithm.weights=uniform"]
        with contextlib.suppress(ConfigError):
            load_config(None, [*settings_of, *LEVELS[level]])
            yield name


@pytest.mark.parametrize(
    ("chosen", "of_records"),
    [
        (("exchange.encrypt=statistics",), {"fixbn"}),
        (("exchange.encrypt=none", "algorithm.weights=uniform"), {"fixbn"}),
        (("exchange.encrypt=model", "solver.name=moon"), set()),
        (("exchange.encrypt=model", "model.norm=group"), {"fedavg"}),
        (("exchange.encrypt=model", "solver.name=moon", "server.name=fednova"), set()),
    ],
)
def test_the_advice_names_what_this_run_could_take_at_each_level(chosen, of_records):
    """All of it and no other; nothing that gathers the records or leaves no model to audit."""
    chosen = ("algorithm.name=fedavg", "train.batch_size=8", *chosen)
    config = load_config(None, chosen)
    said = noise_advice(config, has_bn=config.model.has_bn, fewest_records=100)
    assert said.startswith(MORE_NOISE)
    found = {
        level: set(re.findall(r'"([\w-]+)"', names))
        for level, names in re.findall(
            r'privacy\.level = "(\w+)" with algorithm\.name = ([^;,.]*)', said
        )
    }
    of_clients = {*taken("client", chosen)} - NEVER
    true = {"record": of_records, "client": of_clients}
    assert found == {level: names for level, names in true.items() if names}
    assert of_records <= {*taken("record", chosen)}
    assert ('each with algorithm.weights = "uniform"' in said) == (
        bool(found) and config.algorithm.weights != "uniform"
    )
    if not found:
        assert "other settings allow no noise: privacy.level" in said
        assert said.endswith("take another solver.")
    elif "fedavg" in of_clients:
        assert '"fedavg" (as in this run)' in said


# Membership.


def attack(low=0.5, chance=0.5, rate=None):
    about = "loss", "whoever has the final model", "by hand"
    rate = rate and Interval(rate, rate, rate)
    return MeasuredAttack(*about, Roc.of([1.0], [0.0]), Interval(low, low, low), rate, chance)


# Bounds on ε.


def clients(shown=1.0, noise=1.0, uneven=False):
    bound = CanaryBound(1.0, shown, 1.0, 200, 1e-5, 0.95)
    return ClientTest(bound, one_run(0.0), 4.0, around(noise), 1.0, uneven, 5, 100)


# Gradient inversion.


def hidden(exact, adaptive, least):
    """Gains over a guess of who knows the statistics, and who does not; and what lacking costs."""
    return HiddenStatistics(Attacker.JOINT, exact, adaptive, least, least)


def summed(tried=True, rebuilt=False, smaller=(), tried_smaller=True, slight=False):
    tried, tried_smaller = tried or rebuilt, tried_smaller or bool(smaller)
    of = "rows", "5 clients, 1 step of 8"
    share = 0.5 * (rebuilt and not slight)
    telling = () if slight else smaller[:1]
    return SumsFound(*of, tried, rebuilt, share, tried_smaller, smaller, slight, telling)


# Tracing.

SENT = SentStatistics(Visibility.TOTALS, Visibility.NOT_SENT, n_clients=5, n_records=32)


def traced(auc, difference=0.5, noisy=0.5, **sent):
    run = None if auc is None else around(auc)
    return Traced(replace(SENT, **sent), run, around(difference), around(noisy))


# Encryption.

FIVE = tuple("abcde")
OPENED = Opening(1, "1/mean", 30, FIVE, 5, "", "f" * 64, 1, "run")
LEDGER = [Entry(1, 1, "1/mean", Kind.STATISTICS, who, "server", "ciphertext", 1, 1) for who in FIVE]
EXACT = Precision(1e-9, 1e-7, 1e-9, 1e-9)


def encrypted(
    *openings, ledger=LEDGER, modulus_bits=54, precision=EXACT, simulated=True, foreign=()
):
    evidence = EncryptionEvidence(
        Config(),
        openings,
        ledger,
        own=openings if foreign else None,
        foreign=foreign,
        in_one_process=simulated,
    )
    parameters = ParameterSet(Security("sums", 2048, modulus_bits), precision, "one total")
    return Encrypted(evidence, [parameters], opened_by_name(openings))


NAN = Interval(math.nan, math.nan, math.nan)
UNMEASURED = "Not measured: a number that decides came out as none, so nothing is said."
READ = "Nothing was encrypted: the server could read the parameters of every single client"
TOLD = "Who has seen enough can tell {} which records were trained on. The attack 'loss', open to "
TOLD += "whoever has the final model, picks the training record out of two in {} of the cases "
TOLD += "(50 % is guessing)."
NO_EPSILON = "No ε is claimed, so nothing bounds what the model tells of a record. "
COSTS = "Hiding the statistics costs attackers something, and images are "
ALL = "Nobody received a single client's update, and all parties the sum of all of a round. "
OUT_OF = "says in {} of cases (50 % is guessing) which of two records was in"
OF_TOTAL = "Who reads a total of all clients " + OUT_OF
SIZES = " Totals of several lists of clients were opened, each with its weight, and from these "
SIZES += "follows how many samples 5 clients of the run trained on."
TWO_SUMS = " But two totals that differ by one client, while the model hardly changes, show that "
TWO_SUMS += "client as if it were in the clear (90.0% (88.0% to 92.0%) in a trial with 4 clients): "
TWO_SUMS += "the least number of clients does not stop that. Noise does."
MAY = " This run has 5 clients at a minimum of 3, so that such a pair can be opened; none was."

HALF = "50.0% (48.0% to 52.0%)"
LITTLE = ", little better than guessing."
ONE_TOTAL = "Decrypted by the authority: 1 total, each of 5 clients or more. "
ARGUED = (
    " That a sum hides single clients is worth 131.5 bits by estimates of lattice attacks, and "
)
ARGUED += "rests on an argument of SecureFL's authors that nobody has reviewed."
NOT_WITH_NOISE = " The difference of two totals was not measured with this noise."

MADE = {
    "Who saw what": [
        (
            exposed(leaks=[LEAK]),
            (
                "Messages or files are not as the settings promise: 1. The first: round 1, "
                "update/parameters, a -> server: in plaintext."
            ),
        ),
        (
            exposed(SEALED, SCORE),
            (
                "Of single clients the server could read a score each, by which it selected: how "
                "far their data are from its own. All that clients sent it was sealed."
            ),
        ),
        (exposed(SEALED, sized=5), "All that clients sent to the server was sealed." + SIZES),
        (
            exposed(SEALED),
            (
                "By its role, a server that kept to the protocol could read nothing of any single "
                "client: all that clients sent it was sealed, and it learnt totals alone."
            ),
        ),
        (exposed(UPDATE, noisy=True), f"{READ}, with the noise that ε counts."),
        (exposed(UPDATE), f"{READ}."),
        (
            exposed(UPDATE, SEALED),
            (
                "As the settings say, and no more: the server could read the parameters of every "
                "single client. The rest was sealed."
            ),
        ),
    ],
    "Membership inference": [
        (Compared([attack(math.nan, 0.0)], 100, 100, 0.01), UNMEASURED),
        (
            Compared([attack(0.9, 0.0)], 29, 100, 0.01),
            "Only 29 training and 100 test records could be compared.",
        ),
        (
            Compared([attack(0.9, 0.5)], 100, 100, 0.01),
            (
                "None of 1 attack told training records from others better than by chance. An "
                "attack that picks the training record out of two in 66.3% of the cases (50 % "
                "is guessing) would have been noticed with these 100 and 100 records, in 95% of "
                "audits; a weaker one may have been missed."
            ),
        ),
        (
            Compared([attack(0.6, 0.0), attack(0.9, 0.001)], 100, 100, 0.01),
            TOLD.format("clearly", "90.0% (90.0% to 90.0%)"),
        ),
        (
            Compared([attack(0.6, 0.0), attack(0.9, 0.5)], 100, 100, 0.01),
            TOLD.format("slightly better than by chance", "60.0% (60.0% to 60.0%)"),
        ),
    ],
    "Bounds on ε": [
        (CanaryBounds("client", math.nan, None, clients()), UNMEASURED),
        (
            CanaryBounds("record", 1.0, records_showing(2.0), None),
            "The claim is refuted: ε is said to be at most 1, and canary records show at least 2.",
        ),
        (
            CanaryBounds("client", 9.0, None, clients(shown=5.0)),
            (
                "The claim is refuted: a round's noise measures 1 clip norms where 1 are "
                "promised, and canary clients show an ε of at least 5 where the round is said "
                "to spend 4."
            ),
        ),
        (
            CanaryBounds("none", math.inf, records_showing(2.0), None),
            NO_EPSILON + "Canary records show an ε of at least 2: records are told apart (of an ε "
            "of just that, up to 88.08 % of guesses at even odds may be right).",
        ),
        (
            CanaryBounds("none", math.inf, None, None),
            NO_EPSILON + "No canary records were tried.",
        ),
        (
            CanaryBounds("record", 9.0, records_showing(2.0), None),
            (
                "ε is said to be at most 9 for one record of one client. So many canary records "
                "can show 5 at most, and showed 2: they could not have refuted it."
            ),
        ),
        (
            CanaryBounds("client", 9.0, records_showing(2.0), clients()),
            (
                "ε is at most 9 for all that one client contributes. It was attacked, and "
                "stood: canary clients show at least 1 of the 4 of one round."
            ),
        ),
    ],
    "Gradient inversion, statistics sealed": [
        (hidden(around(9), NAN, around(0)), UNMEASURED),
        (
            hidden(around(9), around(9), around(0)),
            (
                "Sealing the statistics is no protection: who reads a client's gradient could "
                "rebuild its images without them as well"
            ),
        ),
        (
            hidden(around(9), around(5), around(4)),
            COSTS + "still rebuilt, or may be, better than a guess from the label",
        ),
        (
            hidden(around(9), around(-1), around(0)),
            (
                "No protection is shown, and nobody without the statistics does better for certain "
                "than a guess from the label"
            ),
        ),
        (
            hidden(around(-1), around(-5), around(4)),
            COSTS + "not rebuilt for certain even with them",
        ),
        (
            hidden(around(9), around(0.01), around(9)),
            COSTS + "still rebuilt, or may be, better than a guess from the label",
        ),
        (
            hidden(around(9), around(-1), around(10)),
            COSTS + "not rebuilt better than a guess from the label",
        ),
    ],
    "Gradient inversion, nothing sealed": [
        (hidden(NAN, around(9), around(0)), UNMEASURED),
        (
            hidden(around(9), around(-1), around(10)),
            "Who reads a client's gradient and statistics could rebuild its images",
        ),
        (
            hidden(around(-1), around(-1), around(0)),
            (
                "Nobody rebuilds images for certain better than a guess from the label, "
                "statistics or not"
            ),
        ),
    ],
    "Gradient inversion, model sealed": [
        (
            summed(rebuilt=True),
            ALL + "From such a sum (5 clients, 1 step of 8) rows are rebuilt better than a guess "
            "from the labels, 50% of them clearly",
        ),
        (
            summed(smaller=("3 clients",)),
            ALL + "From such a sum (5 clients, 1 step of 8) no rows were rebuilt for certain "
            "better than a guess from the labels",
        ),
        (
            summed(tried=False, smaller=("3 clients",)),
            ALL + "One of this run (5 clients, 1 step of 8) is too large for these attacks, which "
            "is no proof, since smaller ones gave something away",
        ),
        (
            summed(tried=False, tried_smaller=False),
            (
                "Not measured: all parties received the sum of all updates of a round (5 clients, "
                "1 step of 8), and these attacks could be tried neither on such a sum nor on a "
                "smaller one"
            ),
        ),
        (
            summed(tried=False),
            ALL + "These attacks could not be tried on one of this run (5 clients, 1 step of 8), "
            "and smaller ones gave nothing away",
        ),
    ],
    "Tracing": [
        (traced(0.9, difference=math.nan), UNMEASURED),
        (
            traced(None, statistics=Visibility.NOT_SENT),
            (
                "No client of this run sends statistics or profiles, so nobody can trace a "
                "record in them. The figures say what they would show."
            ),
        ),
        (
            traced(None, statistics=Visibility.HIDDEN),
            (
                "Profiles travel encrypted, and only scores of them are opened: nobody reads the "
                "statistics that a record could be traced in."
            ),
        ),
        (traced(0.9), OF_TOTAL.format("90.0% (88.0% to 92.0%)") + "."),
        (
            traced(None, noisy=0.7, client_sigma=1.0),
            "Each client adds noise to what it sends. From the difference of two totals, in a "
            "trial with 4 clients, a reader " + OUT_OF.format("70.0% (68.0% to 72.0%)") + "." + MAY,
        ),
        (
            traced(0.5, statistics=Visibility.EACH),
            "The server reads each client's statistics, and "
            + OUT_OF.format(HALF)
            + ", which may be chance.",
        ),
        (
            traced(0.55, difference=0.9),
            OF_TOTAL.format("55.0% (53.0% to 57.0%)") + LITTLE + TWO_SUMS + MAY,
        ),
        (
            traced(0.55, sigma=1.0),
            OF_TOTAL.format("55.0% (53.0% to 57.0%)") + LITTLE + NOT_WITH_NOISE,
        ),
        (
            traced(0.5, difference=0.9, sigma=10.0),
            OF_TOTAL.format(HALF) + ", which may be chance." + NOT_WITH_NOISE,
        ),
        (traced(0.5), OF_TOTAL.format(HALF) + ", which may be chance."),
    ],
    "Encryption": [
        (
            encrypted(OPENED, ledger=[]),
            "Nothing was encrypted, so whatever clients sent could be read.",
        ),
        (
            encrypted(replace(OPENED, signers=FIVE[:2], n_clients=2)),
            "A total of 2 clients was decrypted, and the rule is 3 at least.",
        ),
        (
            encrypted(OPENED, modulus_bits=55),
            "The parameters are below 128-bit security: who records may read.",
        ),
        (
            encrypted(OPENED, OPENED),
            (
                "1 time a total or a score was opened for a session, round and name that had one "
                "already: the difference of two totals shows the clients that are in one of them "
                "alone, and a second score is a second number of a client's profile."
            ),
        ),
        (
            encrypted(
                replace(OPENED, model="a" * 64),
                replace(OPENED, model="a" * 64, round=2, signers=FIVE[:4], n_clients=4),
            ),
            (
                "At 1 model totals of several lists of clients were opened, and their sums and "
                "differences show fewer than 3 clients."
            ),
        ),
        (
            encrypted(OPENED, simulated=False, foreign=["round 1, '1/mean': n_values 61, and 60"]),
            (
                "The run's folder and the authority's own log do not say the same. Openings that "
                "differ, or are in one of them alone: 1. The first: round 1, '1/mean': n_values "
                "61, and 60."
            ),
        ),
        (
            encrypted(OPENED, precision=replace(EXACT, encryption=1e-12)),
            (
                "The error of encryption that should hide clients' keys is not there: values "
                "come out more exactly than it allows."
            ),
        ),
        (encrypted(), "What was decrypted is not known: no log of openings."),
        (encrypted(OPENED, precision=replace(EXACT, encryption=math.nan)), UNMEASURED),
        (
            encrypted(OPENED, simulated=False),
            ONE_TOTAL
            + "So says the run's folder alone: the authority's own log was not seen."
            + ARGUED,
        ),
        (
            encrypted(OPENED),
            ONE_TOTAL + "So says the log of the one process that played all parties." + ARGUED,
        ),
    ],
}
"""Of each rule, in their order: what was measured, and the sentence that is true of it."""


def check(section, number, rules):
    """Compare what these rules say of what was made for one of them with what is true of it."""
    measured, true = MADE[section][number]
    assert deciding(rules, measured) is rules[number]
    verdict, words, do = decided(rules, measured)
    assert verdict is rules[number].verdict
    assert words == true
    assert not do or do.endswith(".")
    assert do or verdict in {"holds", "open"}


EVERY = [(section, i) for section, made in MADE.items() for i in range(len(made))]


@pytest.mark.parametrize(("section", "number"), EVERY)
def test_each_rule_decides_what_was_made_for_it(section, number):
    """And nothing that was made for another one; its sentence is true, word by word."""
    check(section, number, RULES[section])


@pytest.mark.parametrize(("section", "number"), EVERY)
def test_a_false_sentence_is_found(section, number):
    """The words of another rule, planted in this one, fail the test above."""
    true = MADE[section][number][1]
    false = next(words for _, words in reversed(MADE[section]) if words != true)
    planted = list(RULES[section])
    planted[number] = replace(planted[number], words=lambda _: false)
    with pytest.raises(AssertionError):
        check(section, number, planted)


def test_something_was_made_for_every_rule():
    assert {section: len(made) for section, made in MADE.items()} == {
        section: len(rules) for section, rules in RULES.items()
    }


@pytest.mark.parametrize(
    ("area", "rate", "how"),
    [
        (0.64, 0.05, "slightly better than by chance"),
        (0.66, None, "better than by chance"),
        (0.64, 0.06, "better than by chance"),
    ],
)
def test_slightly_is_said_up_to_the_tables_numbers_alone(area, rate, how):
    words = decided(
        RULES["Membership inference"], Compared([attack(area, 0.0, rate)], 100, 100, 0.01)
    )[1]
    assert words.startswith(f"Who has seen enough can tell {how} which")


def test_a_total_that_tells_more_than_a_difference_is_not_outdone_by_it():
    words = decided(RULES["Tracing"], traced(0.974, difference=0.759))[1]
    assert "But" not in words
    assert "as if" not in words
    assert "show that client's records, too (75.9% (73.9% to 77.9%) in a trial" in words


def test_what_a_run_cannot_open_is_a_trial_and_no_risk_of_it():
    """Three clients at a minimum of three: no total lacks one of them."""
    for n, least, possible in ((3, 3, False), (4, 3, True), (5, 5, False)):
        found = traced(0.65, difference=0.9, n_clients=n, least=least)
        verdict, words, _ = decided(RULES["Tracing"], found)
        assert verdict == "weak"
        assert ("two totals" in words.lower()) == possible == (not trials(found))
        if not possible:
            assert trials(found).endswith(
                f"This run has {n} clients at a minimum of {least}, so no such pair can be opened, "
                "and none was."
            )
    assert decided(RULES["Tracing"], traced(0.5, difference=0.9, n_clients=3))[0] == "holds"
    opened = decided(RULES["Tracing"], traced(0.65, difference=0.9, pairs=2))[1]
    assert opened.endswith("can be opened; opened so: 2 pairs.")


def test_the_authoritys_own_log_changes_verdict_and_sentence():
    """Of processes; the log of a simulation is the authority's."""
    alone = encrypted(OPENED, simulated=False)
    given = replace(alone, evidence=replace(alone.evidence, own=[OPENED]))
    assert decided(RULES["Encryption"], alone)[0] == "weak"
    verdict, words, _ = decided(RULES["Encryption"], given)
    assert verdict == "holds"
    assert "So say the run's folder and the authority's own log." in words
    assert decided(RULES["Encryption"], encrypted(OPENED, ledger=[], foreign=["one"]))[0] == "leaks"


def test_advice_follows_what_the_audit_was_given():
    """No --full after a full audit, no --openings where there was one; keys by their names."""

    def advice(section, measured):
        return decided(RULES[section], measured)[2]

    few = records_showing(2.0)
    many = replace(few, any=replace(few.any, canaries=1000))
    assert "--full" in advice("Bounds on ε", CanaryBounds("record", 9.0, few, None))
    assert "--full" not in advice("Bounds on ε", CanaryBounds("record", 9.0, many, None))
    again = encrypted(OPENED, OPENED)
    assert "--openings" in advice("Encryption", again)
    for own, so in ([OPENED] * 2, True), ([OPENED], False):
        said = advice("Encryption", replace(again, evidence=replace(again.evidence, own=own)))
        assert "--openings" not in said
        assert ("own log says so, too: ask its operator" in said) == so
        assert ("own log by itself does not say so" in said) != so


SETTINGS = (
    ("exchange.encrypt=none",),
    ("exchange.encrypt=none", "selection.name=random", "selection.replacement=with"),
    ("exchange.encrypt=none", "data.clients=2", "data.partition=iid"),
    ("exchange.encrypt=none", "algorithm.name=static-bn", "model.norm=batch"),
    ("exchange.encrypt=none", "model.norm=group", "algorithm.name=fedavg"),
    ("exchange.encrypt=statistics", "algorithm.name=fedtan"),
    ("exchange.encrypt=model", "server.name=fednova", "algorithm.weights=samples"),
)
"""Of runs that take all that is advised, or not all of it."""
ASSIGNED = re.compile(r'(\w+\.\w+) = "(\w+)"')


@pytest.mark.parametrize("chosen", SETTINGS)
def test_no_advice_clashes_with_the_runs_other_settings(chosen):
    """Each of the table that names a value: the run takes it, or the report says why not."""
    config = load_config(None, chosen)
    task = configured_task(config)
    advised = {decided(RULES[name], one)[2] for name, made in MADE.items() for one, _ in made}
    assert sum(bool(ASSIGNED.search(do)) for do in advised) >= 5
    assert any(MORE_NOISE in do for do in advised)
    for do in advised:
        said = fitting(do, config, task, lambda: "Take it.")
        assert ("Take it." in said) == (MORE_NOISE in do)
        for sentence in do.partition(MORE_NOISE)[0].split(". "):
            sets = [f"{key}={value}" for key, value in ASSIGNED.findall(sentence)]
            try:
                require_run(load_config(None, [*chosen, *sets]))
            except ConfigError:
                key, value = ASSIGNED.findall(sentence)[0]
                clash = f'{key} = "{value}" does not go with this run\'s other settings: '
                assert (sentence in said, clash in said) == (False, True)
                assert f'or {key} = "none"' not in said
            else:
                assert sentence in said


nan = st.just(math.nan)
levels = st.floats(-1, 1) | nan
intervals = st.builds(around, levels, st.floats(0, 1))
areas = st.builds(around, st.floats(0.01, 1) | nan, st.floats(0, 1))
fields = st.builds(
    replace,
    st.just(UPDATE),
    shows=st.sampled_from(Shows),
    form=st.sampled_from(["plaintext", "ciphertext"]),
)
shares = st.floats(0, 1)
attacks = st.builds(attack, shares | nan, shares, st.none() | st.floats(0.001, 1))
epsilons = st.floats(0, 0.2) | st.floats(0, 1000)
bounds = st.builds(records_showing, epsilons, epsilons)
tests_of_clients = st.builds(clients, epsilons, st.floats(0, 2), st.booleans())
openings = st.builds(
    replace,
    st.just(OPENED),
    round=st.integers(1, 2),
    signers=st.integers(1, 5).map(lambda n: FIVE[:n]),
    refused=st.sampled_from(["", "too few"]),
)
comparisons = st.builds(hidden, intervals, intervals, intervals)
ANY = {
    "Who saw what": st.builds(
        lambda seen, leaks, noisy, sized: exposed(*seen, leaks=leaks, noisy=noisy, sized=sized),
        st.lists(fields, max_size=3),
        st.lists(st.just(LEAK), max_size=1),
        st.booleans(),
        st.integers(0, 2),
    ),
    "Membership inference": st.builds(
        Compared, st.lists(attacks, min_size=1), *[st.integers(1, 60)] * 2, st.floats(0, 0.5)
    ),
    "Bounds on ε": st.builds(
        lambda level, claimed, *found: CanaryBounds(
            level, math.inf if level == "none" else claimed, *found
        ),
        st.sampled_from(["none", "record", "client"]),
        epsilons | st.just(math.inf) | nan,
        st.none() | bounds,
        st.none() | tests_of_clients,
    ),
    "Gradient inversion, statistics sealed": comparisons,
    "Gradient inversion, nothing sealed": comparisons,
    "Gradient inversion, model sealed": st.builds(
        summed,
        st.booleans(),
        st.booleans(),
        st.sampled_from([(), ("3 clients", "5 clients")]),
        st.booleans(),
        st.booleans(),
    ),
    "Tracing": st.builds(
        lambda statistics, profiles, sigma, *aucs: Traced(
            replace(SENT, statistics=statistics, profiles=profiles, sigma=sigma), *aucs
        ),
        *[st.sampled_from(Visibility)] * 2,
        st.none() | st.just(1.0),
        st.none() | areas,
        *[areas] * 2,
    ),
    "Encryption": st.builds(
        lambda rows, ledger, bits, error: encrypted(
            *rows, ledger=ledger, modulus_bits=bits, precision=replace(EXACT, encryption=error)
        ),
        st.lists(openings, max_size=3),
        st.sampled_from([[], LEDGER]),
        st.sampled_from([37, 54, 55]),
        st.sampled_from([1e-9, 1e-12]),
    ),
}


def said(pattern, words):
    """Return the numbers of a sentence, or None where there is no such sentence."""
    found = re.search(pattern, words)
    return found and [float(number) for number in found.groups()]


def membership_is_true(found, verdict, words):
    if verdict == "holds":
        assert not any(each.p_value < found.probability for each in found.attacks)
    if verdict not in {"weak", "leaks"}:
        return
    strong = [each for each in found.alarmed if each.strong]
    slight = found.best.area.value <= 0.65 and (
        found.best.rate is None or found.best.rate.low <= 0.05
    )
    assert ("slightly" in words) == (verdict == "weak" and slight)
    assert ("clearly" in words) == bool(strong) == (verdict == "leaks")
    area, rate = said(r"two in ([\d.]+)%", words), said(r"recognises ([\d.]+)%", words)
    assert area is None or area[0] >= 50.5
    assert rate is None or rate[0] >= 1.0
    assert area or rate or not strong
    true = [
        each
        for each in strong or found.alarmed
        if area is None or abs(100 * each.area.value - area[0]) <= 0.051
    ]
    assert true


def epsilon_is_true(found, verdict, words):
    shown = said(r"ε of at least ([\d.e+]+):", words)
    if shown:
        assert ("next to nothing" in words) == (found.shown <= 0.16)
        assert ("private" in words) == (3 < found.shown <= 8)
        assert ("all but surely" in words) == (found.shown > 8)
        assert (100 / (1 + math.exp(-found.shown)) < 99.99) == ("up to" in words)
    assert ("No ε is claimed" in words) == (found.claimed == math.inf and verdict == "open")
    both = said(r"at most ([\d.e+-]+), and canary records show at least ([\d.e+-]+)\.", words)
    if both:
        assert both[0] < both[1]
        assert verdict == "leaks"
    if verdict == "holds":
        assert "attacked, and stood" in words
        assert found.shown <= found.claimed


def rebuilding_is_true(found, _verdict, words):
    if "not rebuilt better than" in words:
        assert found.adaptive_gain.value <= 0
    if "could rebuild" in words:
        assert max(found.exact_gain.low, found.adaptive_gain.low) > 0
    if "Nobody" in words or "nobody" in words:
        assert found.adaptive_gain.low <= 0
    if "costs attackers something" in words:
        assert found.least.low > 0


def sums_are_true(found, verdict, words):
    assert found.rebuilt == (verdict == "leaks")
    assert ("are rebuilt better" in words) == (found.rebuilt and not found.slight)
    assert ("come nearer to rows" in words) == (found.rebuilt and found.slight)
    by_smaller = verdict == "weak"
    assert ("if next to nothing" in words) == (by_smaller and not found.smaller_telling)
    of_others = of_smaller(found)
    assert ("were rebuilt" in of_others) == bool(found.smaller_telling)
    assert ("by next to nothing" in of_others) == (
        bool(found.smaller) and not found.smaller_telling
    )
    assert ("no rows were rebuilt" in words) == (found.tried and not found.rebuilt)
    assert "clients" not in words.replace(found.own, "")
    largest = (*found.smaller, *found.smaller_telling)[-1:]
    assert all(f"largest of {shape}" in of_others for shape in largest)
    assert ("gave nothing away" in of_smaller(found)) == (found.tried_smaller and not found.smaller)
    assert words.startswith("Not measured:") == (not (found.tried or found.tried_smaller))


def tracing_is_true(found, verdict, words):
    share = said(r"in ([\d.]+)% \(\S+ to \S+ of cases", words)
    if share is None:
        assert verdict in {"open", "holds"}
        return
    assert abs(share[0] - 100 * found.auc.value) <= 0.051
    assert ("may be chance" in words) == (found.auc.low <= 0.5)
    assert ("little better" in words) == (0.5 < found.auc.low <= 0.6)
    if verdict in {"holds", "open"}:
        assert "may be chance" in words
    if verdict == "holds":
        assert "not measured" not in words
    if "two totals that differ" in words.lower():
        assert found.difference.low > 0.6
        assert found.can_differ
        more = found.difference.value > found.auc.value
        assert ("as if it were in the clear" in words) == more


TRUE = {
    "Membership inference": membership_is_true,
    "Bounds on ε": epsilon_is_true,
    "Gradient inversion, statistics sealed": rebuilding_is_true,
    "Gradient inversion, nothing sealed": rebuilding_is_true,
    "Gradient inversion, model sealed": sums_are_true,
    "Tracing": tracing_is_true,
}


@settings(max_examples=300)
@given(st.sampled_from(sorted(ANY)).flatmap(lambda s: st.tuples(st.just(s), ANY[s])))
def test_a_sentence_is_true_whatever_is_measured(made):
    """The first rule that applies decides, and its words contradict no number; none is NaN."""
    section, measured = made
    rule = deciding(RULES[section], measured)
    before = RULES[section][: RULES[section].index(rule)]
    assert not any(earlier.when(measured) for earlier in before)
    assert rule.when(measured)
    words = rule.words(measured)
    assert words
    assert "nan" not in words
    if words != UNMEASURED:
        TRUE.get(section, lambda *_: None)(measured, rule.verdict, words)


@pytest.mark.parametrize("name", ["audit.md", "officer.md"])
def test_the_pages_show_the_rules_and_what_is_kept(name):
    """Else: python docs/audit_table.py docs/NAME."""
    page = (Path(__file__).parents[2] / "docs" / name).read_text()
    assert "by docs/audit_table.py" in page
    assert audit_table.filled(page) == page


def test_the_page_of_trust_says_what_our_audit_refutes_in_the_audits_own_words():
    """Each quotation of its list is a sentence of the rules, and of the demo's audits."""
    root = Path(__file__).parents[2]
    text = (root / "docs/explanations/trust.md").read_text()
    trust = text.partition("## Whom you trust with what")[2]
    quotes = re.findall("“(.*?)”", " ".join(trust.partition("\n## ")[0].split()))
    assert len(quotes) >= 4
    rules = " ".join(words for made in MADE.values() for _, words in made)
    page = (root / "docs" / "results" / "audit.md").read_text()
    assert [quote for quote in quotes if quote not in rules] == []
    assert [quote for quote in quotes if quote not in page] == []
