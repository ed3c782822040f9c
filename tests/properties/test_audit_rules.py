"""Rules of verdicts: each can be the one that decides, one always does, and the page shows them."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_findings import one_run, records_showing

from securefl import Config
from securefl.audit.bounds.canary_bounds import CanaryBound, ClientTest
from securefl.audit.bounds.verdict import CanaryBounds
from securefl.audit.encryption.measured import Precision, Security
from securefl.audit.encryption.opened import EncryptionEvidence, opened_by_name
from securefl.audit.encryption.verdict import Encrypted, ParameterSet
from securefl.audit.exposure.verdict import Exposed
from securefl.audit.exposure.views import Field, Leak, PartyView, Shows
from securefl.audit.inversion.hidden_statistics import Attacker, HiddenStatistics
from securefl.audit.inversion.verdict import SumsFound
from securefl.audit.membership.verdict import Compared, MeasuredAttack
from securefl.audit.rules import decided, deciding
from securefl.audit.statistics import Interval, Roc
from securefl.audit.tracing.verdict import SentStatistics, Traced, Visibility
from securefl.federation.ledger import Entry
from securefl.federation.opening import Opening
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


def exposed(*fields, leaks=(), noisy=False):
    return Exposed([PartyView("server", fields)], leaks, noisy)


# Membership.


def attack(low=0.5, chance=0.5):
    about = "loss", "whoever has the final model", "by hand"
    return MeasuredAttack(*about, Roc.of([1.0], [0.0]), Interval(low, low, low), None, chance)


# Bounds on ε.


def clients(shown=1.0, noise=1.0, uneven=False):
    bound = CanaryBound(1.0, shown, 1.0, 200, 1e-5, 0.95)
    return ClientTest(bound, one_run(0.0), 4.0, around(noise), 1.0, uneven, 5, 100)


# Gradient inversion.


def hidden(exact, adaptive, least):
    """Gains over a guess of who knows the statistics, and who does not; and what lacking costs."""
    return HiddenStatistics(Attacker.JOINT, exact, adaptive, least, least)


def summed(tried=True, rebuilt=False, smaller=()):
    return SumsFound("rows", "5 clients, 1 step of 8", tried, rebuilt, 0.5 * rebuilt, smaller)


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


def encrypted(*openings, ledger=LEDGER, modulus_bits=54, precision=EXACT):
    evidence = EncryptionEvidence(Config(), openings, ledger)
    parameters = ParameterSet(Security("sums", 2048, modulus_bits), precision, "one total")
    return Encrypted(evidence, [parameters], opened_by_name(openings))


MADE = {
    "Who saw what": [
        exposed(leaks=[LEAK]),
        exposed(SEALED, SCORE),
        exposed(SEALED),
        exposed(UPDATE, noisy=True),
        exposed(UPDATE),
        exposed(UPDATE, SEALED),
    ],
    "Membership inference": [
        Compared([attack(0.9, 0.0)], 29, 100, 0.01),
        Compared([attack(0.9, 0.5)], 100, 100, 0.01),
        Compared([attack(0.6, 0.0), attack(0.9, 0.001)], 100, 100, 0.01),
        Compared([attack(0.6, 0.0), attack(0.9, 0.5)], 100, 100, 0.01),
    ],
    "Bounds on ε": [
        CanaryBounds("record", 1.0, records_showing(2.0), None),
        CanaryBounds("client", 9.0, None, clients(shown=5.0)),
        CanaryBounds("none", math.inf, records_showing(2.0), None),
        CanaryBounds("none", math.inf, None, None),
        CanaryBounds("record", 9.0, records_showing(2.0), None),
        CanaryBounds("client", 9.0, records_showing(2.0), clients()),
    ],
    "Gradient inversion, statistics sealed": [
        hidden(around(9), around(9), around(0)),
        hidden(around(9), around(5), around(4)),
        hidden(around(9), around(-1), around(0)),
        hidden(around(-1), around(-5), around(4)),
        hidden(around(9), around(0.01), around(9)),
        hidden(around(9), around(-1), around(10)),
    ],
    "Gradient inversion, nothing sealed": [
        hidden(around(9), around(-1), around(10)),
        hidden(around(-1), around(-1), around(0)),
    ],
    "Gradient inversion, model sealed": [
        summed(rebuilt=True),
        summed(smaller=("3 clients",)),
        summed(tried=False, smaller=("3 clients",)),
        summed(tried=False),
    ],
    "Tracing": [
        traced(None, statistics=Visibility.NOT_SENT),
        traced(None, statistics=Visibility.HIDDEN),
        traced(0.9),
        traced(None, noisy=0.7, client_sigma=1.0),
        traced(0.5, statistics=Visibility.EACH),
        traced(0.5, difference=0.9),
        traced(0.5, difference=0.9, sigma=10.0),
    ],
    "Encryption": [
        encrypted(OPENED, ledger=[]),
        encrypted(replace(OPENED, signers=FIVE[:2], n_clients=2)),
        encrypted(OPENED, modulus_bits=55),
        encrypted(OPENED, OPENED),
        encrypted(
            replace(OPENED, model="a" * 64),
            replace(OPENED, model="a" * 64, round=2, signers=FIVE[:4], n_clients=4),
        ),
        encrypted(OPENED, precision=replace(EXACT, encryption=1e-12)),
        encrypted(),
        encrypted(OPENED),
    ],
}


@pytest.mark.parametrize(
    ("section", "number"),
    [(section, i) for section, made in MADE.items() for i in range(len(made))],
)
def test_each_rule_decides_what_was_made_for_it(section, number):
    """And nothing that was made for another one."""
    rules, measured = RULES[section], MADE[section][number]
    assert deciding(rules, measured) is rules[number]
    verdict, words, do = decided(rules, measured)
    assert verdict is rules[number].verdict
    assert words
    assert not do or do.endswith(".")
    assert do or verdict in {"holds", "open"}


def test_something_was_made_for_every_rule():
    assert {section: len(made) for section, made in MADE.items()} == {
        section: len(rules) for section, rules in RULES.items()
    }


levels = st.floats(-1, 1)
intervals = st.builds(around, levels, st.floats(0, 1))
fields = st.builds(
    replace,
    st.just(UPDATE),
    shows=st.sampled_from(Shows),
    form=st.sampled_from(["plaintext", "ciphertext"]),
)
attacks = st.builds(attack, st.floats(0, 1), st.floats(0, 1))
bounds = st.builds(records_showing, st.floats(0, 10), st.floats(0, 10))
tests_of_clients = st.builds(clients, st.floats(0, 10), st.floats(0, 2), st.booleans())
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
        lambda seen, leaks, noisy: exposed(*seen, leaks=leaks, noisy=noisy),
        st.lists(fields, max_size=3),
        st.lists(st.just(LEAK), max_size=1),
        st.booleans(),
    ),
    "Membership inference": st.builds(
        Compared, st.lists(attacks, min_size=1), *[st.integers(1, 60)] * 2, st.floats(0, 0.5)
    ),
    "Bounds on ε": st.builds(
        lambda level, claimed, *found: CanaryBounds(
            level, math.inf if level == "none" else claimed, *found
        ),
        st.sampled_from(["none", "record", "client"]),
        st.floats(0, 10) | st.just(math.inf),
        st.none() | bounds,
        st.none() | tests_of_clients,
    ),
    "Gradient inversion, statistics sealed": comparisons,
    "Gradient inversion, nothing sealed": comparisons,
    "Gradient inversion, model sealed": st.builds(
        summed, st.booleans(), st.booleans(), st.sampled_from([(), ("3 clients", "5 clients")])
    ),
    "Tracing": st.builds(
        lambda statistics, profiles, sigma, *aucs: Traced(
            replace(SENT, statistics=statistics, profiles=profiles, sigma=sigma), *aucs
        ),
        *[st.sampled_from(Visibility)] * 2,
        st.none() | st.just(1.0),
        st.none() | intervals,
        *[intervals] * 2,
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


@given(st.sampled_from(sorted(ANY)).flatmap(lambda s: st.tuples(st.just(s), ANY[s])))
def test_one_rule_decides_whatever_is_measured(made):
    """The first that applies; its words can be said."""
    section, measured = made
    rule = deciding(RULES[section], measured)
    before = RULES[section][: RULES[section].index(rule)]
    assert not any(earlier.when(measured) for earlier in before)
    assert rule.when(measured)
    assert rule.words(measured)


def test_the_page_shows_the_rules():
    """Else: python docs/audit_table.py docs/audit.md."""
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    assert audit_table.written(page, audit_table.verdicts()) == page
