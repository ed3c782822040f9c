"""The chapter on encryption: the standard's table, measured precision, and what a log says."""

from __future__ import annotations

import math
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from matching_runs import make_config, make_task

import securefl
from securefl import Config
from securefl.audit.encryption.chapter import encryption_chapter
from securefl.audit.encryption.evidence import Evidence
from securefl.audit.encryption.flow_graph import Flow, graph
from securefl.audit.encryption.measured import (
    precision_bits,
    score_margin,
    score_precision,
    security_of,
    sum_margin,
    sum_precision,
)
from securefl.audit.encryption.opened import (
    differing_by_one,
    key_uses,
    kind_of_name,
    opened_by_name,
    refusals,
)
from securefl.audit.findings import Findings, Verdict
from securefl.crypto.committee_flood import Flood
from securefl.crypto.match_params import LINEAR as LINEAR_PARAMETERS
from securefl.crypto.match_params import SQUARE
from securefl.crypto.params import SUMS, CkksParameters
from securefl.exchange.match_flood import MAX_RELEASES, flood_deviation
from securefl.exchange.match_forms import FORMS
from securefl.exchange.policy import Flooding, OpeningRule, Policy
from securefl.federation.authority import Opening
from securefl.federation.ledger import Entry
from securefl.runs.folder_reader import OPENINGS, read_rows, read_run
from securefl.types import Kind

KEY = "a" * 64
FIVE = tuple(f"client-{i}" for i in range(1, 6))


def opening(name="1/mean", number=1, signers=FIVE, refused="", n_values=30, **changes):
    n_clients = 0 if refused else len(signers)
    return Opening(number, name, n_values, signers, n_clients, refused, KEY, 1, **changes)


def entry(sender, receiver, form="ciphertext", kind=Kind.STATISTICS, name="1/mean"):
    return Entry(1, 1, name, kind, sender, receiver, form, 30, 1000)


LEDGER = [
    *(entry(client, "server") for client in FIVE),
    *(entry(client, "server", "plaintext", Kind.PARAMETERS) for client in FIVE),
    entry("server", "authority"),
    entry("authority", "server", "plaintext"),
    *(entry("server", client, "plaintext") for client in FIVE),
]


OPENED = (opening(),)


def evidence(openings=OPENED, ledger=LEDGER, consortium=None, **exchange):
    config = Config.model_validate({"exchange": exchange} if exchange else {})
    return Evidence(config, list(openings), ledger, consortium)


def numbers_of(chapter):
    return {number.name: number.value for number in chapter.numbers}


@pytest.mark.parametrize(
    ("parameters", "level", "limits"),
    [
        (SUMS, 128, (109, 75, 58)),
        (LINEAR_PARAMETERS, 128, (109, 75, 58)),
        (SQUARE, 128, (218, 152, 118)),
        (CkksParameters(8192, (60, 60, 32), 60), 192, (218, 152, 118)),
        (CkksParameters(8192, (60, 58), 40), 256, (218, 152, 118)),
        (CkksParameters(16384, (60, 60, 60, 60, 60, 60), 60), 128, (438, 305, 237)),
    ],
)
def test_the_level_is_that_of_the_standards_row(parameters, level, limits):
    found = security_of("sums", parameters)
    assert (found.bits, found.limits) == (level, limits)
    assert found.total_bits == sum(parameters.modulus_bits)


def test_a_modulus_above_all_columns_has_no_level():
    found = replace(security_of("sums", SUMS), modulus_bits=(60, 60))
    assert found.bits == 0


def test_sums_are_exact_to_doubles_and_released_to_what_the_policy_says():
    """Where a value fills a slot, noise is above the default's rounding, and below that of 24 bits.

    Means below 1/4 have two bits more behind the point than behind their leading one.
    """
    found = sum_precision(Policy(), 5, 0, np.random.default_rng(0))
    assert precision_bits(found.unflooded) >= 45
    assert 25 <= precision_bits(found.flooded) < 30
    assert precision_bits(found.released) == precision_bits(found.flooded) == 27
    for bits in (16, 24):
        coarse = Policy(rules=(OpeningRule("*", bits),))
        found = sum_precision(coarse, 5, 0, np.random.default_rng(0))
        assert precision_bits(found.released) == bits + 2
    plain = sum_precision(Policy(flooding=None), 5, 0, np.random.default_rng(0))
    assert math.isnan(plain.flooded)


@pytest.mark.slow
def test_a_committees_sums_and_profiles_scores_are_as_exact_as_their_flooding():
    found = sum_precision(Policy(), 5, 3, np.random.default_rng(0))
    assert found.bare
    assert precision_bits(found.released) >= 22
    for form in FORMS.values():
        scores = score_precision(form, np.random.default_rng(0))
        assert scores.released < 1e-6


@pytest.mark.parametrize("n_clients", [3, 50])
def test_the_flooding_hides_as_many_bits_as_it_is_made_for(n_clients):
    """Once τ values are released; and one bit more where half as many are."""
    flooding = Flooding()
    margin = sum_margin(flooding, n_clients, 0)
    assert margin.deviation == flooding.deviation(SUMS.noise(n_clients))
    assert margin.statistical_bits_after(flooding.releases) == pytest.approx(40)
    assert margin.statistical_bits_after(flooding.releases // 2) == pytest.approx(41)
    assert margin.ratio_bits == pytest.approx(0.5 * math.log2(12 * 2**30) + 20)
    officers = sum_margin(flooding, n_clients, 3)
    assert officers.deviation == Flood(SUMS, 3, n_clients, 40, 2**30).slot_deviation
    assert officers.ratio_bits == pytest.approx(margin.ratio_bits)
    scores = score_margin(FORMS["linear"])
    assert scores.deviation == flood_deviation(LINEAR_PARAMETERS)
    assert scores.statistical_bits_after(MAX_RELEASES) == pytest.approx(30)


def test_openings_are_grouped_by_what_they_are_of():
    """Layers under one name; refused ones are counted by themselves."""
    rows = [
        opening("stage1.0.bn1/mean"),
        opening("stage2/mean", signers=FIVE[:3]),
        opening("stage2/mean", 2, FIVE[:2], "round 2, 'stage2/mean': 2 contributions"),
        opening("update/statistics"),
    ]
    means, update = opened_by_name(rows)
    assert (means.what, means.times, means.n_values) == ("*/mean", 2, 60)
    assert (means.fewest, means.refused) == (3, 1)
    assert (update.what, update.times, update.fewest) == ("update/statistics", 1, 5)
    assert refusals(rows) == {"2 contributions": 1}
    assert kind_of_name("size") == "size"


def test_a_key_has_left_what_it_has_not_released():
    """A ciphertext counts all its slots; scores are counted one by one, under their own key."""
    score = replace(opening("profile/score", n_values=5), key_id="b" * 64)
    rows = [opening(), opening(n_values=3000), score, replace(opening(), epoch=2)]
    first, second, scores = key_uses(rows, Flooding(releases=10_000))
    assert (first.released, first.left) == (3 * 2048, 10_000 - 3 * 2048)
    assert (second.epoch, second.released) == (2, 2048)
    assert (scores.released, scores.left) == (5, MAX_RELEASES - 5)
    assert key_uses(rows, None)[0].left is None


def test_groups_that_differ_by_one_client_are_found():
    """Of one name; by two clients, or one against another, they do not count."""
    four = FIVE[:4]
    assert differing_by_one([opening(), opening(number=2, signers=four)]) == 1
    assert differing_by_one([opening(), opening("2/mean", signers=four)]) == 0
    assert differing_by_one([opening(), opening(number=2, signers=FIVE[:3])]) == 0
    assert differing_by_one([opening(signers=FIVE[1:]), opening(number=2, signers=four)]) == 0
    refused = opening(number=2, signers=four, refused="no")
    assert differing_by_one([opening(), refused]) == 0


def test_a_run_without_encryption_is_open():
    ledger = [replace(row, form="plaintext") for row in LEDGER]
    chapter = encryption_chapter(evidence((), ledger, encrypt="none"), 0)
    assert chapter.verdict is Verdict.OPEN
    assert "Nothing was encrypted" in chapter.words
    assert "parameters, statistics" in chapter.words
    assert "authority" not in chapter.pictures[0].svg


def test_an_encrypted_run_holds_and_says_what_was_in_the_clear():
    chapter = encryption_chapter(evidence(), 0)
    assert chapter.verdict is Verdict.HOLDS
    assert "1 totals, each of 5 clients or more" in chapter.words
    assert "read by the server of each client: parameters" in chapter.words
    found = numbers_of(chapter)
    assert found["security, sums"] == 128
    assert found["precision released, sums"] == 27
    assert found["left of sums, epoch 1, aaaaaaaaaaaaaaaa"] == 2**30 - 2048
    Findings("run", "quick", 0, {}, [chapter]).to_json()


def test_too_few_clients_in_an_opened_total_are_a_leak():
    chapter = encryption_chapter(evidence([opening(signers=FIVE[:2])]), 0)
    assert chapter.verdict is Verdict.LEAKS
    assert "2 clients" in chapter.words


def test_without_flooding_or_with_a_key_that_is_worn_out_it_is_weak():
    bare = Policy(flooding=None)
    assert encryption_chapter(evidence(consortium=bare), 0).verdict is Verdict.WEAK
    worn = Policy(flooding=Flooding(releases=2048))
    chapter = encryption_chapter(evidence(consortium=worn), 0)
    assert chapter.verdict is Verdict.WEAK
    assert chapter.tables[1].alarming == {0}


def test_refused_openings_are_shown_in_red():
    """In the graph, in the table of names, and with their reasons."""
    rows = [opening(), opening(number=2, signers=FIVE[:2], refused="round 2, '1/mean': too few")]
    chapter = encryption_chapter(evidence(rows), 0)
    assert "1 requests were refused" in chapter.words
    assert 'fill="#b00020">1 refused' in chapter.pictures[0].svg
    assert chapter.tables[0].alarming == {0}
    assert chapter.tables[-1].rows == [("too few", "1")]


def test_the_graph_is_one_drawing_for_one_flow():
    """Well-formed, and with all that was counted."""
    flow = Flow(5, 40, 10, ("<kinds> & more",), 8, 3, 2, 1, 50, "authority")
    assert graph(flow) == graph(flow)
    root = ElementTree.fromstring(graph(flow))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for said in ("40 encrypted", "10 in the clear:", "opened 8 totals", "of 3+ clients each"):
        assert said in texts
    assert {"opened 2 scores", "1 refused", "11 to be opened", "<kinds> & more"} <= set(texts)


@pytest.mark.slow
@pytest.mark.usefixtures("no_hang", "quick")
@pytest.mark.parametrize("how", ["statistics", "committee", "profiles"])
def test_the_chapter_reads_real_runs(tmp_path, how):
    """Of an authority, of a committee, and of encrypted profiles."""
    if how == "profiles":
        securefl.run(make_config("linear", encrypt="model"), make_task(), out=tmp_path / "run")
    else:
        changes = {"run": {"rounds": 2}, "exchange": {"committee": 3 * (how == "committee")}}
        securefl.run(Config.model_validate(changes), out=tmp_path / "run")
    record = read_run(tmp_path / "run")
    openings = read_rows(tmp_path / "run" / OPENINGS, Opening)
    found = Evidence(record.config, openings, record.ledger)
    chapter = encryption_chapter(found, 0)
    assert chapter.verdict is Verdict.HOLDS
    whom = {"committee": "3 officers together"}.get(how, "authority")
    assert all(row[1] == whom for row in chapter.tables[0].rows)
    assert numbers_of(chapter)["decrypted"] == len(openings)
    assert ("scores of profiles" in chapter.words) == (how == "profiles")
    sealed = [row for row in record.ledger if row.form == "ciphertext"]
    assert found.flow.sealed_up == sum(row.receiver == "server" for row in sealed)
