"""Keys and members that change while processes run, and what nobody can do with that."""

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from processes import (
    CLIENTS,
    PASSPHRASE,
    SERVER,
    SETTINGS,
    Loop,
    Site,
    asked_of_the_authority,
    fake_server,
)

import securefl.network.authority
import securefl.network.authority_line
from securefl.crypto.ciphertext_codec import packed
from securefl.errors import (
    KeyFileError,
    OpeningRefused,
    PeerError,
    RunFolderError,
    TooFewContributions,
    TotalRefused,
)
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.policy import OpeningRule, Policy
from securefl.exchange.sums import Sealed
from securefl.federation.client import Client
from securefl.federation.server import Server, SumRequest
from securefl.federation.total import Terms
from securefl.federation.training import round_generator
from securefl.network import bodies
from securefl.network.authority import AuthorityLog
from securefl.network.authority_line import ask_to_open, ask_what_holds, give_cards
from securefl.network.client import _RunOver
from securefl.network.connect import connected
from securefl.network.frames import SMALL, Frame, Link
from securefl.network.members import Members
from securefl.network.party import client_party
from securefl.network.trust import MemberStanding
from securefl.runs.folder_files import OPENINGS
from securefl.simulation.workspace import Workspace
from securefl.types import ClientState, Kind, MessageSpec
from securefl_keys import layout
from securefl_keys.authority_keys import FolderKeeper, alone

pytestmark = pytest.mark.usefixtures("quick", "cheap_guesses", "no_hang")
RUN = "ab" * 32
SPEC = MessageSpec("1/mean", Kind.STATISTICS, 5)


@pytest.fixture
def site(tmp_path):
    """Makes a federation, whose runs go on without a client that is lost."""

    def made(name="site", **settings):
        return Site(tmp_path / name, **{"reproducible": False, **settings})

    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A federation to look at."""
    return Site(tmp_path_factory.mktemp("made") / "site")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """What authorities would send: of two epochs, and of another consortium."""
    here = Site(tmp_path_factory.mktemp("relayed") / "site")
    first = FolderKeeper(here.keys, PASSPHRASE).now().bundles
    here.rotate()
    second = FolderKeeper(here.keys, PASSPHRASE).now().bundles
    other = Site(tmp_path_factory.mktemp("other") / "site", consortium="Süd")
    return Relayed(here, first, second, FolderKeeper(other.keys, PASSPHRASE).now().bundles)


@dataclass
class Relayed:
    site: Site
    first: dict
    second: dict
    foreign: dict


def openings_of(site):
    return [json.loads(line) for line in site.openings.read_text().splitlines()]


# Between two rounds of a run.


def test_a_rotation_loses_nothing(site):
    """The model is that of a run under one key, to what the authority rounds to."""
    here = site(reproducible=True, rounds=3)
    loop = Loop(here)
    loop.before_round({2: here.rotate})
    record = loop.run()
    assert [m.dropped for m in record.metrics] == [(), (), ()]
    assert loop.ended == dict.fromkeys(CLIENTS)
    by_round = {one["round"]: one["key_id"] for one in openings_of(here)}
    assert by_round[1] != by_round[2] == by_round[3]
    found = safetensors.torch.load_file(here.folder / "run/model.safetensors")
    wanted = safetensors.torch.load_file(here.in_one_process() / "model.safetensors")
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], atol=1e-6, rtol=0)


def test_a_model_that_travels_encrypted_is_that_of_one_process(site):
    """To what the authority rounds to."""
    here = site(reproducible=True, algorithm="fedavg", encrypt="model")
    Loop(here).run()
    found = safetensors.torch.load_file(here.folder / "run/model.safetensors")
    wanted = safetensors.torch.load_file(here.in_one_process() / "model.safetensors")
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], atol=1e-6, rtol=0)
    assert {one["name"] for one in openings_of(here)} == {"update/parameters", "update/statistics"}


def test_a_revoked_client_is_out_from_the_next_round_and_told_why(site):
    here = site(rounds=3, names=(*CLIENTS, "dora"))
    loop = Loop(here)
    loop.before_round({2: lambda: here.rotate(revoking="bob")})
    record = loop.run()
    assert [m.dropped for m in record.metrics] == [(), ("bob",), ()]
    assert "of 'bob' was revoked" in here.incidents
    assert isinstance(loop.ended["bob"], PeerError)
    assert "of 'bob' was revoked" in str(loop.ended["bob"])
    assert {how for name, how in loop.ended.items() if name != "bob"} == {None}
    signers = {one["round"]: one["signers"] for one in openings_of(here)}
    assert signers == {1: [*CLIENTS, "dora"], 2: ["alice", "carol", "dora"], 3: signers[2]}


def test_a_client_that_is_revoked_at_first_is_not_waited_for(site):
    here = site(names=(*CLIENTS, "dora"))
    here.rotate(revoking="dora")
    loop = Loop(here, joining_s=600)
    record = loop.run()
    assert [m.dropped for m in record.metrics] == [(), ()]
    assert loop.has_said("^Beginning without dora")
    assert "of 'dora' was revoked" in str(loop.ended["dora"])


def test_too_few_are_left_where_one_of_three_is_revoked(site):
    here = site()
    loop = Loop(here)
    loop.before_round({2: lambda: here.rotate(revoking="bob")})
    with pytest.raises(TooFewContributions, match="at least 3"):
        loop.run()
    assert len(here.record.metrics) == 1
    assert all("at least 3" in str(loop.ended[name]) for name in ("alice", "carol"))


def stubborn(process):
    """Seals under its first key for ever."""
    process.bundle = Deaf(process.bundle)


@dataclass
class Deaf:
    inner: object

    def newer(self, files):
        return self

    def __getattr__(self, name):
        return getattr(self.inner, name)


def boastful(process):
    """Says that its bundle is newer than any, and so is sent none."""
    process.bundle = Boast(process.bundle)


@dataclass
class Boast:
    inner: object
    age: tuple = (2**31 - 1, 2**31 - 1)

    def __getattr__(self, name):
        return getattr(self.inner, name)


@pytest.mark.parametrize("change", [stubborn, boastful])
def test_messages_under_the_old_key_are_refused_by_its_id(site, change):
    here = site(names=(*CLIENTS, "dora"), rounds=3)
    loop = Loop(here)
    change(loop.clients["carol"])
    old, new = here.bundle("client").card_keys.key_id, []
    loop.before_round({2: lambda: new.append(here.rotate())})
    record = loop.run()
    assert [m.dropped for m in record.metrics] == [(), ("carol",), ("carol",)]
    assert f"carol: sealed under key {old[:16]} of epoch 1" in here.incidents
    assert f"this run's key is {new[0][:16]} of epoch 2" in here.incidents
    assert {one["key_id"] for one in openings_of(here)} == {old, *new}


def test_a_server_that_is_revoked_meanwhile_is_told_and_ends(site):
    here = site(rounds=3)
    loop = Loop(here)
    loop.before_round({2: lambda: here.rotate(revoking=SERVER)})
    with pytest.raises(OpeningRefused, match=r"no server of this consortium.*'hub' was revoked"):
        loop.run()
    assert len(here.record.metrics) == 1
    assert all("was revoked" in str(how) for how in loop.ended.values())


DAMAGES = {
    "a changed roster": lambda keys: flip(keys / layout.ROSTER),
    "a changed secret key": lambda keys: flip(keys / layout.AUTHORITY_KEY),
    "a changed policy": lambda keys: flip(keys / layout.POLICY),
    "no policy": lambda keys: (keys / layout.POLICY).unlink(),
    "a secret key open to all": lambda keys: replaced(keys / layout.AUTHORITY_KEY),
}


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def replaced(path):
    path.write_text(path.read_text() + "\n")
    path.chmod(0o644)


FIRST_DAMAGES = ("a changed roster", "no policy")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(name, marks=() if name in FIRST_DAMAGES else pytest.mark.full)
        for name in DAMAGES
    ],
)
def test_a_folder_damaged_meanwhile_ends_the_run_with_the_reason_and_not_the_authority(
    site, damage
):
    """Which answers again, once the folder is whole."""
    here = site(rounds=3, algorithm="fedavg")
    loop, whole = Loop(here), {}

    def damaged():
        whole.update(contents(here.keys))
        DAMAGES[damage](here.keys)

    loop.before_round({2: damaged})
    with pytest.raises(OpeningRefused, match=str(here.keys)):
        loop.run()
    assert len(here.record.metrics) == 1
    assert all(str(here.keys) in str(how) for how in loop.ended.values())
    for path, (content, mode) in whole.items():
        path.write_bytes(content)
        path.chmod(mode)
    news = asked_of_the_authority(
        here, lambda link: ask_what_holds(link, READY), keeper=loop.keeper
    )
    assert news.bundles.keys() == {"client", "server"}


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {path: (path.read_bytes(), path.stat().st_mode) for path in files}


# What the policy does not allow.

NO_VARIANCE = tuple(OpeningRule(names) for names in ("update/*", "*/mean", "*/gradient"))
POLICIES = {
    "a name": (Policy(rules=NO_VARIANCE), r"round 1, '1/variance': the policy opens no '1/var"),
    "a fifth opening": (Policy(openings_per_run=4), "round 2, '1/mean': the policy opens 4 totals"),
    "so few clients": (Policy(min_contributions=4), "at least 4"),
}


@pytest.mark.parametrize("what", POLICIES)
def test_what_the_policy_does_not_open_ends_the_run_and_says_so(site, what):
    policy, reason = POLICIES[what]
    here = site(policy=policy)
    loop = Loop(here)
    with pytest.raises(OpeningRefused, match=reason):
        loop.run()
    refused = [one for one in openings_of(here) if one["refused"]]
    assert len(refused) == 1
    assert (here.folder / "run" / OPENINGS).read_text() == here.openings.read_text()
    # The run may be over before all have joined.
    joined = [how for name, how in loop.ended.items() if loop.has_said(f"{name}: joined")]
    assert all(isinstance(how, PeerError) for how in joined), (loop.ended, loop.said)


# Clients that spoil sealed totals.


@dataclass
class Liar:
    """Seals under another weight, or rubbish."""

    inner: object
    weight: float | None = None

    def seal(self, values, weight, about, sender):
        if self.weight is not None:
            return self.inner.seal(values, self.weight, about, sender)
        sealed = self.inner.seal(values, weight, about, sender)
        words = np.random.default_rng(0).integers(0, 2**51, len(sealed.payload) // 7, np.uint64)
        return Sealed(packed(words, [2**52 - 1]), sealed.nonce)

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Dishonest(dict):
    """Sealers of a client that lies, under each new key as well."""

    def __init__(self, party, weight):
        super().__init__(party.sealers)
        self.weight = weight
        party.sealers = party.client.sealers = self

    def __ior__(self, newer):
        self.update({kind: Liar(sealer, self.weight) for kind, sealer in newer.items()})
        return self


@pytest.mark.parametrize(
    "weight",
    [
        pytest.param(1.0, id="1", marks=pytest.mark.full),
        pytest.param(0.5, id="0.5"),
        pytest.param(-0.5, id="-0.5", marks=pytest.mark.full),
        pytest.param(None, id="rubbish"),
    ],
)
def test_who_spoils_sealed_totals_is_found_and_left_out_and_the_run_goes_on(site, weight):
    """By rounds that others have without it: no message is opened alone."""
    # A weight that shows once the total is open costs more: others must be left out with it.
    opens = weight in {0.5, -0.5}
    names = (*CLIENTS, "dora", *(("eve", "frank", "gina", "hugo") if opens else ()))
    here = site(names=names, rounds=9, algorithm="fedavg")
    loop = Loop(here)
    Dishonest(loop.clients["carol"].party, weight)
    record = loop.run()
    assert len(record.metrics) == 9
    incidents = [json.loads(line) for line in here.incidents.splitlines()]
    first = [one["client"] for one in incidents if one["round"] == 1]
    assert first == list(names)  # any of them may be it
    named = [one for one in incidents if "left out from now on" in one["reason"]]
    assert [one["client"] for one in named] == ["carol"]
    assert "left out from now on" in str(loop.ended.pop("carol"))
    assert loop.ended == dict.fromkeys(name for name in names if name != "carol")
    assert record.metrics[-1].dropped == ()
    assert record.metrics[-1].loss < record.metrics[0].loss
    opened = [one for one in openings_of(here) if not one["refused"]]
    assert min(len(one["signers"]) for one in opened) >= 3
    assert all("carol" not in one["signers"] for one in opened) or opens


@pytest.mark.parametrize("weight", [0.5, pytest.param(-0.5, marks=pytest.mark.full)])
def test_of_four_a_weight_that_shows_in_an_open_total_ends_the_run(site, weight):
    """The next total, without its client, would show what that client has sent."""
    here = site(names=(*CLIENTS, "dora"), algorithm="fedavg")
    loop = Loop(here)
    Dishonest(loop.clients["carol"].party, weight)
    with pytest.raises(
        TotalRefused, match="one of alice, bob, carol, dora has spoiled it, and tot"
    ):
        loop.run()
    opened = {tuple(one["signers"]) for one in openings_of(here) if not one["refused"]}
    assert len(opened) == 1


def test_where_nobody_can_be_left_out_the_run_ends_and_names_the_suspects(site):
    here = site(algorithm="fedavg")
    loop = Loop(here)
    Dishonest(loop.clients["carol"].party, 1.0)
    with pytest.raises(TotalRefused, match="one of alice, bob, carol has spoiled it"):
        loop.run()
    assert here.incidents.count("has spoiled it") == 3


def test_a_policy_that_is_signed_meanwhile_holds_from_the_next_round(site):
    here = site(rounds=3)
    loop = Loop(here)
    loop.before_round({3: lambda: here.sign(Policy(rules=NO_VARIANCE))})
    with pytest.raises(OpeningRefused, match="the policy opens no '1/variance'"):
        loop.run()
    assert len(here.record.metrics) == 2


def test_a_server_that_sends_one_client_another_model_opens_nothing(site, monkeypatch):
    """It would know the others' updates, and so read the one's: each signs what it was sent."""
    here, send = site(encrypt="model", algorithm="fedavg"), Members.send

    async def sent(self, links, frame, body, more=b""):
        if frame in {Frame.ROUND, Frame.QUESTION} and "alice" not in links:
            tensors = safetensors.torch.load(more)
            more = safetensors.torch.save({n: (of / 2).to(of.dtype) for n, of in tensors.items()})
        return await send(self, links, frame, body, more)

    monkeypatch.setattr(Members, "send", sent)
    loop = Loop(here)
    with pytest.raises(TooFewContributions):
        loop.run()
    assert loop.has_said("hub: has not signed the models that it shows")  # `test_models_shown` does
    assert not [opening for opening in openings_of(here) if not opening["refused"]]


def test_a_server_that_sends_one_client_other_totals_opens_nothing_more(site, monkeypatch):
    """Totals in mid-round steer what the others send as well as a model does."""
    here, send = site(), Members.send

    async def sent(self, links, frame, body, more=b""):
        if frame is Frame.TOTAL and "alice" not in links:
            body = body[:-8] + bytes(8)
        return await send(self, links, frame, body, more)

    with monkeypatch.context() as patch:
        patch.setattr(Members, "send", sent)
        with pytest.raises((TooFewContributions, PeerError, OpeningRefused)):
            Loop(here).run()
    opened = {opening["name"] for opening in openings_of(here) if not opening["refused"]}
    assert opened <= {"1/mean"}  # what was sent before the first total


def test_the_authority_refuses_headers_of_two_models(site):
    """The server that lies would pass them on as they are."""
    here = site()
    request, other = request_of(here), request_of(here, state="ef" * 32)
    mixed = replace(request, signed=(*request.signed[:2], other.signed[2]))
    with pytest.raises(OpeningRefused, match="message of state '"):
        asked_of_the_authority(here, opening(mixed))


# The authority's door.

READY = bodies.Ready(run=RUN, settings=SETTINGS, round=1, known=(0, 0), needed=5)


@dataclass(frozen=True, slots=True)
class WithCards(SumRequest):
    """A sum, and the cards of its clients."""

    cards: Mapping[str, bytes] = field(default_factory=dict)


def request_of(
    site, names=CLIENTS, round_number=1, bundles="bundles", state="cd" * 32, run=RUN, **terms
):
    """A sum of these clients, who count once but for those with other terms."""
    terms = dict.fromkeys(names, Terms()) | terms
    keys, bundle = site.bundle("client", bundles).card_keys, site.bundle("server", bundles)
    server = Server(run, bundle.clients(), {SPEC.kind: OneTimeAdder(bundle.card_keys)})
    arriving, cards = server.start(round_number, SPEC, state, terms), {}
    for name in names:
        sealing = {SPEC.kind: OneTimeSealer(keys)}
        client = Client(name, 0.25, sealing, card_keys=keys, signing_key=site.signing_key(name))
        tensors = {"x": torch.arange(5.0)}
        about, times = (run, round_number, SPEC, tensors), terms[name].times
        arriving.receive(client.contribute(*about, times, terms[name].bind(state)))
        cards[name] = client.send_cards(run)
    request = arriving.request()
    return WithCards(request.expected, request.total, request.signed, request.terms, cards=cards)


def opening(request, ready=READY):
    """Ask READY, and to open it."""

    async def ask(link):
        if ready:
            await ask_what_holds(link, ready)
            if ready.run == request.expected.run:
                await give_cards(link, ready.run, request.cards)
        return await ask_to_open(link, request)

    return ask


def test_the_authority_opens_over_the_line_and_once_also_after_a_restart(site):
    here = site()
    request = request_of(here)
    opened = asked_of_the_authority(here, opening(request))
    assert opened.n_clients == 3
    assert opened.values == pytest.approx(np.arange(5.0), abs=1e-6)
    with pytest.raises(OpeningRefused, match="asked for once already"):
        asked_of_the_authority(here, opening(request))
    assert len(openings_of(here)) == 2


def test_a_run_begun_anew_without_a_client_opens_nothing_also_after_a_restart(site):
    here = site(names=("alice", "bob", "carol", "dora"))
    four = request_of(here, here.names)
    asked_of_the_authority(here, opening(four))
    three, ready = request_of(here, run="ee" * 32), READY.model_copy(update={"run": "ee" * 32})
    with pytest.raises(OpeningRefused, match="show the values of dora"):
        asked_of_the_authority(here, opening(three, ready))


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        (Terms(times=2), "dora would count 2 times"),
        (Terms(since=3), "dora counted another number of times, or went on"),
    ],
    ids=["twice", "from another"],
)
def test_a_run_begun_anew_shows_nobody_who_counts_on_other_terms(site, terms, why):
    """The totals of the same clients would differ by one client's values, or by what changed in
    them; a server that tells the authority other terms than the client's is refused, too.
    """
    here = site(names=("alice", "bob", "carol", "dora"))
    asked_of_the_authority(here, opening(request_of(here, here.names)))
    ready = READY.model_copy(update={"run": "ee" * 32})
    anew = request_of(here, here.names, run="ee" * 32, dora=terms)
    with pytest.raises(OpeningRefused, match=why):
        asked_of_the_authority(here, opening(anew, ready))
    ready = READY.model_copy(update={"run": "ff" * 32})
    anew = request_of(here, here.names, run="ff" * 32, dora=terms)
    hidden = replace(anew, terms=dict.fromkeys(here.names, Terms()))
    with pytest.raises(OpeningRefused, match="message of state"):
        asked_of_the_authority(here, opening(hidden, ready))


def drawn_by(session, state):
    """What seeds a client's draws in its first round."""
    clients = session.site._trainer._clients
    work = clients.work("bob", state, Workspace(clients.model), ClientState())
    session.site.close()
    return work.rng.initial_seed()


@pytest.mark.parametrize("reproducible", [False, True])
def test_a_client_draws_by_the_run_unless_reproducibility_is_asked_for(made, reproducible):
    """So a run begun anew without one client does not repeat the others' updates."""
    table = made.config.run.model_copy(update={"reproducible": reproducible})
    config = made.config.model_copy(update={"run": table})
    party = client_party(config, made.identity("bob"), made.folder / "bob")
    state = party.job.algorithm.init(party.job.task.model)
    seeds = [drawn_by(party.session(run * 32, RUN), state) for run in ("ab", "cd", "ab")]
    of_a_simulation = round_generator(made.config.run.seed, 0, 1).initial_seed()
    assert (seeds[0] == seeds[1]) is reproducible
    assert seeds[0] == seeds[2]
    assert (seeds[0] == of_a_simulation) is reproducible


def test_a_refusal_uses_up_the_one_answer_also_after_a_restart(site):
    here = site()
    with pytest.raises(TooFewContributions):
        asked_of_the_authority(here, opening(request_of(here, ("alice", "bob"))))
    with pytest.raises(OpeningRefused, match="asked for once already"):
        asked_of_the_authority(here, opening(request_of(here)))


def test_a_total_that_is_changed_counts_nobody(site):
    """Whatever a server adds to it in another way: the authority says so, and goes on."""
    here = site()
    request = request_of(here)
    words = bytearray(request.total)
    words[0] ^= 1
    with pytest.raises(TotalRefused, match="does not count its clients"):
        asked_of_the_authority(here, opening(replace(request, total=bytes(words))))


def test_without_a_card_nothing_is_opened_and_the_answer_is_not_used_up(site):
    """The server has only to give it."""
    here = site()
    request = request_of(here)
    without = {name: card for name, card in request.cards.items() if name != "bob"}
    with pytest.raises(OpeningRefused, match="no card of bob in this session"):
        asked_of_the_authority(here, opening(replace(request, cards=without)))
    assert asked_of_the_authority(here, opening(request)).n_clients == 3


def test_cards_are_taken_of_the_session_that_was_announced_alone(site):
    """And each that is refused has its reason."""
    here = site()
    request = request_of(here)
    swapped = dict(zip(request.cards, reversed(request.cards.values()), strict=True))

    async def ask(link):
        with pytest.raises(OpeningRefused, match="has not asked READY for this session"):
            await give_cards(link, RUN, request.cards)
        await ask_what_holds(link, READY)
        with pytest.raises(OpeningRefused, match="has not asked READY for this session"):
            await give_cards(link, "ee" * 32, request.cards)
        refused = await give_cards(link, RUN, request.cards | {"alice": b"rubbish"})
        assert refused == {"alice": "not a SecureFL message of version 5"}
        assert await give_cards(link, RUN, swapped) == {}  # whose each is, its signature says
        return await ask_to_open(link, request)

    assert asked_of_the_authority(here, ask).n_clients == 3


def test_the_authority_refuses_too_few_and_says_so(site):
    here = site()
    with pytest.raises(TooFewContributions, match="at least 3"):
        asked_of_the_authority(here, opening(request_of(here, ("alice", "bob"))))


@pytest.mark.parametrize(
    "ready",
    [None, READY.model_copy(update={"round": 2}), READY.model_copy(update={"run": "cd" * 32})],
    ids=["none", "another round", "another run"],
)
def test_nothing_is_opened_of_a_round_that_the_authority_was_not_asked_about(site, ready):
    """A server that was revoked and asks no more gets nothing more; the refusal is in the log."""
    here = site()
    with pytest.raises(OpeningRefused, match="round 1, '1/mean': hub has not asked READY for it"):
        asked_of_the_authority(here, opening(request_of(here), ready))
    assert "READY" in openings_of(here)[0]["refused"]


def test_a_server_that_was_revoked_gets_nothing_opened(site):
    """Neither after it was told so, nor over a new connection."""
    here = site()
    request, keeper = request_of(here), FolderKeeper(here.keys, PASSPHRASE)

    async def ask(link):
        await ask_what_holds(link, READY)
        here.rotate(revoking=SERVER)
        with pytest.raises(OpeningRefused, match="was revoked"):
            await ask_what_holds(link, READY)
        with pytest.raises(OpeningRefused, match="has not asked READY"):
            await ask_to_open(link, request)

    asked_of_the_authority(here, ask, keeper=keeper)
    said = []
    with pytest.raises(PeerError, match=r"has closed the connection|does not call"):
        asked_of_the_authority(here, opening(request), keeper=keeper, said=said)
    assert any("was revoked" in line for line in said)


def test_a_server_that_joined_meanwhile_is_let_in(site):
    here = site()
    keeper = FolderKeeper(here.keys, PASSPHRASE)
    here.join("hub-2", role="server")
    ask = lambda link: ask_what_holds(link, READY)  # noqa: E731
    news = asked_of_the_authority(here, ask, who="hub-2", keeper=keeper)
    assert news.bundles.keys() == {"client", "server"}


def test_a_sum_under_the_old_key_is_refused_by_its_id(site):
    here = site()
    request = request_of(here)
    new = here.rotate()
    with pytest.raises(OpeningRefused, match=f"authority opens .* under key {new[:16]} of epoch 2"):
        asked_of_the_authority(here, opening(request))
    (one,) = openings_of(here)
    assert one["key_id"] == request.expected.key_id != new


def test_the_authority_believes_no_header_that_is_none(made):
    request = request_of(made)
    broken = tuple(replace(one, signed=b"{}") for one in request.signed)
    with pytest.raises(OpeningRefused, match="that is none"):
        asked_of_the_authority(made, opening(replace(request, signed=broken)))
    assert "that is none" in openings_of(made)[-1]["refused"]


@pytest.mark.parametrize("who", CLIENTS)
def test_the_authority_answers_no_client(made, who):
    with pytest.raises(PeerError, match="no trusted peer"):
        asked_of_the_authority(
            made, lambda link: ask_what_holds(link, READY), who=who, role="client"
        )


ABSURD = [
    {"needed": -1},
    {"needed": 2**62},
    {"needed": 10**400},
    {"needed": 1.5},
    {"needed": "1"},
    {"round": 0},
    {"round": 2**31},
    {"run": "ab"},
    {"known": [-1, 0]},
    {"known": [2**31, 0]},
    {"known": [1, 2, 3]},
]


@pytest.mark.parametrize("absurd", ABSURD, ids=repr)
def test_a_ready_of_absurd_numbers_ends_that_connection_alone(made, absurd):
    body = json.dumps(json.loads(READY.to_bytes()) | absurd).encode()

    async def ask(link):
        await link.send(Frame.READY, body)
        await link.receive({Frame.STANDING: 10**7, Frame.REFUSED: SMALL})

    said = []
    with pytest.raises(PeerError, match="has closed the connection"):
        asked_of_the_authority(made, ask, said=said)
    assert any(line.startswith("hub: bad Ready") for line in said)


def test_no_second_process_serves_the_keys_of_one(made):
    """Neither would know what the other has opened."""
    with alone(made.keys), pytest.raises(KeyFileError, match="another authority process"):
        alone(made.keys).__enter__()
    with alone(made.keys):
        pass


def test_a_second_process_of_the_authority_is_refused_while_the_first_answers(site):
    """In words; the run goes on with the first."""
    here = site()
    loop, told = Loop(here), []

    async def meanwhile(loop):
        await loop.wait_for("hub is connected")
        own = here.identity("authority", "authority")
        link = await connected(own, here.bundle("server"), "server", loop.at, 5)
        received = await link.receive({Frame.GOODBYE: SMALL})
        told.append(bodies.parsed(bodies.Reason, received.body, "hub").reason)
        link.close()

    record = loop.run(meanwhile)
    assert told == ["another process of the authority is connected: stop one of the two"]
    assert [m.dropped for m in record.metrics] == [(), ()]


def test_an_authority_that_is_away_before_a_round_is_waited_for(site):
    """It calls again, says what holds, and opens what is left of the round."""
    here = site()
    loop, n_asked = Loop(here), 0

    async def cut_off(link, ready):
        nonlocal n_asked
        n_asked += 1
        if n_asked in {1, 3}:  # before the first round, and in the second
            link.close()
        return await ask_what_holds(link, ready)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(securefl.network.authority_line, "ask_what_holds", cut_off)
        patch.setattr(securefl.network.authority, "PAUSE_S", 0.05)
        record = loop.run()
    assert n_asked == 4
    assert [m.dropped for m in record.metrics] == [(), ()]
    assert loop.said.count("hub is connected") == 3


def test_an_authority_that_does_not_call_ends_the_run_in_words(site):
    here = site()
    loop = Loop(here)
    loop.keeper, loop.patience = None, replace(loop.patience, joining_s=0.2)
    loop.server.patience = loop.patience
    with pytest.raises(PeerError, match=r"has not called for 0.2 s: .* --server"):
        loop.run()


def test_more_than_was_announced_is_not_even_read(site):
    """Of a sum larger than READY has said nothing is kept, and the line goes on."""
    here = site()
    large = bodies.OpenRequest.model_validate_json(bodies.open_request(request_of(here)))
    large = large.model_copy(update={"n_values": bodies.MAX_VALUES})

    async def ask(link):
        await ask_what_holds(link, READY)
        await link.send(Frame.OPEN, large.to_bytes())
        await link.send(Frame.CIPHERTEXT, bytes(10**7))
        refused = await link.receive({Frame.REFUSED: SMALL})
        await give_cards(link, RUN, request_of(here).cards)
        opened = await ask_to_open(link, request_of(here))
        return bodies.parsed(bodies.Refusal, refused.body, "authority").reason, opened.n_clients

    reason, n_clients = asked_of_the_authority(here, ask)
    assert "and READY has announced" in reason
    assert n_clients == 3


def kept_of_ciphertexts(monkeypatch):
    """Lengths of the ciphertexts that the authority keeps from now on."""
    kept, receive = [], Link.receive

    async def noted(self, allowed):
        received = await receive(self, allowed)
        if received.frame is Frame.CIPHERTEXT:
            kept.append(len(received.body))
        return received

    monkeypatch.setattr(Link, "receive", noted)
    return kept


def test_a_size_that_no_client_has_signed_is_not_even_read(site, monkeypatch):
    """Though the server has announced it; the refusal is logged, and the line goes on."""
    here, kept = site(), kept_of_ciphertexts(monkeypatch)
    large = bodies.OpenRequest.model_validate_json(bodies.open_request(request_of(here)))
    large = large.model_copy(update={"n_values": bodies.MAX_VALUES})
    request = request_of(here, round_number=2)

    async def ask(link):
        await ask_what_holds(link, READY.model_copy(update={"needed": bodies.MAX_VALUES}))
        await give_cards(link, RUN, request.cards)
        await link.send(Frame.OPEN, large.to_bytes())
        await link.send(Frame.CIPHERTEXT, bytes(10**7))
        refused = await link.receive({Frame.REFUSED: SMALL})
        await ask_what_holds(link, READY.model_copy(update={"round": 2}))
        opened = await ask_to_open(link, request)
        return bodies.parsed(bodies.Refusal, refused.body, "authority").reason, opened.n_clients

    reason, n_clients = asked_of_the_authority(here, ask)
    assert "message of n_values 5, expected 67108864" in reason
    assert n_clients == 3
    assert kept == [len(request.total)]
    assert [one["refused"] for one in openings_of(here)] == [reason, ""]


@pytest.mark.parametrize("names", [CLIENTS, ("alice", "bob"), ("alice", "bob", "bob")], ids=str)
def test_a_large_total_is_read_once_its_clients_have_signed_for_it(site, monkeypatch, names):
    """As many as are needed, each once."""
    here, kept = site(), kept_of_ciphertexts(monkeypatch)
    monkeypatch.setattr(securefl.network.authority, "MAX_UNSIGNED_BYTES", 0)
    request = request_of(here, dict.fromkeys(names))
    by_name = {one.header.sender: one for one in request.signed}
    request = replace(request, signed=tuple(by_name[name] for name in names))
    if names == CLIENTS:
        assert asked_of_the_authority(here, opening(request)).n_clients == 3
        assert kept == [len(request.total)]
        return
    with pytest.raises(OpeningRefused, match=r"at least 3|stands in it twice"):
        asked_of_the_authority(here, opening(request))
    assert kept == []
    assert openings_of(here)[0]["refused"]


def test_a_line_that_was_cut_off_is_none(tmp_path):
    """It is written before anything is released, so it stands for nothing that was."""
    (tmp_path / "released.jsonl").write_text('["ab", 1, "x/mean"]\n["ab", 1, "x/var')
    AuthorityLog(tmp_path, "").history.claim(("ab", 1, "x/var"))
    AuthorityLog(tmp_path, "").history.claim(("ab", 2, "x/mean"))
    for total in (("ab", 1, "x/mean"), ("ab", 1, "x/var"), ("ab", 2, "x/mean")):
        with pytest.raises(OpeningRefused, match="asked for once already"):
            AuthorityLog(tmp_path, "").history.claim(total)


def test_a_line_that_cannot_be_written_ends_the_opening_in_words(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left")

    monkeypatch.setattr(securefl.network.authority, "append_whole", full)
    with pytest.raises(RunFolderError, match="cannot be written"):
        AuthorityLog(tmp_path, "").history.claim(("ab", 2, "x/mean"))


def test_a_damaged_log_of_releases_is_refused(tmp_path):
    (tmp_path / "released.jsonl").write_text('["ab", 1]\n')
    with pytest.raises(RunFolderError, match="opened twice"):
        AuthorityLog(tmp_path, "")


def test_a_line_of_scores_that_was_cut_off_is_none(tmp_path):
    path = tmp_path / "released.jsonl"
    path.write_text('["ab", 1, "profile/score", ["alice"]]\n["ab", 1, "profile/score", ["bo')
    AuthorityLog(tmp_path, "").history.claim_scores("ab", 1, "5e", ["bob", "carol"])
    assert path.read_text().splitlines()[1:] == [
        '["ab", 1, "profile/score", "", "5e", ["bob", "carol"]]'
    ]
    for name in ("alice", "bob", "carol"):
        with pytest.raises(OpeningRefused, match=f"opened once already, of {name}"):
            AuthorityLog(tmp_path, "").history.claim_scores("ab", 1, "5e", [name])
    AuthorityLog(tmp_path, "").history.claim_scores("ab", 2, "5e", ["alice"])
    AuthorityLog(tmp_path, "").history.claim(
        ("ab", 1, "profile/score")
    )  # a total has claims of its own


# Bundles on the line.


def test_a_server_takes_no_other_bundle_than_its_own_from_the_authority(site, bundles):
    here = site()
    news = {
        "a client's": bundles.second | {"server": bundles.second["client"]},
        "another consortium's": bundles.foreign,
    }
    for changed in news.values():
        loop = Loop(Site(here.folder.parent / f"of-{id(changed)}"))
        loop.keeper = Lying(loop.keeper, changed)
        with pytest.raises(PeerError, match="authority: sent a bundle that is refused"):
            loop.run()


@dataclass
class Lying:
    """An authority that sends other bundles."""

    keeper: FolderKeeper
    bundles: dict

    @property
    def parameters(self):
        return self.keeper.parameters

    def now(self):
        standing = self.keeper.now()  # which is not taken apart by `replace`
        parts = {field.name: getattr(standing, field.name) for field in fields(MemberStanding)}
        return MemberStanding(**parts | {"bundles": self.bundles})


def changed_byte(path, at=0.5):
    """One in that file of the client's newer bundle."""

    def change(relayed):
        texts = json.loads(relayed.second["client"])
        text = texts[path]
        i = int(at * len(text))
        texts[path] = text[:i] + ("A" if text[i] != "A" else "B") + text[i + 1 :]
        return json.dumps(texts)

    return change


def mixed(relayed):
    first, second = (json.loads(one["client"]) for one in (relayed.first, relayed.second))
    return json.dumps(second | {"consortium/roster.json": first["consortium/roster.json"]})


def without(path):
    def change(relayed):
        texts = json.loads(relayed.second["client"])
        del texts[path]
        return json.dumps(texts)

    return change


def with_more(relayed):
    return json.dumps(json.loads(relayed.second["client"]) | {"more": "of it"})


FILES = (
    "clients/public.key",
    "consortium/ca.crt",
    "consortium/roster.json",
    "consortium/policy.json",
    "consortium/manifest.json",
)
RELAYED = {
    "another role's": lambda relayed: relayed.second["server"],
    "another consortium's": lambda relayed: relayed.foreign["client"],
    "of two epochs": mixed,
    "with a file more": with_more,
    "nothing": lambda _: "",
    "no files": lambda _: "{}",
    "a list": lambda _: "[]",
    "numbers": lambda _: '{"consortium/ca.crt": 1}',
    "half a character": lambda _: '{"consortium/ca.crt": "\\ud800"}',
    **{f"a changed byte in {path}": changed_byte(path) for path in FILES},
    **{f"without {path}": without(path) for path in FILES},
}


def relay(process, body):
    """A client gets this before a round."""
    process._take_bundle(body)


@pytest.fixture(scope="module")
def client(bundles):
    """One with the keys of the first epoch."""
    return Loop(bundles.site).clients["alice"]


@pytest.mark.parametrize("what", RELAYED)
def test_a_bundle_that_is_not_the_consortiums_newest_for_clients_is_refused(client, bundles, what):
    """Whoever relays it. The client keeps its keys."""
    refused_bundle(client, RELAYED[what](bundles).encode())


def test_bytes_that_are_no_text_are_no_bundle(client):
    refused_bundle(client, b"\xff\xfe{}")


def refused_bundle(process, body):
    bundle, sealing = process.bundle, dict(process.party.sealers)
    with pytest.raises(_RunOver, match="sent a bundle that is refused"):
        relay(process, body)
    assert process.bundle is bundle
    assert process.party.sealers == sealing


def test_a_newer_bundle_is_taken_up_and_an_older_one_refused_from_then_on(bundles):
    process = Loop(bundles.site).clients["alice"]
    relay(process, bundles.second["client"].encode())
    assert process.bundle.age[0] == 2
    sealer = process.party.client.sealers[Kind.STATISTICS]
    assert (sealer.key_id, sealer.epoch) == (process.bundle.card_keys.key_id, 2)
    refused_bundle(process, bundles.first["client"].encode())


def test_a_client_that_is_relayed_a_forged_bundle_ends_with_the_reason(bundles):
    """It does not join again: no round would be under keys that it believes."""
    got = []

    async def serve(link, process, connection):
        await link.send(Frame.BUNDLE, bundles.foreign["client"].encode())
        with pytest.raises(PeerError):
            await link.receive({Frame.MESSAGE: 10**7})
        got.append(connection)
        return True

    process, _, how = fake_server(bundles.site, serve)
    assert got == [1]
    assert isinstance(how, PeerError)
    assert "hub: sent a bundle that is refused: " in str(how)
    assert process.bundle.age[0] == 1


def test_a_keeper_needs_a_consortium(tmp_path, keys):
    with pytest.raises(KeyFileError):
        FolderKeeper(keys, PASSPHRASE).now()
    assert not (Path(keys) / layout.ROSTER).exists()
