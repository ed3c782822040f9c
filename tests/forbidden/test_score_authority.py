"""The authority of the profile match opens one score for each client and round."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from matching_runs import make_config, make_task, names, participants, run_in

import securefl
from securefl.errors import (
    Duplicate,
    KeyMismatch,
    MessageRefused,
    OpeningRefused,
    OtherModel,
    Relabelled,
    Replayed,
    SignatureRefused,
    UnknownSender,
)
from securefl.exchange.card_keys import Quorum
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time_match import SCORE_BYTES, OneTimeMatcher, OneTimeProfileSealer
from securefl.exchange.policy import OpeningRule, Policy
from securefl.exchange.profile_match import SCORE, Profile, divergence
from securefl.exchange.sums import ONE_TIME, Sealed
from securefl.federation.authority import Authority, ScoreAuthority
from securefl.federation.client import Client
from securefl.federation.message import Roster, SignedHeader, encode_message, header_for
from securefl.federation.opening_history import OpeningHistory
from securefl.federation.server import Server, SumRequest
from securefl.federation.total import Terms
from securefl.runs.folder_files import OPENINGS
from securefl.runs.folder_reader import read_rows
from securefl.types import PROFILE

pytestmark = pytest.mark.usefixtures("no_hang", "quick")

RUN, Q = "ab" * 32, 8


class Match:
    """Four clients, a server and the authority of one run, and the log."""

    def __init__(self, keys=None, history=None, policy=None):
        rng = np.random.default_rng(0)
        self.keys = keys or KeySet.ephemeral()
        public = self.keys.public
        sealer = OneTimeProfileSealer(public)
        self.clients = {
            name: Client(name, 0.1, {}, 0.1, sealer, public) for name in names(1, 2, 3, 4)
        }
        self.roster = Roster({name: c.identity for name, c in self.clients.items()})
        self.server = Server(RUN, self.roster, {})
        self.profiles = {
            name: Profile(*torch.from_numpy(rng.uniform(0.5, 2, (2, Q))), 0)
            for name in self.clients
        }
        self.baseline = self.profiles["client-1"]
        self.log = []
        self.matcher = OneTimeMatcher(public)
        self.sums = self.begun(self.log.append, history or OpeningHistory(), policy or Policy())
        self.authority = ScoreAuthority(self.sums)

    def begun(self, log, history, policy=None, without=()):
        """An authority that has just begun, and been given the clients' cards."""
        made = Authority(self.keys.opener(), self.roster, policy or Policy(), log, history)
        cards = {name: c.send_cards(RUN) for name, c in self.clients.items() if name not in without}
        assert made.take_cards(RUN, cards) == {}
        return made

    def request(self, *asked, round_number=1, under="5e" * 32):
        asked = asked or tuple(self.clients)
        survey = self.server.ask_profile(round_number, self.matcher, self.baseline, asked, under)
        for name in asked:
            about = RUN, round_number, self.profiles[name], under
            survey.receive(self.clients[name].send_profile(*about))
        return survey.request()

    def header(self, client, identity=None, /, **changes):
        """A signed header of one's choice."""
        expected = self.request("client-1").expected
        sealed = Sealed(b"", "ab" * 16)
        header = header_for(expected, client, sealed).model_copy(update=changes)
        message = encode_message(header, b"", identity or self.clients[client].signing_key)
        n = len(header.model_dump_json())
        return SignedHeader(header, message[6 : 6 + n], message[6 + n : 6 + n + 64])


@pytest.fixture
def match():
    return Match()


def assert_refused(match, request, reason, error=OpeningRefused):
    """Refused, and logged with its signers, of whom no stranger is named, and reason."""
    n_logged = len(match.log)
    with pytest.raises(error, match=reason) as caught:
        match.authority.open(request)
    assert caught.type is error
    (entry,) = match.log[n_logged:]
    assert entry.refused == str(caught.value)
    assert (entry.round, entry.name, entry.n_clients) == (request.expected.round, SCORE, 0)
    senders = [signed.header.sender for signed in request.signed]
    assert entry.signers == tuple(name for name in senders if name in match.profiles)


def assert_opens(match, request):
    opened = match.authority.open(request)
    wanted = [
        divergence(match.profiles[signed.header.sender], match.baseline)
        for signed in request.signed
    ]
    assert opened == pytest.approx(wanted, abs=1e-6)
    assert match.log[-1].refused == ""
    assert match.log[-1].n_clients == len(wanted)


def test_each_client_has_one_score_a_round(match):
    """Neither its own score again nor another one beside others'; the next round it has a new one.

    A refused request takes no client's score away.
    """
    assert_opens(match, match.request("client-1", "client-2"))
    for asked in (("client-2",), ("client-3", "client-1"), ("client-1", "client-2")):
        assert_refused(match, match.request(*asked), "opened once already, of client-")
    assert_opens(match, match.request("client-3", "client-4"))
    assert_opens(match, match.request(round_number=2))


def test_a_restarted_authority_opens_no_second_score(match):
    """Its officer has forgotten what it has answered; the rows on the disk have not.

    Of a client that was not asked for, and of the next round, it opens.
    """
    rows = []
    first = Match(match.keys, OpeningHistory(write=rows.append))
    assert_opens(first, first.request("client-1", "client-2"))
    again = OpeningHistory()
    again.take_up(json.loads(json.dumps(rows)))
    first.sums = first.begun(first.log.append, again)
    first.authority = ScoreAuthority(first.sums)
    for asked in (("client-1",), ("client-2", "client-3")):
        assert_refused(first, first.request(*asked), "opened once already, of client-")
    assert_opens(first, first.request("client-3"))
    assert_opens(first, first.request(round_number=2))


def test_without_the_history_the_same_score_would_be_opened_again(match):
    """So the test above can fail: the officer alone has forgotten."""
    request = match.request("client-2")
    assert_opens(match, request)
    match.authority = ScoreAuthority(match.begun(match.log.append, OpeningHistory()))
    assert_opens(match, match.request("client-2"))


def test_rubbish_opens_as_none_or_as_a_number_and_harms_no_other(match):
    """It is not tried twice, and keeps no other client's score back."""
    for number in range(1, 9):
        request = match.request(round_number=number)
        odd = replace(request, scores=(rubbish_like(request.scores[0]), *request.scores[1:]))
        first, *others = match.authority.open(odd)
        assert first is None or np.isfinite(first)
        wanted = [divergence(match.profiles[name], match.baseline) for name in names(2, 3, 4)]
        assert others == pytest.approx(wanted, abs=1e-6)
        assert_refused(match, request, "opened once already")


def rubbish_like(score):
    """A score with another constant, as one of random words is."""
    word = int(np.random.default_rng().integers(2**60)).to_bytes(8, "little")
    return score[:1] + word + score[9:]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda score: b"", "score of 0 bytes"),
        (lambda score: score[:-1], "score of 49164 bytes"),
        (lambda score: score + b"x", "score of 49166 bytes"),
        (lambda score: b"\xff" * SCORE_BYTES, "outside the ring"),
    ],
)
def test_a_malformed_score_is_refused_with_its_request(match, change, reason):
    """Servers make scores: one that is none is no client's doing."""
    request = match.request()
    odd = replace(request, scores=(*request.scores[:3], change(request.scores[3])))
    assert_refused(match, odd, reason, MessageRefused)
    assert_opens(match, match.request(round_number=2))


def test_a_client_without_a_card_has_no_score_and_uses_up_nobodys(match):
    """As after a restart, before cards are given again."""
    match.sums = match.begun(match.log.append, match.sums._history, without=("client-3",))
    match.authority = ScoreAuthority(match.sums)
    assert_refused(match, match.request(), "no card of client-3 in this session")
    card = {"client-3": match.clients["client-3"].send_cards(RUN)}
    assert match.sums.take_cards(RUN, card) == {}
    assert_opens(match, match.request())


def test_a_profile_is_not_added_up(match):
    """The authority over sums takes no header of a profile, under any name of the form."""
    request = match.request()
    for form in (request.expected.form, ONE_TIME):
        expected = replace(request.expected, form=form)
        asked = SumRequest(
            expected, bytes(14336), request.signed, dict.fromkeys(match.clients, Terms())
        )
        with pytest.raises(MessageRefused) as caught:
            match.sums.open(asked)
        assert caught.type in {KeyMismatch, Relabelled}
    assert_opens(match, match.request(round_number=2))


def test_each_score_belongs_to_its_own_header(match):
    """Scores in another order are opened by others' keys: no score, or any number."""
    found = []
    for number in range(1, 31):
        request = match.request("client-2", "client-3", round_number=number)
        swapped = replace(request, scores=request.scores[::-1])
        found += match.authority.open(swapped)
    wanted = [divergence(match.profiles[name], match.baseline) for name in names(2, 3)]
    assert sum(score is None for score in found) > 50  # of 60, one in 256 is a number
    numbers = [score for score in found if score is not None]
    assert not any(score == pytest.approx(w, abs=1e-5) for score in numbers for w in wanted)


def test_profiles_of_a_round_are_made_under_one_model(match):
    """A server that sends one client another model chooses what is profiled of it.

    Neither does it say so, nor ask for that client by itself, nor say of the client another one.
    """
    first, other = match.request("client-1", "client-2"), match.request("client-3", under="6f" * 32)
    mixed = replace(
        first, scores=(*first.scores, *other.scores), signed=(*first.signed, *other.signed)
    )
    assert_refused(match, mixed, "client-3: message of state '6f6f", OtherModel)
    assert_opens(match, first)
    assert_refused(match, other, "were made under another model")
    relabelled = replace(other, expected=first.expected)
    assert_refused(match, relabelled, "client-3: message of state '6f6f", OtherModel)
    assert_opens(match, match.request("client-3"))


def test_a_profile_of_another_round_is_no_answer(match):
    """Its header is signed for that round alone."""
    old, new = match.request(), match.request(round_number=2)
    replayed = replace(new, scores=old.scores, signed=old.signed)
    assert_refused(match, replayed, "message of round 1, expected 2", Replayed)
    assert_opens(match, match.request(round_number=2))


@pytest.mark.parametrize("bits", [8, 24])
def test_scores_are_rounded_as_the_policy_says(bits):
    """To so many bits after the point, whatever the server's exponent."""
    match = Match(policy=Policy(rules=(OpeningRule("*", precision_bits=bits),)))
    opened = match.authority.open(match.request("client-2", "client-3"))
    assert all(score * 2**bits == round(score * 2**bits) for score in opened)
    wanted = [divergence(match.profiles[name], match.baseline) for name in names(2, 3)]
    assert opened == pytest.approx(wanted, abs=2.0**-bits)


def test_officers_open_what_the_authority_opens():
    """2 of 3, all the way from signed messages."""
    match = Match(KeySet.ephemeral(Quorum(2, 3)))
    assert_opens(match, match.request())
    assert_refused(match, match.request("client-2"), "opened once already, of client-2")


@pytest.mark.parametrize(
    "change",
    [
        lambda r: replace(r, scores=r.scores * 2),
        lambda r: replace(r, scores=(*r.scores, r.scores[0])),
        lambda r: replace(r, scores=r.scores[:-1]),
        lambda r: replace(r, scores=()),
        lambda r: replace(r, signed=()),
        lambda r: replace(r, signed=r.signed[:-1]),
        lambda r: replace(r, signed=(*r.signed, r.signed[0])),
        lambda r: replace(r, signed=(*r.signed[:-1], r.signed[0])),
        lambda r: replace(r, signed=r.signed * 2, scores=r.scores * 2),
        lambda r: replace(r, signed=(r.signed[0],) * 4),
        lambda r: replace(r, signed=(r.signed[0],) * 2, scores=r.scores[:1]),
    ],
)
def test_scores_and_clients_are_one_of_each(match, change):
    """More scores than headers, fewer, none, and headers that stand there twice."""
    request = match.request()
    changed = change(request)
    senders = [signed.header.sender for signed in changed.signed]
    if len(set(senders)) < len(senders):
        assert_refused(match, changed, "a client stands in it twice", Duplicate)
    else:
        assert_refused(match, changed, "must be one of each for every client")
    assert_opens(match, request)


@pytest.mark.parametrize(
    ("field", "value", "error", "reason"),
    [
        ("run", "cd" * 32, Replayed, "message of run"),
        ("round", 2, Replayed, "message of round"),
        ("name", "selection/loss", Relabelled, "message of name"),
        ("name", SCORE, Relabelled, "message of name"),
        ("form", "match/plain", Relabelled, "message of form"),
        ("form", ONE_TIME, Relabelled, "message of form"),
        ("nonce", "ab", Relabelled, "nonce of 2 digits, expected 32"),
        ("nonce", "", Relabelled, "nonce of 0 digits, expected 32"),
        ("n_values", 2 * Q + 2, Relabelled, "message of n_values"),
        ("key_id", "ef" * 32, KeyMismatch, "sealed under key"),
        ("key_id", "", KeyMismatch, "sealed under key none"),
        ("epoch", 2, KeyMismatch, "of epoch 2"),
        ("sender", "client-2", SignatureRefused, "not signed by"),
        ("sender", "client-9", UnknownSender, "no client of this run"),
    ],
)
def test_a_header_of_something_else_opens_no_score(match, field, value, error, reason):
    """Genuinely signed, but for another run, round, message, form, key, length or client."""
    request = match.request("client-1", "client-3", "client-4")
    odd = match.header("client-1", **{field: value})
    assert_refused(match, replace(request, signed=(odd, *request.signed[1:])), reason, error)
    assert_opens(match, request)


def test_a_header_that_nobody_signed_opens_no_score(match):
    """Unsigned, signed by a stranger, and another text under a genuine signature."""
    request = match.request("client-1", "client-3")
    genuine = request.signed[0]
    relabelled = replace(genuine, header=genuine.header.model_copy(update={"sender": "client-2"}))
    for odd in (
        replace(genuine, signature=bytes(64)),
        replace(genuine, signature=b""),
        replace(genuine, signed=genuine.signed + b" "),
        match.header("client-1", Ed25519PrivateKey.generate()),
        relabelled,
    ):
        forged = replace(request, signed=(odd, request.signed[1]))
        assert_refused(match, forged, "not signed by", SignatureRefused)
    assert_opens(match, request)


@pytest.mark.parametrize(
    "changes",
    [
        {"key_id": "ef" * 32},
        {"key_id": ""},
        {"epoch": 2},
        {"form": "match/plain"},
        {"form": ONE_TIME},
        {"form": "number/float64"},
    ],
)
def test_the_server_cannot_name_another_key_or_form(match, changes):
    """What was sent under another key or in another form is not this authority's to open."""
    request = match.request()
    other = replace(request, expected=replace(request.expected, **changes))
    assert_refused(match, other, "the authority opens", KeyMismatch)
    assert_opens(match, request)


def test_another_name_does_not_open_a_clients_second_score(match):
    """One score a client and round, whatever the server says the profiles were called."""
    assert_opens(match, match.request("client-1"))
    request = match.request("client-1")
    renamed = replace(
        request,
        expected=replace(request.expected, name="another"),
        signed=(match.header("client-1", name="another"),),
    )
    assert_refused(match, renamed, "opened once already")


def test_scores_are_logged_before_they_are_released(match):
    """An authority that cannot write its log releases nothing."""

    def full(opening):
        raise OSError(28, "No space left")

    with pytest.raises(OSError, match="No space"):
        ScoreAuthority(match.begun(full, OpeningHistory())).open(match.request())


def test_scores_are_claimed_before_they_are_opened(match, monkeypatch):
    """An authority that cannot write its history opens nothing."""

    def full(row):
        raise OpeningRefused("cannot be written")

    match.sums = match.begun(match.log.append, OpeningHistory(write=full))
    match.authority = ScoreAuthority(match.sums)
    monkeypatch.setattr(type(match.sums.opener), "score", lambda *_: pytest.fail("opened"))
    assert_refused(match, match.request(), "cannot be written")


# Whole runs.


def test_a_run_opens_one_score_of_each_client_and_round(tmp_path):
    """As the log has it: nobody twice, nothing refused, each as often as it was asked."""
    result, rounds = run_in(tmp_path / "run", make_config(), make_task())
    opened = read_rows(tmp_path / "run" / OPENINGS, type(result.openings[0]))
    assert opened == result.openings
    once = [(opening.round, client) for opening in opened for client in opening.signers]
    assert len(once) == len(set(once)) == 5 + 3 + 3
    assert once == [(each.round, client) for each in rounds for client in each.measured]
    assert all(opening.name == SCORE and not opening.refused for opening in opened)


def test_scores_of_a_run_are_the_divergences(tmp_path, monkeypatch):
    """To the policy's rounding and the match's precision, by the profiles that were sent."""
    seen, exact = [], {}
    ask, send = Server.ask_profile, Client.send_profile

    def ask_profile(self, round_number, matcher, baseline, asked, state):
        seen.append((round_number, matcher, baseline))
        return ask(self, round_number, matcher, baseline, asked, state)

    def send_profile(self, run, round_number, profile, state=""):
        exact[round_number, self.name] = divergence(profile, seen[-1][2])
        return send(self, run, round_number, profile, state)

    monkeypatch.setattr(Server, "ask_profile", ask_profile)
    monkeypatch.setattr(Client, "send_profile", send_profile)
    _, rounds = run_in(tmp_path / "run", make_config(rounds=6), make_task())
    n = 0
    for each, (number, matcher, baseline) in zip(rounds, seen, strict=True):
        assert number == each.round
        for client, value in each.measured.items():
            within = matcher.precision(baseline) + 2.0**-32
            assert value == pytest.approx(exact[number, client], abs=within)
            assert value * 2**32 == round(value * 2**32)
            n += 1
    assert n == 20


def test_a_resumed_run_asks_nobody_anew(tmp_path):
    """What the server knew stands in the checkpoint: who is not selected sends nothing."""
    config, task, keys = make_config(rounds=2), make_task(), KeySet.ephemeral()

    class Stop(Exception):
        pass

    def stop(_metrics):
        raise Stop

    with pytest.raises(Stop):
        run_in(tmp_path / "run", config, task, keys, on_round=stop)
    result = securefl.resume(tmp_path / "run", task, keys=keys)
    first, second = participants(tmp_path / "run")
    assert set(second.measured) == set(second.selected)
    assert {e.sender for e in result.ledger.entries if e.name == PROFILE} == set(second.selected)
    assert set(first.measured) == set(names(1, 2, 3, 4, 5))
