"""The section on encryption: the standard's table, measured precision, and what a log says."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matching_runs import make_config, make_task
from without_error import encrypted_without_error

import securefl
from securefl import Config
from securefl.audit.encryption.flow_graph import Flow, graph
from securefl.audit.encryption.measured import (
    precision_bits,
    score_noise,
    score_precision,
    security_of,
    sum_noise,
    sum_precision,
)
from securefl.audit.encryption.opened import (
    EncryptionEvidence,
    answered_again,
    differing_by_one,
    key_uses,
    opened_by_name,
    refusals,
    shown_at_models,
)
from securefl.audit.encryption.report_section import encryption_section
from securefl.audit.findings import Findings
from securefl.audit.rules import Verdict
from securefl.crypto import KEY_DEVIATION
from securefl.crypto.params import MATCHES, SUMS, SumParameters
from securefl.crypto.seal_ring import SealRing
from securefl.exchange.card_keys import Quorum
from securefl.exchange.policy import OpeningRule, Policy
from securefl.exchange.profile_match import Profile
from securefl.federation.ledger import Entry
from securefl.federation.opening import Opening
from securefl.runs.folder_files import OPENINGS
from securefl.runs.folder_reader import read_rows, read_run
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
    return EncryptionEvidence(config, list(openings), ledger, consortium, in_one_process=True)


def numbers_of(section):
    return {number.name: number.value for number in section.numbers}


@pytest.mark.parametrize(
    ("parameters", "level", "limits"),
    [
        (SUMS, 128, (54, 37, 29)),
        (SumParameters(2048, (37,), 30), 192, (54, 37, 29)),
        (SumParameters(4096, (58,), 40), 256, (109, 75, 58)),
        (MATCHES, 128, (109, 75, 58)),
        (SumParameters(4096, (40, 35), 30), 192, (109, 75, 58)),
        (SumParameters(4096, (60, 49), 40), 128, (109, 75, 58)),
    ],
)
def test_the_level_is_that_of_the_standards_row(parameters, level, limits):
    found = security_of("sums", parameters)
    assert (found.bits, found.limits) == (level, limits)
    assert found.modulus_bits == parameters.modulus_bits


def test_a_modulus_above_all_columns_has_no_level():
    found = replace(security_of("sums", SUMS), modulus_bits=55)
    assert found.bits == 0


@pytest.mark.parametrize(
    ("n_clients", "quorum", "bits"),
    [(3, Quorum(), 27), (5, Quorum(), 27), (5, Quorum(4, 5), 27), (50, Quorum(2, 3), 25)],
)
def test_sums_err_by_the_error_of_their_encryption(n_clients, quorum, bits):
    """Whoever opens them: of each key's error one is in the sum, however many parts a key has."""
    found = sum_precision(Policy(), n_clients, quorum, np.random.default_rng(0))
    assert found.exact == pytest.approx(sum_noise(n_clients), rel=0.15)
    assert found.released == pytest.approx(found.exact, rel=0.2)
    assert precision_bits(found.released) == bits


def test_sums_are_released_to_what_the_policy_says():
    """Means below 1/4 have two bits more behind the point than behind their leading one."""
    for bits in (16, 24):
        coarse = Policy(rules=(OpeningRule("*", bits),))
        found = sum_precision(coarse, 5, Quorum(), np.random.default_rng(0))
        assert precision_bits(found.released) == bits + 2


@pytest.mark.parametrize("quorum", [Quorum(), Quorum(2, 3)])
def test_scores_err_by_their_encryption_and_their_weights_rounding(quorum):
    """By the first, beside which weights' rounding is nothing at unit size."""
    found = score_precision(Policy(), quorum, np.random.default_rng(0), 64)
    assert 0.5 < found.encryption / found.due < 2
    assert 0.5 < found.exact / found.encryption < 2
    assert found.exact < 1e-9
    bits = Policy().rules[0].precision_bits
    assert found.exact / 2 < found.released < found.exact + 2.0 ** -(bits + 1)
    assert not found.without_error


def test_scores_are_released_to_what_the_policy_says():
    """Sixteen bits behind the point, whatever comes before it."""
    coarse = Policy(rules=(OpeningRule("*", 16),))
    found = score_precision(coarse, Quorum(), np.random.default_rng(0), 32)
    assert 2.0**-18 < found.released <= 2.0**-17 + found.exact


def test_a_scores_noise_is_that_of_the_values_it_weighs():
    """One element of variance 1 and mean 0: Σ w e = 2 e_1 - 0 e_2 - e_3 / 2, over 1365 copies."""
    one = torch.ones(1, dtype=torch.float64)
    slot = KEY_DEVIATION * np.sqrt(4096 / 2) / 2.0**40
    due = 2.576 * slot * np.sqrt(2**2 + 0.5**2) / np.sqrt(4096 // 3)
    assert score_noise(Profile(0 * one, one, 0)) == pytest.approx(due)


def test_openings_are_grouped_by_what_they_are_of():
    """Layers under one name; refused ones are counted by themselves."""
    rows = [
        opening("stage1.bn/mean"),
        opening("stage2.bn/mean", signers=FIVE[:3]),
        opening("stage2.bn/mean", 2, FIVE[:2], "round 2, 'stage2.bn/mean': 2 contributions"),
        opening("update/statistics"),
    ]
    means, update = opened_by_name(rows)
    assert (means.what, means.times, means.n_values) == ("stage*.bn/mean", 2, 60)
    assert (means.fewest, means.refused) == (3, 1)
    assert (update.what, update.times, update.fewest) == ("update/statistics", 1, 5)
    assert refusals(rows) == {"2 contributions": 1}


def test_uses_of_keys_are_counted_by_epoch_and_by_what_they_open():
    """Scores apart from totals; and the fewest on a list that was answered."""
    score = opening("profile/score", n_values=5)
    few = opening(number=3, signers=FIVE[:2], refused="round 3, '1/mean': too few")
    rows = [opening(), opening(number=2, signers=FIVE[:4]), few, score, replace(opening(), epoch=2)]
    first, second, scores = key_uses(rows)
    assert (first.openings, first.fewest, first.scores) == (3, 4, False)
    assert (second.epoch, second.openings, second.fewest) == (2, 1, 5)
    assert (scores.openings, scores.scores, scores.key_id) == (1, True, KEY)


def test_a_total_that_was_opened_again_in_its_session_is_found():
    """In another session, round or name, or where it was refused, it is another one."""
    of = partial(opening, run="1" * 64)
    others = [of(), of(number=2), of("2/mean"), opening(run="2" * 64), of(refused="no")]
    assert answered_again(others) == 0
    assert answered_again([*others, of(signers=FIVE[:4]), of()]) == 2
    few, more = (of("profile/score", signers=FIVE[:n]) for n in (2, 5))
    assert answered_again([few, of("profile/score", signers=FIVE[2:])]) == 0
    assert answered_again([few, more]) == 2
    section = encryption_section(evidence([of(), of(signers=FIVE[:4])]), 0)
    assert section.verdict is Verdict.LEAKS
    assert "1 time a total or a score was opened for a session, round and name" in section.words


def test_groups_that_differ_by_one_client_are_found():
    """Of one name, or of one round; by two clients, or one against another, they do not count."""
    four = FIVE[:4]
    assert differing_by_one([opening(), opening(number=2, signers=four)]) == 1
    assert differing_by_one([opening(), opening("2/mean", signers=four)]) == 1
    assert differing_by_one([opening(), opening("2/mean", number=2, signers=four)]) == 0
    assert differing_by_one([opening(), opening("score/mean", signers=four)]) == 0
    both = opening(signers=four), opening(number=2, signers=four)
    assert differing_by_one([opening(), opening(number=2), *both]) == 1  # the same two groups
    assert differing_by_one([opening(), opening(number=2, signers=FIVE[:3])]) == 0
    assert differing_by_one([opening(signers=FIVE[1:]), opening(number=2, signers=four)]) == 0
    refused = opening(number=2, signers=four, refused="no")
    assert differing_by_one([opening(), refused]) == 0


def test_lists_at_one_model_that_show_too_few_are_a_leak():
    """Over rounds and sessions, whatever their names; scores have lists of their own."""
    of = partial(opening, model="5e" * 32)
    later = partial(of, number=2, run="2" * 64)
    assert differing_by_one([of(), later("2/mean", signers=FIVE[:4])]) == 1
    for fewer, n in ((FIVE[:4], 1), (FIVE[:3], 1), (FIVE, 0)):
        assert shown_at_models([of(), later("2/mean", signers=fewer)], 3) == n
    apart = [later(model="5f" * 32, signers=FIVE[:4]), later("score/mean", signers=FIVE[:4])]
    assert shown_at_models([of(), *apart, later(signers=FIVE[:4], refused="no")], 3) == 0
    assert shown_at_models([opening(), opening(number=2, signers=FIVE[:4])], 3) == 0
    many = [of(signers=tuple(f"{i}{c}" for c in "abc")) for i in range(5)]
    assert shown_at_models(many, 3) == 1
    assert shown_at_models(many[:4], 3) == 0
    section = encryption_section(evidence([of(), later(signers=FIVE[:4])]), 0)
    assert section.verdict is Verdict.LEAKS
    assert "At 1 model totals of several lists of clients were opened" in section.words


def test_a_run_without_encryption_is_open():
    ledger = [replace(row, form="plaintext") for row in LEDGER]
    section = encryption_section(evidence((), ledger, encrypt="none"), 0)
    assert section.verdict is Verdict.OPEN
    assert "Nothing was encrypted" in section.words
    assert "parameters, statistics" in section.words
    assert "authority" not in section.pictures[0].svg


def test_an_encrypted_run_holds_and_says_what_was_in_the_clear():
    section = encryption_section(evidence(), 0)
    assert section.verdict is Verdict.HOLDS
    assert "1 total, each of 5 clients or more" in section.words
    assert "read by the server of each client: parameters" in section.words
    found = numbers_of(section)
    assert found["security, sums"] == 128
    assert found["estimate, sums of keys known"] == 134
    assert found["estimate, sums of keys known, constant of Hint-LWE's theorem"] == 131.5
    assert found["precision released, sums"] == 27
    assert any("own argument" in note and "nobody has reviewed" in note for note in section.notes)
    assert any("54 bits at N = 2048, and 109 at N = 4096" in note for note in section.notes)
    assert any("opens the total of just these" in note for note in section.notes)
    assert not any("score" in note for note in section.notes)
    Findings("run", "quick", 0, {}, [section]).to_json()


def test_the_section_says_who_together_reads_and_who_may_be_away():
    """Of one authority, and of officers; where sums are in the clear nobody asks them."""
    alone = encryption_section(evidence(), 0)
    assert "The authority has the keys" in alone.notes[0]
    some = encryption_section(evidence(officers=5, threshold=4), 0)
    assert "Any 4 of 5 officers, with the server, could open one client's" in some.notes[0]
    assert "3 could open nothing. 1 may be away" in some.notes[0]
    assert "Decrypted by the 4 of 5 officers" in some.words


def test_encryption_without_an_error_is_a_leak(monkeypatch):
    """Sums come out more exactly than they may: clients' keys solve linear equations."""
    monkeypatch.setattr(SealRing, "encrypted", encrypted_without_error)
    section = encryption_section(evidence(), 0)
    assert section.verdict is Verdict.LEAKS
    assert "The error of encryption that should hide clients' keys is not there" in section.words


def test_too_few_clients_in_an_opened_total_are_a_leak():
    section = encryption_section(evidence([opening(signers=FIVE[:2])]), 0)
    assert section.verdict is Verdict.LEAKS
    assert "2 clients" in section.words


PROFILES = [
    *(entry(client, "server", kind=Kind.PROFILES, name="profile") for client in FIVE),
    entry("server", "authority", kind=Kind.PROFILES, name="profile/score"),
    entry("authority", "server", "plaintext", Kind.PROFILES, "profile/score"),
]


@pytest.mark.parametrize(("ledger", "sums"), [(PROFILES, False), (LEDGER + PROFILES, True)])
def test_profiles_have_a_row_of_their_own_and_scores_no_wear(ledger, sums):
    """However many were opened; officers open them as they open totals."""
    scores = [opening("profile/score", n, n_values=5) for n in range(1, 1000)]
    found = encryption_section(evidence([*scores, *OPENED * sums], ledger, officers=3), 0)
    assert found.verdict is Verdict.HOLDS
    assert "4,995 scores of profiles, each of one client" in found.words
    assert "Decrypted by the 2 of 3 officers" in found.words
    decrypted, keys, parameters = found.tables
    assert all(row[-1] == "2 of 3 officers" for row in decrypted.rows)
    assert keys.rows[-1][1] == "a score of a session, round and client, once"
    assert not keys.alarming
    assert [row[0] for row in parameters.rows] == ["sums"] * sums + ["profiles"]
    assert parameters.rows[-1][1:5] == ("128 bits", "4096", "92", "109 / 75 / 58")
    assert parameters.rows[-1][-2] == "one score"
    numbers = numbers_of(found)
    assert numbers["security, profiles"] == 128
    assert 30 <= numbers["precision released, profiles"] <= 33
    assert ("estimate, sums of keys known" in numbers) == sums
    assert any("one score, of one client" in note for note in found.notes)


def test_a_clients_score_that_was_opened_again_is_a_leak():
    """Two numbers of one profile; whatever the clients beside it."""
    of = partial(opening, "profile/score", run="1" * 64)
    section = encryption_section(evidence([of(), of(signers=FIVE[:1])], PROFILES), 0)
    assert section.verdict is Verdict.LEAKS
    assert "a second score is a second number of a client's profile" in section.words


def test_profiles_without_an_error_of_encryption_are_a_leak(monkeypatch):
    """A profile that is the baseline itself then has the score 0 exactly."""
    monkeypatch.setattr(SealRing, "encrypted", encrypted_without_error)
    rows = [opening("profile/score")]
    section = encryption_section(evidence(rows, PROFILES), 0)
    assert section.verdict is Verdict.LEAKS
    assert "The error of encryption that should hide clients' keys is not there" in section.words


def test_refused_openings_are_shown_in_red():
    """In the graph, in the table of names, and with their reasons."""
    rows = [opening(), opening(number=2, signers=FIVE[:2], refused="round 2, '1/mean': too few")]
    section = encryption_section(evidence(rows), 0)
    assert "Requests refused: 1." in section.words
    assert 'fill="#b00020">1 refused' in section.pictures[0].svg
    assert section.tables[0].alarming == {0}
    assert section.tables[-1].rows == [("too few", "1")]


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
@pytest.mark.parametrize("how", ["statistics", "officers", "profiles"])
def test_the_section_reads_real_runs(tmp_path, how):
    """Of an authority, of officers, and of encrypted profiles."""
    if how == "profiles":
        securefl.run(make_config(encrypt="model"), make_task(), out=tmp_path / "run")
    else:
        changes = {"run": {"rounds": 2}, "exchange": {"officers": 3 if how == "officers" else 1}}
        securefl.run(Config.model_validate(changes), out=tmp_path / "run")
    record = read_run(tmp_path / "run")
    openings = read_rows(tmp_path / "run" / OPENINGS, Opening)
    found = EncryptionEvidence(record.config, openings, record.ledger, in_one_process=True)
    section = encryption_section(found, 0)
    assert section.verdict is Verdict.HOLDS
    whom = {"officers": "2 of 3 officers"}.get(how, "authority")
    assert all(row[-1] == whom for row in section.tables[0].rows)
    assert numbers_of(section)["decrypted"] == len(openings)
    assert ("scores of profiles" in section.words) == (how == "profiles")
    sealed = [row for row in record.ledger if row.form == "ciphertext"]
    assert found.flow.sealed_up == sum(row.receiver == "server" for row in sealed)
