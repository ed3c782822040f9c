"""Scores of profiles that are opened over a connection: once, as announced, and no others."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from mutations import mutated_json, try_all
from processes import (
    CLIENTS,
    PASSPHRASE,
    SETTINGS,
    Site,
    asked_of_the_authority,
)

from securefl.errors import (
    MessageRefused,
    OpeningRefused,
    PeerError,
    SenderRevoked,
    TooFewContributions,
)
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.one_time_match import SCORE_BYTES, OneTimeMatcher, OneTimeProfileSealer
from securefl.exchange.policy import OpeningRule, Policy
from securefl.exchange.profile_match import SCORE, Profile, divergence
from securefl.federation.authority import Authority, ScoreAuthority
from securefl.federation.client import Client
from securefl.federation.server import Server
from securefl.federation.total import Terms
from securefl.network import authority, bodies
from securefl.network.authority_line import (
    ask_to_open,
    ask_to_open_scores,
    ask_what_holds,
    give_cards,
)
from securefl.network.frames import SMALL, Frame
from securefl.settings.load import load_config
from securefl.types import Kind, MessageSpec
from securefl_keys.authority_keys import load_all

pytestmark = pytest.mark.usefixtures("cheap_guesses", "no_hang")
RUN, Q = "ab" * 32, 8
READY = bodies.Ready(run=RUN, settings=SETTINGS, round=1, known=(0, 0), needed=0, scores=3)
FEDPROF = (
    'exchange.encrypt="profiles"',
    'selection.name="fedprof"',
    'algorithm.name="fedavg"',
)
SEALED = (*FEDPROF, 'exchange.encrypt="model"')
HIDDEN = (
    *SEALED,
    'algorithm.weights="uniform"',
    'privacy.level="client"',
    "selection.fraction=1.0",
)
"""Clients share noise, and scores get some from the authority."""


@pytest.fixture
def site(tmp_path):
    """Makes a federation."""
    return lambda name="site", **settings: Site(tmp_path / name, **settings)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A federation to look at."""
    return Site(tmp_path_factory.mktemp("made") / "site")


@pytest.fixture(scope="module")
def honest(made):
    """A request to its authority."""
    return scores_of(made)


@pytest.fixture(scope="module")
def later(made):
    """The request of the round after."""
    return scores_of(made, round_number=2)


def profiles(names):
    """By client; the first one's is the server's as well."""
    rng = np.random.default_rng(0)
    return {name: Profile(*torch.from_numpy(rng.uniform(0.5, 2, (2, Q))), 0) for name in names}


def exact(names=CLIENTS):
    found = profiles(CLIENTS)
    return [divergence(found[name], found["alice"]) for name in names]


def scores_of(site, names=CLIENTS, round_number=1, bundles="bundles", roster=None):
    """A request for the scores of these clients, whose profiles the server has matched."""
    bundle, found = site.bundle("server", bundles), profiles(CLIENTS)
    asking = Server(RUN, roster or bundle.clients(), {})
    matcher = OneTimeMatcher(bundle.card_keys)
    survey = asking.ask_profile(round_number, matcher, found["alice"], names)
    for name in names:
        sender = client_of(site, name, bundles)
        survey.receive(sender.send_profile(RUN, round_number, found[name]))
    return survey.request()


def client_of(site, name, bundles="bundles"):
    keys = site.bundle("client", bundles).card_keys
    sealer, identity = OneTimeProfileSealer(keys), site.signing_key(name)
    return Client(name, 0.25, {}, 0.25, sealer, keys, signing_key=identity)


def cards_of(site, names=CLIENTS, bundles="bundles"):
    return {name: client_of(site, name, bundles).send_cards(RUN) for name in names}


def asked(site, *requests, ready=READY, settings=FEDPROF, bundles="bundles", **more):
    """What comes of READY, of all clients' cards where it is of this run, and of these requests."""

    async def ask(link):
        if ready:
            await ask_what_holds(link, ready)
        if ready and ready.run == RUN:
            await give_cards(link, RUN, cards_of(site, bundles=bundles))
        return [await ask_to_open_scores(link, request) for request in requests]

    config = load_config(site.job, settings)
    return asked_of_the_authority(site, ask, config=config, **more)


def rows(site):
    return [json.loads(line) for line in site.openings.read_text().splitlines()]


def assert_refused(site, reason, *requests, n_values=3, **more):
    """The last of the requests is refused in words, and the last line of the log has them."""
    with pytest.raises(OpeningRefused, match=reason) as caught:
        asked(site, *requests, **more)
    last = rows(site)[-1]
    assert last["refused"] == str(caught.value)
    assert (last["round"], last["name"], last["n_values"]) == (1, SCORE, n_values)
    assert last["n_clients"] == 0


# Opened, and once.


def test_a_score_is_what_a_simulations_authority_opens(site):
    """To the bit; the log has one line, before the answer goes out."""
    here = site()
    request, log = scores_of(here), []
    sums = Authority(
        load_all(here.keys, PASSPHRASE).opener(),
        here.bundle("server").clients(),
        Policy(),
        log.append,
    )
    assert sums.take_cards(RUN, cards_of(here)) == {}
    (opened,) = asked(here, request)
    assert opened == ScoreAuthority(sums).open(request)
    assert opened == pytest.approx(exact(), abs=1e-6)
    (row,) = rows(here)
    (wanted,) = log
    said = row | {"signers": tuple(row["signers"]), "at": wanted.at}  # which was a second later
    assert said == {name: getattr(wanted, name) for name in wanted.__dataclass_fields__}
    assert (row["name"], row["signers"], row["refused"]) == (SCORE, list(CLIENTS), "")


def test_scores_come_in_the_order_of_the_request_and_over_several(site):
    here = site()
    first, second = asked(here, scores_of(here, ("carol",)), scores_of(here, ("bob", "alice")))
    assert first == pytest.approx(exact(("carol",)), abs=1e-6)
    assert second == pytest.approx(exact(("bob", "alice")), abs=1e-6)


def test_no_score_is_opened_twice_also_after_a_restart(site):
    """Neither alone nor with others; what is refused takes no other client's score away."""
    here = site()
    alone = scores_of(here, ("bob",))
    asked(here, alone)
    for again in (alone, scores_of(here, ("bob",)), scores_of(here)):
        n_values = len(again.scores)
        assert_refused(here, "opened once already, of bob$", again, n_values=n_values)
    ready = READY.model_copy(update={"scores": 6})
    both = scores_of(here, ("alice",)), scores_of(here)
    assert_refused(here, "opened once already, of alice, bob$", *both, ready=ready)
    later = READY.model_copy(update={"round": 2})
    (opened,) = asked(here, scores_of(here, round_number=2), ready=later)
    assert opened == pytest.approx(exact(), abs=1e-6)
    lines = (here.openings.parent / "released.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row[:3] + row[5:] for row in rows] == [
        [RUN, 1, SCORE, ["bob"]],
        [RUN, 1, SCORE, ["alice"]],
        [RUN, 2, SCORE, list(CLIENTS)],
    ]


def test_no_score_is_opened_twice_under_two_keys(site):
    """A client that has sealed its profile anew for the next epoch has had its score."""
    here = site()
    asked(here, scores_of(here))
    here.rotate()
    here.export("after")
    again = scores_of(here, bundles="after")
    assert_refused(here, "opened once already", again, bundles="after")


def test_a_client_without_a_card_uses_up_nobodys_score(site):
    """As after a restart of the authority, before the server gives it the cards again."""
    here = site()
    request = scores_of(here)

    async def ask(link):
        await ask_what_holds(link, READY.model_copy(update={"scores": 6}))
        await give_cards(link, RUN, cards_of(here, ("alice", "carol")))
        with pytest.raises(OpeningRefused, match="no card of bob in this session"):
            await ask_to_open_scores(link, request)
        await give_cards(link, RUN, cards_of(here, ("bob",)))
        return await ask_to_open_scores(link, request)

    opened = asked_of_the_authority(here, ask, config=load_config(here.job, FEDPROF))
    assert opened == pytest.approx(exact(), abs=1e-6)
    assert [bool(row["refused"]) for row in rows(here)] == [True, False]


def test_nothing_is_opened_that_cannot_be_written_down_before(site, monkeypatch):
    here = site()
    request = scores_of(here)
    append = authority.append_whole

    def full(path, line):
        if path.name == authority.RELEASES:
            raise OSError(28, "No space left")
        append(path, line)

    monkeypatch.setattr(authority, "append_whole", full)
    with pytest.raises(OpeningRefused, match="cannot be written"):
        asked(here, request)
    monkeypatch.undo()
    (opened,) = asked(here, request)
    assert opened == pytest.approx(exact(), abs=1e-6)


def test_a_clients_rubbish_keeps_no_other_score_back(site):
    """Whatever constant a server has made of it: none, or a number, beside the others' scores."""
    here = site()
    for number in range(1, 9):
        ready = READY.model_copy(update={"round": number})
        request = scores_of(here, round_number=number)
        odd = bytes([0]) + np.random.default_rng(number).bytes(8) + request.scores[0][9:]
        (opened,) = asked(here, replace(request, scores=(odd, *request.scores[1:])), ready=ready)
        assert opened[0] is None or np.isfinite(opened[0])
        assert opened[1:] == pytest.approx(exact()[1:], abs=1e-6)
        if number == 1:
            assert_refused(here, "opened once already", request)


def test_words_outside_the_ring_are_refused_in_words(site):
    """Servers make scores: one that is none is no client's doing, and ends no authority."""
    here = site()
    request = scores_of(here)
    odd = replace(request, scores=(b"\xff" * SCORE_BYTES, *request.scores[1:]))
    with pytest.raises(OpeningRefused, match="outside the ring"):
        asked(here, odd)
    assert "outside the ring" in rows(here)[-1]["refused"]
    (opened,) = asked(
        here, scores_of(here, round_number=2), ready=READY.model_copy(update={"round": 2})
    )
    assert opened == pytest.approx(exact(), abs=1e-6)


# What was announced.


@pytest.mark.parametrize(
    "ready",
    [None, READY.model_copy(update={"round": 2}), READY.model_copy(update={"run": "cd" * 32})],
    ids=["none", "another round", "another run"],
)
def test_no_score_is_opened_of_a_round_that_was_not_announced(made, honest, ready):
    assert_refused(made, "hub has not asked READY for it", honest, ready=ready)


def test_a_ready_that_is_refused_announces_nothing(made, honest):
    """Not even what the one before it has announced."""

    async def ask(link):
        await ask_what_holds(link, READY)
        with pytest.raises(OpeningRefused, match="other settings than the server"):
            await ask_what_holds(link, READY.model_copy(update={"settings": "0" * 64}))
        await ask_to_open_scores(link, honest)

    with pytest.raises(OpeningRefused, match="hub has not asked READY"):
        asked_of_the_authority(made, ask, config=load_config(made.job, FEDPROF))


@pytest.mark.parametrize("announced", [0, 2])
def test_no_more_scores_are_opened_than_were_announced(made, honest, announced):
    """None of those that are too many, rather than the first of them."""
    ready = READY.model_copy(update={"scores": announced})
    reason = f"3 scores after 0, and READY has announced {announced}"
    assert_refused(made, reason, honest, ready=ready)


def test_announced_scores_are_counted_over_the_round(site):
    here = site()
    requests = [scores_of(here, names) for names in (("alice", "bob"), ("carol",))]
    reason = "1 scores after 2, and READY has announced 2"
    ready = READY.model_copy(update={"scores": 2})
    assert_refused(here, reason, *requests, ready=ready, n_values=1)
    asked(here, requests[1], ready=ready)  # that was no answer


def test_the_line_goes_on_after_scores_that_were_not_announced(site):
    """Of their bytes nothing is kept, however many they are."""
    here = site()
    request = scores_of(here)
    many = bodies.OpenRequest.model_validate_json(bodies.open_request(request))
    many = many.model_copy(update={"signed": many.signed * 1000})

    async def ask(link):
        await ask_what_holds(link, READY)
        await give_cards(link, RUN, cards_of(here))
        await link.send(Frame.SCORES, many.to_bytes())
        await link.send(Frame.SCORE_BYTES, bytes(10**7))
        refused = await link.receive({Frame.REFUSED: SMALL})
        opened = await ask_to_open_scores(link, request)
        return bodies.parsed(bodies.Refusal, refused.body, "authority").reason, opened

    reason, opened = asked_of_the_authority(here, ask, config=load_config(here.job, FEDPROF))
    assert "3000 scores after 0, and READY has announced 3" in reason
    assert None not in opened


@pytest.mark.parametrize(
    "settings",
    [
        (*SEALED, "selection.alpha=theorem1"),
        (*FEDPROF, 'exchange.encrypt="none"'),
        ('exchange.encrypt="model"',),
    ],
    ids=["theorem 1", "in the clear", "all take part"],
)
def test_where_nobody_is_asked_for_an_encrypted_profile_no_score_can_be_announced(
    made, honest, settings
):
    with pytest.raises(OpeningRefused, match="3 scores are announced, and by the authority's"):
        asked(made, settings=settings)
    none = READY.model_copy(update={"scores": 0})
    with pytest.raises(OpeningRefused, match="has announced 0"):
        asked(made, honest, ready=none, settings=settings)


# Other requests than honest servers make.


def test_a_score_under_the_old_key_is_refused_by_its_id(site):
    here = site()
    request = scores_of(here)
    here.rotate()
    here.export("after")
    assert_refused(here, "authority opens .* of epoch 2", request, bundles="after")
    assert rows(here)[-1]["key_id"] == request.expected.key_id


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r, _: replace(r, signed=(*r.signed[:2], r.signed[0])), "stands in it twice"),
        (
            lambda r, _: replace(r, signed=(*r.signed[:2], replace(r.signed[2], signed=b"{}"))),
            "a signed header that is none",
        ),
        (
            lambda r, _: replace(
                r, signed=(*r.signed[:2], replace(r.signed[2], signature=bytes(64)))
            ),
            "not signed by 'carol'",
        ),
        (lambda r, other: replace(r, signed=other.signed), "message of round 2, expected 1"),
        (
            lambda r, _: replace(r, expected=replace(r.expected, form="match/plain")),
            "the authority opens",
        ),
    ],
    ids=["a client twice", "no JSON", "no signature", "another round", "a form"],
)
def test_a_request_that_its_clients_have_not_signed_is_refused(made, later, honest, change, reason):
    assert_refused(made, reason, change(honest, later))


def test_a_client_that_was_revoked_has_no_score(site):
    """Whomever a server takes for its clients."""
    here = site()
    before = here.bundle("server").clients()
    here.rotate(revoking="bob")
    here.export("after")
    with pytest.raises(SenderRevoked, match="was revoked"):
        scores_of(here, bundles="after")
    request = scores_of(here, bundles="after", roster=before)
    assert_refused(here, "'bob' had a certificate that was revoked", request, bundles="after")


@pytest.mark.parametrize("n_bytes", [1, SCORE_BYTES - 1, SCORE_BYTES + 1])
def test_scores_of_another_length_are_refused_or_end_the_connection(made, honest, n_bytes):
    """Fewer bytes than headers need are refused in words; more are never read."""
    odd = replace(honest, scores=(bytes(n_bytes), *honest.scores[1:]))
    if n_bytes > SCORE_BYTES:
        fewer_headers = replace(honest, signed=honest.signed[:2])
        for each in (odd, fewer_headers):
            with pytest.raises(PeerError):
                asked(made, each)
    else:
        with pytest.raises(OpeningRefused, match=f"payload of {n_bytes + 2 * SCORE_BYTES} bytes"):
            asked(made, odd)


def test_fewer_bytes_than_were_announced_are_refused_and_more_end_the_connection(made, honest):
    asking, content = bodies.open_request(honest), b"".join(honest.scores)

    def sending(content):
        async def ask(link):
            await ask_what_holds(link, READY)
            await give_cards(link, RUN, cards_of(made))
            await link.send(Frame.SCORES, asking)
            await link.send(Frame.SCORE_BYTES, content)
            return await link.receive({Frame.REFUSED: SMALL})

        said = []
        config = load_config(made.job, FEDPROF)
        return asked_of_the_authority(made, ask, config=config, said=said), said

    short, _ = sending(content[:-1])
    reason = bodies.parsed(bodies.Refusal, short.body, "authority").reason
    assert "payload of 147494 bytes, expected 3 x 49165" in reason
    assert rows(made)[-1]["refused"] == reason
    with pytest.raises(PeerError):
        sending(content + b"x")


ABSURD = [
    {"signed": []},
    {"n_values": 0},
    {"run": "ab"},
    {"more": 1},
]


@pytest.mark.parametrize("absurd", ABSURD, ids=lambda changes: repr(changes)[:40])
def test_an_absurd_request_ends_that_connection_alone(made, honest, absurd):
    body = json.dumps(json.loads(bodies.open_request(honest)) | absurd).encode()
    said = []

    async def ask(link):
        await ask_what_holds(link, READY)
        await link.send(Frame.SCORES, body)
        await link.receive({Frame.REFUSED: SMALL})

    with pytest.raises(PeerError, match="has closed the connection"):
        asked_of_the_authority(made, ask, config=load_config(made.job, FEDPROF), said=said)
    assert any(line.startswith("hub: bad OpenRequest") for line in said)


def test_no_changed_request_is_opened(made, honest):
    """All of it is signed by the clients, or held against what they have signed."""
    keys, roster = load_all(made.keys, PASSPHRASE), made.bundle("server").clients()
    content, scores = bodies.open_request(honest), b"".join(honest.scores)
    cards = cards_of(made)

    def parse(changed):
        body = bodies.parsed(bodies.OpenRequest, changed, "server")
        request = bodies.score_request(body, scores)
        sums = Authority(keys.opener(), roster, Policy(), lambda _opening: None)
        assert sums.take_cards(RUN, cards) == {}
        ScoreAuthority(sums).open(request)
        return request

    assert parse(content) == honest
    refusals = (PeerError, MessageRefused, OpeningRefused)
    for _, found in try_all(content, parse, *refusals, n=3000, mutate=mutated_json):
        assert found.expected == honest.expected
        signed = {(one.signed, one.signature) for one in found.signed}
        assert signed == {(one.signed, one.signature) for one in honest.signed}
        assert b"".join(found.scores) == scores


def test_changed_scores_are_parsed_finite_and_as_many_or_refused():
    opened = [0.25, None, -1.5]
    content = bodies.scores_bytes(opened)
    assert bodies.n_scores_bytes(3) == len(content)
    read = lambda c: bodies.read_scores(c, 3, "authority")  # noqa: E731
    assert read(content) == opened
    for wrong in (content[:-8], content + bytes(8), b"", bodies.scores_bytes([1.0, np.inf, 2.0])):
        with pytest.raises(PeerError, match=r"^authority: "):
            read(wrong)
    for _, found in try_all(content, read, PeerError):
        assert len(found) == 3
        assert all(score is None or np.isfinite(score) for score in found)


def test_the_policy_can_keep_all_scores_shut(site):
    here = site(policy=Policy(rules=(OpeningRule("*/mean"),)))
    assert_refused(here, "the policy opens no 'profile/score'", scores_of(here))


# Noise that hides clients.


def test_scores_at_the_level_of_clients_are_clipped_and_noisy(site):
    """By the settings' noise, which the authority adds: nobody else sees a score without it."""
    here = site()
    noise = ("privacy.score_clip=0.01", "privacy.statistics_sigma=2.0")
    (opened,) = asked(here, scores_of(here), settings=(*HIDDEN, *noise))
    assert min(exact(("bob", "carol"))) > 0.2
    assert max(map(abs, opened)) < 0.01 + 8 * 0.02
    assert len(set(opened)) == 3


SPEC = MessageSpec("update/parameters", Kind.PARAMETERS, 5)


def sum_of(site, names):
    client, server = site.bundle("client"), site.bundle("server")
    arriving = Server(RUN, server.clients(), {SPEC.kind: OneTimeAdder(server.card_keys)}).start(
        1, SPEC, "cd" * 32
    )
    cards = {}
    for name in names:
        sealing = {SPEC.kind: OneTimeSealer(client.card_keys)}
        key = site.signing_key(name)
        sender = Client(name, 0.125, sealing, card_keys=client.card_keys, signing_key=key)
        tensors = {"x": torch.arange(5.0)}
        arriving.receive(sender.contribute(RUN, 1, SPEC, tensors, state=Terms().bind("cd" * 32)))
        cards[name] = sender.send_cards(RUN)
    return arriving.request(), cards


@pytest.mark.parametrize(
    ("n_present", "dropouts", "fewest"), [(4, 0, 5), (3, 1, 4), (4, 1, None), (3, 2, None)]
)
def test_no_total_of_too_few_shares_of_noise_is_opened(site, n_present, dropouts, fewest):
    """By the number of clients that the settings name, of whom one was revoked."""
    names = (*CLIENTS, "dora", "eve")
    here = site(names=names)
    here.rotate(revoking="eve")
    here.export("after")
    (here.folder / "bundles").rename(here.folder / "before")
    (here.folder / "after").rename(here.folder / "bundles")
    settings = (*HIDDEN, f"privacy.dropouts={dropouts}")

    async def ask(link):
        await ask_what_holds(link, READY.model_copy(update={"needed": 5}))
        request, cards = sum_of(here, names[:n_present])
        await give_cards(link, RUN, cards)
        return await ask_to_open(link, request)

    config = load_config(here.job, settings)
    if fewest is None:
        assert asked_of_the_authority(here, ask, config=config).n_clients == n_present
        return
    with pytest.raises(TooFewContributions, match=f"{n_present} contributions, at least {fewest}"):
        asked_of_the_authority(here, ask, config=config)
    assert f"at least {fewest}" in rows(here)[-1]["refused"]


@pytest.mark.parametrize(
    ("settings", "n_clients"),
    [
        ((), 3),
        (("data.names=[]", "data.clients=7"), 7),
        (("data.names=[]", "data.dataset=folders", "data.root=pictures"), 4),
        (("data.names=[]", 'data.corruptions=["fog", "snow"]', "data.leave_out=fog"), 4),
    ],
    ids=["names", "a number", "domains", "left out"],
)
def test_shares_are_counted_of_the_clients_that_the_settings_name(site, settings, n_clients):
    """Where the data decide who they are, of the clients in the roster."""
    roster = Site.bundle(site(names=(*CLIENTS, "dora")), "server").clients()
    config = load_config(None, ('data.names=["a", "b", "c"]', *settings))
    assert authority._n_clients(config, roster) == n_clients


def test_what_the_server_asks_with_knows_no_secret_key():
    """The server's process imports these: none of them loads one."""
    modules = {
        "securefl.network.authority_line",
        "securefl.network.trust",
        "securefl_keys.bundle",
    }
    script = f"import sys, {', '.join(sorted(modules))}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert modules <= set(loaded)
    secrets = {"crypto.card_secret", "exchange.officer"}
    assert not {f"securefl.{name}" for name in secrets} & set(loaded)


def test_the_authority_answers_no_client_that_asks_for_scores(made, honest):
    with pytest.raises(PeerError, match="no trusted peer"):
        asked(made, honest, who="alice", role="client")
