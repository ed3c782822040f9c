"""The authority of the profile match releases one score for each client and round, and counts."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from matching_runs import make_config, make_task, names, participants, run_in, uncounted
from securefl.exchange.match_ckks import CkksMatcher, CkksProfileSealer, amplification_bits
from securefl.exchange.match_flood import MAX_RELEASES, flood_deviation, grid_bits
from securefl.exchange.match_forms import FULL, LINEAR, PLAIN_VARIANCE
from securefl.exchange.match_open import CkksScoreOpener, MatchKeys
from securefl.exchange.releases import MemoryCount, spent

import securefl
from securefl.build import simulation as compose
from securefl.errors import (
    ConfigError,
    Duplicate,
    KeyFileError,
    KeyMismatch,
    KeyWornOut,
    OpeningRefused,
    Relabelled,
    Replayed,
    SignatureRefused,
    UnknownSender,
)
from securefl.exchange import match_open
from securefl.exchange.base import Sealed
from securefl.exchange.matching import PROFILE, SCORE
from securefl.exchange.policy import Policy
from securefl.exchange.profile import Profile, divergence
from securefl.federation.client import Client
from securefl.federation.message import Roster, SignedHeader, encode_message, header_for
from securefl.federation.score_authority import ScoreAuthority
from securefl.federation.server import Server
from securefl.runs.folder_reader import OPENINGS, read_rows

pytestmark = pytest.mark.usefixtures("no_hang", "quick")

RUN, Q = "ab" * 32, 8


@pytest.fixture(scope="module")
def key():
    return MatchKeys.ephemeral(LINEAR)


@pytest.fixture(scope="module")
def foreign_key():
    return MatchKeys.ephemeral(LINEAR)


class Match:
    """Four clients, a server and the authority of one run, and the log."""

    def __init__(self, key, form=LINEAR):
        rng = np.random.default_rng(0)
        self.key = uncounted(key)
        self.sealer = CkksProfileSealer(form, key.public)
        self.clients = {
            name: Client(name, 0.1, {}, profile_sealer=self.sealer) for name in names(1, 2, 3, 4)
        }
        self.roster = Roster({name: c.identity for name, c in self.clients.items()})
        self.server = Server(RUN, self.roster, {})
        self.profiles = {
            name: Profile(*torch.from_numpy(rng.uniform(0.5, 2, (2, Q))), 0)
            for name in self.clients
        }
        self.baseline = self.profiles["client-1"]
        self.log = []
        self.opener = CkksScoreOpener(form, key.secret, self.key.count)
        self.authority = ScoreAuthority(self.opener, self.roster, Policy(), self.log.append)
        self.matcher = CkksMatcher(form, key.scoring)

    def request(self, *asked, round_number=1):
        asked = asked or tuple(self.clients)
        survey = self.server.ask_profile(round_number, self.matcher, self.baseline, asked)
        for name in asked:
            message = self.clients[name].send_profile(RUN, round_number, self.profiles[name])
            survey.receive(message)
        return survey.request()

    def header(self, client, identity=None, /, **changes):
        """A signed header of one's choice."""
        expected = self.request("client-1").expected
        header = header_for(expected, client, Sealed(b"")).model_copy(update=changes)
        message = encode_message(header, b"", identity or self.clients[client].signing_key)
        n = len(header.model_dump_json())
        return SignedHeader(header, message[6 : 6 + n], message[6 + n : 6 + n + 64])


@pytest.fixture
def match(key):
    return Match(key)


def assert_refused(match, request, reason, error=OpeningRefused):
    """Refused, logged with its signers and reason, and nothing spent; an honest request is not."""
    left, n_logged = match.key.left, len(match.log)
    with pytest.raises(error, match=reason) as caught:
        match.authority.open(request)
    assert caught.type is error
    assert match.key.left == left
    (entry,) = match.log[n_logged:]
    assert entry.refused == str(caught.value)
    assert (entry.round, entry.name, entry.n_clients) == (request.expected.round, SCORE, 0)
    assert entry.signers == tuple(signed.header.sender for signed in request.signed)


def assert_opens(match, request):
    opened = match.authority.open(request)
    wanted = [
        divergence(match.profiles[signed.header.sender], match.baseline)
        for signed in request.signed
    ]
    assert opened == pytest.approx(wanted, abs=1e-3)
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


def test_a_new_key_makes_no_second_score(match, foreign_key):
    """In a simulation, whose authority goes from key to key: its noise would be another one."""
    config, log = make_config(), []
    record = SimpleNamespace(log_opening=log.append)
    identities = SimpleNamespace(roster=match.roster)
    keys = replace(uncounted(match.key), successor=lambda: uncounted(foreign_key))
    channel = compose._channel(config, keys, identities, record, match.clients)
    match.matcher = channel.matcher
    channel.open(match.request("client-1"))
    keys.count.spend(keys.left, MAX_RELEASES)
    assert channel.room() == MAX_RELEASES
    match.matcher = channel.matcher
    with pytest.raises(OpeningRefused, match=r"opened once already, of client-1$"):
        channel.open(match.request("client-1", "client-2"))
    assert None not in channel.open(match.request("client-2"))
    assert [bool(opening.refused) for opening in log] == [False, True, False]


def test_what_does_not_open_has_been_opened(match):
    """A client's rubbish is not tried twice, and keeps no other client's score back."""
    request = match.request()
    rubbish = replace(request, scores=(b"", *request.scores[1:]))
    opened = match.authority.open(rubbish)
    assert opened[0] is None
    assert None not in opened[1:]
    assert_refused(match, request, "opened once already")


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
        ("form", "match/full", Relabelled, "message of form"),
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


def test_a_key_of_another_form_makes_no_roles(key):
    """Linear keys serve neither form that squares."""
    for form in (FULL, PLAIN_VARIANCE):
        with pytest.raises(ConfigError, match=f"keys init --match {form.name}"):
            CkksScoreOpener(form, key.secret, MemoryCount())


@pytest.mark.parametrize(
    ("left", "error", "reason"),
    [(3, KeyWornOut, "make a new key"), (None, KeyFileError, "count is gone")],
)
def test_without_releases_nothing_is_opened(match, left, error, reason, monkeypatch):
    """With three scores left of four that are asked for, or nobody knows how many: none."""
    request = match.request()

    class Gone:
        n_released = MAX_RELEASES - 4

        def spend(self, n, at_most):
            raise KeyFileError("releases: count is gone")

    if left is None:
        object.__setattr__(match.opener, "count", Gone())
    else:
        match.key.count.spend(match.key.left - left, MAX_RELEASES)
    monkeypatch.setattr(type(match.opener.secret_key), "score", lambda *_: pytest.fail("opened"))
    assert_refused(match, request, reason, error)


def test_scores_are_logged_before_they_are_released(key):
    """An authority that cannot write its log releases nothing."""

    def full(opening):
        raise OSError(28, "No space left")

    match = Match(key)
    authority = ScoreAuthority(match.opener, match.roster, Policy(), full)
    with pytest.raises(OSError, match="No space"):
        authority.open(match.request())


# Whole runs.


def selections(rounds):
    return [dict(each.selected) for each in rounds]


def test_a_run_opens_one_score_of_each_client_and_round(tmp_path, key):
    """As the log has it: nobody twice, nothing refused, each as often as it was asked."""
    keys = uncounted(key)
    result, rounds = run_in(tmp_path / "run", make_config(), make_task(), keys)
    opened = read_rows(tmp_path / "run" / OPENINGS, type(result.openings[0]))
    assert opened == result.openings
    once = [(opening.round, client) for opening in opened for client in opening.signers]
    assert len(once) == len(set(once)) == MAX_RELEASES - keys.left
    assert once == [(each.round, client) for each in rounds for client in each.measured]
    assert all(opening.name == SCORE and not opening.refused for opening in opened)


LOUD = 64.0
"""Times the flooding, so that it is larger than the policy's rounding, which hides it else."""


def loudly(monkeypatch):
    monkeypatch.setattr(
        match_open, "flood_deviation", lambda parameters: LOUD * flood_deviation(parameters)
    )


def test_keys_in_memory_are_renewed_without_a_word(tmp_path, monkeypatch):
    """With four releases a key, 11 scores take three keys; selections are those under one key."""
    config, task = make_config(), make_task()
    _, rounds = run_in(tmp_path / "one", config, task)
    monkeypatch.setattr(match_open, "MAX_RELEASES", 4)
    loudly(monkeypatch)
    result, renewed = run_in(tmp_path / "many", config, task)
    used = [opening.key_id for opening in result.openings]
    assert len(set(used)) == 3
    assert used[1] == used[2]
    assert not result.incidents
    assert selections(renewed) == selections(rounds)
    for one, many in zip(rounds, renewed, strict=True):
        assert many.measured == pytest.approx(one.measured, abs=1e-3)
    # Each score has noise of its own; on a grid two may be equal, and eleven pairs are not.
    assert [each.measured for each in renewed] != [each.measured for each in rounds]
    assert [len(opening.signers) for opening in result.openings] == [4, 1, 3, 3]


@pytest.mark.parametrize("left", [0, 2])
def test_a_key_that_others_use_up_in_mid_run_has_a_successor(tmp_path, key, left):
    """What is left is released under the old key, the rest under one of the next epoch."""
    config, task, keys = make_config(rounds=3), make_task(), uncounted(key)
    _, undisturbed = run_in(tmp_path / "whole", config, task, uncounted(key))
    spent = []

    def others_spend(metrics):
        if not spent:
            keys.count.spend(keys.left - left, MAX_RELEASES)
            spent.append(metrics.round)

    result, renewed = run_in(tmp_path / "run", config, task, keys, on_round=others_spend)
    assert keys.left == 0
    assert selections(renewed) == selections(undisturbed)
    released = Counter()
    for opening in result.openings:
        released[opening.key_id] += opening.n_values
    assert list(released.values()) == [5 + left, 6 - left]


@pytest.mark.parametrize("left", [0, 2])
def test_a_key_without_a_successor_ends_the_run_until_there_is_another(
    tmp_path, key, foreign_key, left
):
    """As one of a folder has none in a simulation: the rounds before stand, a new key goes on."""

    def none():
        raise KeyWornOut("make new ones: securefl keys init")

    config, task = make_config(rounds=3), make_task()
    keys = replace(uncounted(key), successor=none)
    _, undisturbed = run_in(tmp_path / "whole", config, task, uncounted(key))

    def others_spend(metrics):
        keys.count.spend(keys.left - left, MAX_RELEASES)

    folder = tmp_path / "run"
    with pytest.raises(KeyWornOut, match="keys init"):
        run_in(folder, config, task, keys, on_round=others_spend)
    assert keys.left == 0
    assert len(participants(folder)) == 1
    with pytest.raises(KeyWornOut):
        securefl.resume(folder, task, match_keys=keys)
    assert len(participants(folder)) == 1
    securefl.resume(folder, task, match_keys=uncounted(foreign_key))
    assert selections(participants(folder)) == selections(undisturbed)
    numbers = [each.round for each in participants(folder)]
    assert numbers == [1, 2, 3]


def test_another_process_that_spends_in_between_is_noticed(tmp_path, key):
    """Between the look at what is left and the opening: refused, and the log says so."""
    keys = uncounted(key)

    class Raced:
        n_released = MAX_RELEASES - 100

        def spend(self, n, at_most):
            spent(at_most, n, at_most)

    raced = replace(keys, count=Raced())
    with pytest.raises(KeyWornOut, match="make a new key"):
        run_in(tmp_path / "run", make_config(), make_task(), raced)
    rows = [json.loads(line) for line in (tmp_path / "run" / OPENINGS).read_text().splitlines()]
    assert [bool(row["refused"]) for row in rows] == [True]
    assert "incidents.jsonl" in {path.name for path in (tmp_path / "run").iterdir()}


def test_released_scores_are_flooded_and_on_the_grid(tmp_path, key, monkeypatch):
    """What the server gets and selections.jsonl has: multiples of the grid's step, never exact.

    With the true scores known, the errors are those of the flooding.
    """
    seen, exact = [], {}
    ask, send = Server.ask_profile, Client.send_profile

    def ask_profile(self, round_number, matcher, baseline, asked):
        seen.append((round_number, matcher, baseline))
        return ask(self, round_number, matcher, baseline, asked)

    def send_profile(self, run, round_number, profile):
        exact[round_number, self.name] = divergence(profile, seen[-1][2])
        return send(self, run, round_number, profile)

    monkeypatch.setattr(Server, "ask_profile", ask_profile)
    monkeypatch.setattr(Client, "send_profile", send_profile)
    loudly(monkeypatch)
    _, rounds = run_in(tmp_path / "run", make_config(rounds=6), make_task(), uncounted(key))
    errors = []
    for each, (number, matcher, baseline) in zip(rounds, seen, strict=True):
        step = grid_step(matcher, baseline)
        for client, value in each.measured.items():
            assert number == each.round
            assert value / step == round(value / step)
            precision = matcher.precision(baseline)
            # Of the flooding's six deviations; what the policy's rounding may add is left aside.
            error, rounding = value - exact[number, client], 2**-25
            errors.append(np.sign(error) * max(abs(error) - rounding, 0.0) / (LOUD * precision))
            assert abs(errors[-1]) < 1.05  # 1e-4 of the score more
    assert len(errors) == 20
    assert 0.02 < np.std(errors) < 0.5


def grid_step(matcher, baseline):
    """2^(exponent - bits), as the authority rounds."""
    form = matcher.match_form
    exponent = amplification_bits(form.against(baseline, form.clear(baseline)), form.parameters)
    return 2.0 ** (exponent - grid_bits(form.parameters))


def test_a_resumed_run_asks_nobody_anew(tmp_path, key, monkeypatch):
    """What the server knew stands in the checkpoint: who is not selected sends nothing."""
    config, task, keys = make_config(rounds=2), make_task(), uncounted(key)

    class Stop(Exception):
        pass

    def stop(_metrics):
        raise Stop

    with pytest.raises(Stop):
        run_in(tmp_path / "run", config, task, keys, on_round=stop)
    assert keys.left == MAX_RELEASES - 5
    result = securefl.resume(tmp_path / "run", task, match_keys=keys)
    first, second = participants(tmp_path / "run")
    assert set(second.measured) == set(second.selected)
    assert {e.sender for e in result.ledger.entries if e.name == PROFILE} == set(second.selected)
    assert keys.left == MAX_RELEASES - 8
    assert set(first.measured) == set(names(1, 2, 3, 4, 5))
