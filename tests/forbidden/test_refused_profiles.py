"""A profile that is none costs its client that round and nobody else anything."""

from __future__ import annotations

import json
import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from matching_runs import (
    MODES,
    SEND_PROFILE,
    Q,
    any_words,
    install,
    make_config,
    make_task,
    names,
    participants,
    run_in,
)
from scipy import stats
from torch.utils.data import TensorDataset

import securefl
from securefl.errors import MessageRefused, SignatureRefused, TooFewContributions
from securefl.exchange.officer import KeySet
from securefl.exchange.profile_match import MAX_SECOND_MOMENT, UNIT, Profile
from securefl.exchange.sums import ONE_TIME
from securefl.federation.client import Client
from securefl.federation.contribution import CANNOT_SEND
from securefl.federation.server import Server
from securefl.federation.survey import NumberRange
from securefl.runs.checkpoint import Checkpoint
from securefl.types import PROFILE

pytestmark = pytest.mark.usefixtures("no_hang", "quick")

HONEST = 5


@pytest.fixture(scope="module")
def foreign():
    return KeySet.ephemeral()


def flipped(message, share):
    place = int(share * (len(message) - 1))
    return message[:place] + bytes([message[place] ^ 4]) + message[place + 1 :]


def shorter(profile):
    return Profile(profile.mean_Q[:-1], profile.variance_Q[:-1], profile.version)


def far(profile):
    return Profile(profile.mean_Q + 77.125, profile.variance_Q, profile.version)


def another_version(profile, by):
    return Profile(profile.mean_Q, profile.variance_Q, profile.version + by)


EVERYWHERE = {
    "truncated": lambda s: s.message()[:-1],
    "nothing": lambda s: b"",
    "one byte longer": lambda s: s.message() + b"\0",
    "a megabyte longer": lambda s: s.message() + bytes(1 << 20),
    "a bit flipped in the header": lambda s: flipped(s.message(), 0.002),
    "a bit flipped in the payload": lambda s: flipped(s.message(), 0.9),
    "the last bit flipped": lambda s: flipped(s.message(), 1),
    "truncated and signed": lambda s: s.changed(lambda p: p[:-1]),
    "one byte longer and signed": lambda s: s.changed(lambda p: p + b"\0"),
    "another q": lambda s: s.message(profile=shorter(s.profile)),
    "another q, and another in the header": lambda s: s.changed(
        lambda p: p[:4] + (Q - 1).to_bytes(4, "little") + p[8:]
    ),
    "a false size in the header": lambda s: s.signed(s.sealed, n_values=2 * Q - 2),
    "no magic": lambda s: s.changed(lambda p: b"prf2" + p[4:]),
    "an older version": lambda s: s.with_version(max(s.profile.version - 1, 0) or 2**64 - 1),
    "a newer version": lambda s: s.message(profile=another_version(s.profile, 1)),
    "the largest version": lambda s: s.with_version(2**64 - 1),
    "of the round before": lambda s: s.message(round_number=s.round - 1),
    "of the next round": lambda s: s.message(round_number=s.round + 1),
    "of another run": lambda s: s.message(run="00" * 32),
    "of another name": lambda s: s.signed(s.sealed, name="profile/score"),
    "of another form": lambda s: s.signed(s.sealed, form="match/none"),
    "another key in the header": lambda s: s.signed(s.sealed, key_id="ab" * 32),
    "signed by another client": lambda s: s.signed(s.sealed, s.other.signing_key),
    "in another client's name": lambda s: s.signed(s.sealed, sender="client-1"),
    "in a stranger's name": lambda s: s.signed(s.sealed, sender="client-99"),
}
CLEAR = {
    "NaN": lambda place, s: s.with_clear(place, math.nan),
    "infinity": lambda place, s: s.with_clear(place, math.inf),
    "minus infinity": lambda place, s: s.with_clear(place, -math.inf),
}
SEALED = {
    "sealed for other officers": lambda s: s.under(s.foreign),
    "words outside the ring": lambda s: s.with_ciphertext(lambda c: b"\xff" * len(c)),
    "one ciphertext more": lambda s: s.with_ciphertext(lambda c: c * 2),
    "no ciphertext": lambda s: s.with_ciphertext(lambda c: b""),
    "no nonce": lambda s: s.signed(s.sealed, nonce=""),
    "a shorter nonce": lambda s: s.signed(s.sealed, nonce="ab" * 15),
    "a nonce that is none": lambda s: s.signed(s.sealed, nonce="no" * 16),
    "of a sum's form": lambda s: s.signed(s.sealed, form=ONE_TIME),
    "out of range": lambda s: s.message(profile=far(s.profile)),
    "a negative score": lambda s: s.sealing(np.array([0.0] * 2 * Q + [30.0])),
}
RUBBISH = {
    "by another secret": lambda s: s.by_another_secret(),
    "sealed for other officers, and a lie": lambda s: s.under(
        s.foreign, key_id=s.client.profile_sealer.key_id
    ),
    "any words": lambda s: s.with_ciphertext(any_words),
    "zeros": lambda s: s.with_ciphertext(lambda c: bytes(len(c))),
    "another nonce": lambda s: s.signed(s.sealed, nonce="ab" * 16),
}
"""What opens to a uniform number: no score 255 times in 256, and below zero in half the rest."""


def clear_at(place, *kinds):
    return {f"{kind} at {place}": partial(CLEAR[kind], place) for kind in kinds}


KINDS = {
    "plain": EVERYWHERE
    | clear_at(0, *CLEAR)
    | clear_at(2 * Q - 1, *CLEAR)
    | {
        "a negative variance": lambda s: s.with_clear(Q, -13.0625),
        "a mean whose square is infinite": lambda s: s.with_clear(0, -1.5e200),
    },
    "sealed": EVERYWHERE | SEALED,
}
OPENED_FIRST = {"a negative score", "a mean whose square is infinite"}
"""Nobody can tell before the score is opened."""


@pytest.fixture(scope="module")
def crowd(foreign, tmp_path_factory):
    """By mode, a run of five honest clients and one faulty one of each kind, and one of the five.

    Two clients a round in both; what is compared is the mode's own, made once.
    """
    made = {}

    def runs(mode):
        if mode in made:
            return made[mode]
        folder = tmp_path_factory.mktemp(mode)
        kinds = KINDS[mode]
        faulty = {f"client-{i}": kind for i, kind in enumerate(kinds, HONEST + 1)}
        n = HONEST + len(faulty)
        alone = run_in(folder / "alone", make_config(mode, 2, 0.6), make_task(HONEST))
        with pytest.MonkeyPatch.context() as patch:
            install(patch, {client: kinds[kind] for client, kind in faulty.items()}, foreign)
            settings = make_config(mode, 2, round(3 / n, 4))
            together = run_in(folder / "all", settings, make_task(n))
        made[mode] = faulty, folder / "all", together, alone
        return made[mode]

    return runs


@pytest.mark.parametrize("mode", MODES)
def test_what_a_client_sends_in_place_of_a_profile_is_refused(crowd, mode):
    """Every kind, in every round, is an incident of its client: asked each time, and never let in.

    What honest clients sent is no incident.
    """
    faulty, folder, (result, rounds), _ = crowd(mode)
    wanted = [(number, client, PROFILE) for number in (1, 2) for client in faulty]
    assert sorted((i.round, i.client, i.name) for i in result.incidents) == sorted(wanted)
    opened = {i.client for i in result.incidents if "score is not what" in i.reason}
    assert {faulty[client] for client in opened} == OPENED_FIRST & set(faulty.values())
    written = [json.loads(line) for line in (folder / "incidents.jsonl").read_text().splitlines()]
    assert [row["reason"] for row in written] == [i.reason for i in result.incidents]
    asked = {(e.round, e.receiver) for e in result.ledger.entries if e.name == UNIT}
    assert {(number, client) for number, client, _ in wanted} <= asked
    for each, metrics in zip(rounds, result.metrics, strict=True):
        known = {*each.selected, *each.present, *each.measured, *each.scores}
        assert not known & set(faulty)
        assert set(metrics.dropped) == set(faulty)


@pytest.mark.parametrize("mode", MODES)
def test_the_others_are_chosen_and_trained_as_if_it_were_not_there(crowd, mode):
    """Selections are those of a run of the honest clients, and so is the model, to the last bit."""
    _, _, (result, rounds), (alone, rounds_alone) = crowd(mode)
    assert len(rounds) == 2
    for here, there in zip(rounds, rounds_alone, strict=True):
        assert here.selected == there.selected
        assert here.present == there.present == tuple(here.selected)
        assert here.measured.keys() == there.measured.keys()
        for client, divergence in there.measured.items():
            assert here.measured[client] == pytest.approx(divergence, abs=1e-3)
    for name, value in alone.model.state_dict().items():
        assert torch.equal(result.model.state_dict()[name], value)


def test_rubbish_is_an_incident_or_an_outlier_and_harms_no_other(monkeypatch, tmp_path, foreign):
    """Seven times in eight it is one; others have the scores of a run without it.

    What counts as a score by chance may be far from all others, or not: a lie that its client
    could tell with a profile, too.
    """
    kinds = [kind for kind in RUBBISH.values() for _ in range(12)]
    faulty = {f"client-{i}": kind for i, kind in enumerate(kinds, HONEST + 1)}
    n = HONEST + len(faulty)
    _, (alone,) = run_in(tmp_path / "alone", make_config("sealed", 1, 0.6), make_task(HONEST))
    install(monkeypatch, faulty, foreign)
    config = make_config("sealed", 1, round(3 / n, 4))
    result, (together,) = run_in(tmp_path / "all", config, make_task(n))
    reasons = {i.client: i.reason for i in result.incidents}
    assert reasons.keys() <= faulty.keys()
    assert {"score is not what" in reason for reason in reasons.values()} == {True}
    low, high = stats.binom(len(faulty), 7 / 8).ppf([1e-6, 1 - 1e-6])
    assert low <= len(reasons) <= high
    assert together.measured.keys() == {*names(1, 2, 3, 4, 5), *faulty} - reasons.keys()
    for client, divergence in alone.measured.items():
        assert together.measured[client] == pytest.approx(divergence, abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_no_incident_shows_a_clients_values(crowd, mode):
    """Neither what it should have sent nor what it did send."""
    _, folder, (result, _), _ = crowd(mode)
    for text in [i.reason for i in result.incidents] + [(folder / "incidents.jsonl").read_text()]:
        assert not re.search(r"77\.1|13\.06|1\.5e\+?200|\bnan\b", text)


@pytest.mark.parametrize("mode", MODES)
def test_a_refused_refreshment_leaves_the_old_divergence(monkeypatch, tmp_path, foreign, mode):
    """Honest at first, refused in round 2: not present, still known as of round 1, asked again."""
    kinds = ["truncated", "a newer version", "an older version", "signed by another client"]
    kinds += ["words outside the ring", "a negative score"] if mode == "sealed" else []
    faulty = {f"client-{i}": KINDS[mode][kind] for i, kind in enumerate(kinds, 3)}
    install(monkeypatch, faulty, foreign, rounds={2})
    everyone = make_task(len(kinds) + 2)
    config = make_config(mode, 3, 1.0)
    known = []

    def keep(metrics):
        known.append(Checkpoint.read(tmp_path / "run/checkpoint.safetensors").numbers["divergence"])

    result, rounds = run_in(tmp_path / "run", config, everyone, on_round=keep)
    first, second, third = rounds
    assert {(i.round, i.client) for i in result.incidents} == {(2, client) for client in faulty}
    assert first.present == third.present == tuple(first.selected)
    assert second.selected == first.selected
    assert set(second.present) == set(second.measured) == {"client-1", "client-2"}
    for client in faulty:
        assert known[1][client] == known[0][client] == first.measured[client]
        assert known[2][client] == third.measured[client]
        assert third.scores[client] == pytest.approx(second.scores[client])


@pytest.mark.parametrize("mode", MODES)
def test_a_profile_of_an_earlier_round_is_no_answer_again(monkeypatch, tmp_path, mode):
    """A client that sends the very message that counted in round 1 is refused in round 2."""
    sent = {}

    def send_profile(self, run, round_number, profile, state=""):
        message = SEND_PROFILE(self, run, round_number, profile, state)
        return sent.setdefault(self.name, message) if self.name == "client-2" else message

    monkeypatch.setattr(Client, "send_profile", send_profile)
    result, rounds = run_in(tmp_path / "run", make_config(mode, 2, 1.0), make_task())
    assert [(i.round, i.client) for i in result.incidents] == [(2, "client-2")]
    assert rounds[1].present == names(1, 3, 4, 5)


@pytest.mark.parametrize("mode", MODES)
def test_a_client_that_passes_on_anothers_message_gains_nothing(monkeypatch, tmp_path, mode):
    """It counts for the one who signed it, once, with that one's own score; not for the sender."""
    messages = {}

    def send_profile(self, run, round_number, profile, state=""):
        messages[self.name] = SEND_PROFILE(self, run, round_number, profile, state)
        return messages["client-1"] if self.name == "client-4" else messages[self.name]

    alone, rounds_alone = run_in(tmp_path / "alone", make_config(mode, 1, 1.0), make_task())
    monkeypatch.setattr(Client, "send_profile", send_profile)
    result, rounds = run_in(tmp_path / "run", make_config(mode, 1, 1.0), make_task())
    assert [(i.client, i.reason) for i in result.incidents] == [
        ("client-4", "client-4: sent the profile of 'client-1'")
    ]
    assert rounds[0].present == names(1, 2, 3, 5)
    before = rounds_alone[0].measured
    assert rounds[0].measured["client-1"] == pytest.approx(before["client-1"], abs=1e-4)
    assert not alone.incidents


@pytest.mark.parametrize("mode", MODES)
def test_a_client_whose_data_hold_nan_stays_out(tmp_path, mode, caplog):
    """A data set that is read as it goes, with one NaN in it, gives no profile."""
    task = make_task()
    x, y = task.clients[2]
    x = x.clone()
    x[7, 1] = math.nan
    task = make_task(clients=[*task.clients[:2], TensorDataset(x, y), *task.clients[3:]])
    result, rounds = run_in(tmp_path / "run", make_config(mode, 2, 0.6), task)
    assert {(i.round, i.client, i.name) for i in result.incidents} == {
        (1, "client-3", PROFILE),
        (2, "client-3", PROFILE),
    }
    assert all(i.reason == f"client-3, {PROFILE}: {CANNOT_SEND}" for i in result.incidents)
    assert all("client-3: layer" in line and "clean the data" in line for line in caplog.messages)
    assert not any("client-3" in each.selected for each in rounds)


def test_a_client_far_from_all_others_is_scored_all_the_same(tmp_path):
    """Out of the range that can be sealed, it counts as far as that goes, with no incident."""
    task = make_task()
    x, y = task.clients[4]
    task = make_task(clients=[*task.clients[:4], (x * 1e6 + 1e7, y)])
    result, rounds = run_in(tmp_path / "run", make_config("sealed", 1, 0.6), task)
    assert not result.incidents
    measured = rounds[0].measured
    assert max(measured, key=measured.get) == "client-5"
    assert "client-5" not in rounds[0].present


@pytest.mark.parametrize("size", [1.0, 1e160, 1e308])
@pytest.mark.parametrize("variance", [0.0, 1.0, 1e300])
def test_what_is_too_far_can_always_be_sealed(size, variance):
    """Rounding, the variance's floor and infinite squares included; no sign changes."""
    rng = torch.Generator().manual_seed(0)
    mean_Q = torch.randn(200, generator=rng, dtype=torch.float64) * size * 30
    mean_Q = mean_Q.clamp(-1e308, 1e308)
    made = Profile(mean_Q, torch.full_like(mean_Q, variance), 0).in_range()
    moment_Q = made.variance_Q + made.mean_Q.square()
    assert moment_Q.max() <= MAX_SECOND_MOMENT
    assert moment_Q.max() > 0.99 * MAX_SECOND_MOMENT or size == 1
    assert torch.equal(made.mean_Q.sign() * mean_Q.sign() >= 0, torch.ones(200, dtype=torch.bool))


@pytest.mark.parametrize("mode", MODES)
def test_without_any_profile_a_run_ends_and_goes_on_later(monkeypatch, tmp_path, mode):
    """The error says where to look; the folder says why; with honest clients the run resumes."""
    task, everyone = make_task(), names(1, 2, 3, 4, 5)
    with monkeypatch.context() as patch:
        install(patch, dict.fromkeys(everyone, EVERYWHERE["truncated"]))
        with pytest.raises(TooFewContributions, match=r"of 5 clients none.*incidents\.jsonl"):
            run_in(tmp_path / "run", make_config(mode, 2), task)
    written = (tmp_path / "run/incidents.jsonl").read_text().splitlines()
    assert {json.loads(line)["client"] for line in written} == set(everyone)
    securefl.resume(tmp_path / "run", task)
    rounds = participants(tmp_path / "run")
    assert [len(each.present) for each in rounds] == [3, 3]
    assert (tmp_path / "run/incidents.jsonl").read_text() == ""


@pytest.mark.parametrize("mode", MODES)
def test_all_refreshments_refused_is_a_round_without_training(monkeypatch, tmp_path, mode):
    """Old divergences are there still, so the run goes on, and the model stays for that round."""
    install(monkeypatch, dict.fromkeys(names(*range(1, 6)), EVERYWHERE["nothing"]), rounds={2})
    result, rounds = run_in(tmp_path / "run", make_config(mode, 3), make_task())
    assert [len(each.present) for each in rounds] == [3, 0, 3]
    assert [len(each.selected) for each in rounds] == [3, 3, 3]
    assert result.metrics[1].accuracy == result.metrics[0].accuracy


NUMBERS = {
    "NaN": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "a huge number": 1e300,
    "minus a huge number": -1e300,
}
SIZES = NUMBERS | {"no sample": 0.0, "less than none": -4.0, "half a sample": 2.5}


@pytest.mark.parametrize(
    ("selector", "asked", "numbers"),
    [
        ({"name": "afl"}, "selection/loss", NUMBERS),
        ({"name": "afl"}, "selection/size", SIZES),
        ({"name": "data-share"}, "selection/size", SIZES),
        ({"name": "fedprof", "alpha": "theorem1"}, "selection/size", SIZES),
    ],
    ids=["afl's loss", "afl's size", "data share", "theorem 1"],
)
def test_a_number_that_would_spoil_the_draw_is_refused(
    monkeypatch, tmp_path, selector, asked, numbers
):
    """One client of each kind: an incident each round, and the others as if it were not there."""
    send = Client.send_number
    faulty = {f"client-{i}": number for i, number in enumerate(numbers.values(), 6)}
    n = 5 + len(faulty)

    def config(fraction):
        own = {"excluded": 0.0} if selector["name"] == "afl" else {}
        return make_config("plain", 2, fraction, **{"alpha": 10.0} | selector | own)

    monkeypatch.setattr(
        Client,
        "send_number",
        lambda self, run, number, name, value: send(
            self, run, number, name, faulty.get(self.name, value) if name == asked else value
        ),
    )
    result, rounds = run_in(tmp_path / "all", config(round(3 / n, 4)), make_task(n))
    monkeypatch.undo()
    alone, rounds_alone = run_in(tmp_path / "alone", config(0.6), make_task(5))
    assert {(i.round, i.client, i.name) for i in result.incidents} == {
        (number, client, asked) for number in (1, 2) for client in faulty
    }
    assert all("must be a" in i.reason for i in result.incidents)
    assert [t.selected for t in rounds] == [t.selected for t in rounds_alone]
    for name, value in alone.model.state_dict().items():
        assert torch.equal(result.model.state_dict()[name], value)


@pytest.mark.parametrize("mode", MODES)
def test_a_survey_takes_one_answer_of_each_that_was_asked(monkeypatch, tmp_path, mode):
    """A copy, a second message, and an answer of a client of the run that was not asked."""
    asked_profile, surveys = Server.ask_profile, []

    def ask_profile(self, round_number, matcher, baseline, asked, state):
        assert set(asked) == set(names(1, 2, 3, 4, 5)) or round_number > 1
        made = asked_profile(
            self, round_number, matcher, baseline, set(asked) - {"client-2"}, state
        )
        surveys.append(made)
        return made

    monkeypatch.setattr(Server, "ask_profile", ask_profile)
    messages = {}

    def send_profile(self, run, round_number, profile, state=""):
        messages[self.name] = SEND_PROFILE(self, run, round_number, profile, state)
        return messages[self.name]

    monkeypatch.setattr(Client, "send_profile", send_profile)
    result, rounds = run_in(tmp_path / "run", make_config(mode, 1, 1.0), make_task())
    assert [i.reason for i in result.incidents] == ["client-2 was not asked for its profile"]
    assert rounds[0].present == names(1, 3, 4, 5)
    (survey,) = surveys
    before = survey.request()
    with pytest.raises(MessageRefused, match="client-1 has sent its profile already"):
        survey.receive(messages["client-1"])
    with pytest.raises(MessageRefused, match="was not asked"):
        survey.receive(messages["client-2"])
    with pytest.raises(SignatureRefused):
        survey.receive(messages["client-1"].replace(b'"client-1"', b'"client-9"'))
    assert survey.request() == before


def test_a_range_says_what_it_takes():
    """In words, as incidents repeat it."""
    assert str(NumberRange(1, 2**40, whole=True)) == "a whole number from 1 to 1099511627776"
    assert str(NumberRange(-1e30, 1e30)) == "a number from -1e+30 to 1e+30"
    assert 2.0 in NumberRange(1, 2)
    assert 2.5 not in NumberRange(1, 2)
