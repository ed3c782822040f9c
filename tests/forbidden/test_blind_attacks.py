"""What a server might try with totals that it passes on and must not read, nor change.

Each attack is refused with an error of its own, and where a client is attacked the incident names
it. The one attack that succeeds stands here, too: a client on the list that tells the server.
"""

from __future__ import annotations

import copy
import pickle
import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from over_loopback import Consortium, Job, OnTask
from reachability import reachable

from securefl import run
from securefl.build.simulation import simulated
from securefl.crypto.blind import SALT_BYTES, WRAP_BYTES, BlindText, ContentKey
from securefl.errors import (
    BlindTotalRefused,
    MessageRefused,
    NotBlind,
    OpeningRefused,
    PeerError,
    Relabelled,
    TooFewContributions,
    TotalRefused,
)
from securefl.exchange.blind import BlindTotal, listed, names_in
from securefl.exchange.card_keys import Quorum
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time import OneTimeSealer
from securefl.exchange.policy import Policy
from securefl.exchange.sums import MessageId, OpenedSum, Sender
from securefl.federation.authority import Authority
from securefl.federation.client import Client
from securefl.federation.clients_round import Answer
from securefl.federation.incidents import PASSED, Incident
from securefl.federation.opening import Opening
from securefl.federation.remote import RemoteRound
from securefl.federation.round import ServerRound
from securefl.federation.server import DueWeight
from securefl.federation.total import RELEASED, total_bytes
from securefl.network import authority_line
from securefl.runs.folder_files import INCIDENTS
from securefl.runs.folder_reader import read_rows
from securefl.simulation.processes.messages import Member
from securefl.types import Kind, MessageSpec

pytestmark = pytest.mark.usefixtures("no_hang", "quick")

RUN = "ab" * 32
NAMES = ("alice", "bob", "carol", "dave")
SPEC = MessageSpec("layer/mean", Kind.STATISTICS, 5)
ABOUT = MessageId(RUN, 1, SPEC.name, SPEC.n_values)
OPENED = OpenedSum(np.arange(5) / 7, 0.75, 4)
CONTENT = total_bytes(OPENED, RELEASED)


class Cohort:
    """Four clients that take blind totals, and the authority's opener, which has their cards."""

    def __init__(self, quorum=None):
        self.keys = KeySet.ephemeral(quorum)
        self.opener = self.keys.opener()
        sealers = {Kind.STATISTICS: OneTimeSealer(self.keys.public)}
        self.clients = {name: Client(name, 0.1, sealers, blind=True) for name in NAMES}
        for name in NAMES:
            self.opener.take_cards(RUN, name, self.keys.public.cards(RUN, self.sender(name)))

    def sender(self, name):
        return self.clients[name].sender(RUN, self.keys.public.key_id)

    def sealed(self, content=CONTENT, about=ABOUT, names=NAMES):
        return self.opener.sealed_for(content, about, names)

    def read(self, name, total, round_number=1, spec=SPEC):
        return self.clients[name].read_total(RUN, round_number, spec, total)

    def crafted(self, name, content=CONTENT, names=NAMES, about=ABOUT):
        """A total that only whoever has a client's secret can make, for that client alone."""
        list_bytes = names if isinstance(names, bytes) else listed(names)
        key = ContentKey.sealing(content, about.digest(), list_bytes)
        secret = self.keys.public.secrets(self.sender(name))[0]
        return BlindTotal.of(key, {name: key.wrapped(secret)})


@pytest.fixture(scope="module")
def cohort():
    return Cohort()


def test_each_client_on_the_list_reads_the_total(cohort):
    """All the same; also of the bytes that it is sent."""
    total = cohort.sealed()
    assert total.n_clients == 4
    assert names_in(total) == [*NAMES]
    for name in NAMES:
        for sent in (total, BlindTotal.sent_to(name, total.for_client(name))):
            found = cohort.read(name, sent)
            np.testing.assert_array_equal(found.values, OPENED.values)
            assert (found.weight, found.n_clients) == (0.75, 4)


def test_no_byte_may_be_changed(cohort):
    """Of the wrap, the salt, the list's length, the list, the ciphertext and its tag: each one."""
    body = cohort.sealed().for_client("bob")
    for i in range(len(body)):
        changed = body[:i] + bytes([body[i] ^ 1 << i % 8]) + body[i + 1 :]
        with pytest.raises(BlindTotalRefused):
            cohort.read("bob", BlindTotal.sent_to("bob", changed))


def test_any_bytes_are_refused_and_nothing_crashes(cohort):
    """Of every length up to the total's, longer ones, and random ones."""
    body, rng = cohort.sealed().for_client("bob"), random.Random(5)
    wrong = [body[:n] for n in range(len(body))] + [body + b"\0", body + body]
    wrong += [rng.randbytes(rng.randrange(400)) for _ in range(500)]
    wrong += [bytes(WRAP_BYTES + 16) + n.to_bytes(4, "little") + b"[" * 99 for n in (0, 99, 2**31)]
    for sent in wrong:
        with pytest.raises(BlindTotalRefused):
            cohort.read("bob", BlindTotal.sent_to("bob", sent))


def test_wraps_are_of_one_client_each(cohort):
    """Who gets another's, or none, reads nothing."""
    total = cohort.sealed()
    for wrap in (total.wraps["alice"], b"", total.wraps["bob"] + b"\0"):
        with pytest.raises(BlindTotalRefused, match="for another client"):
            cohort.read("bob", replace(total, wraps={"bob": wrap}))
    with pytest.raises(BlindTotalRefused):
        cohort.read("bob", total.among(["alice"]))


@pytest.mark.parametrize(
    ("round_number", "name"),
    [(2, "layer/mean"), (1, "layer/variance")],
    ids=["an old round's", "another message's"],
)
def test_a_total_is_of_one_message(cohort, round_number, name):
    """One of another round or name does not open; nor does one of another session or size."""
    total = cohort.sealed()
    with pytest.raises(BlindTotalRefused):
        cohort.read("bob", total, round_number, replace(SPEC, name=name))
    with pytest.raises(BlindTotalRefused):
        cohort.read("bob", total, spec=replace(SPEC, n_values=6))
    with pytest.raises(BlindTotalRefused):
        cohort.clients["bob"].read_total("cd" * 32, 1, SPEC, total)


def test_parts_of_two_totals_do_not_fit(cohort):
    """The key of one with the ciphertext of another of the same message, which no honest one is."""
    one, other = cohort.sealed(), cohort.sealed(total_bytes(replace(OPENED, weight=0.5), RELEASED))
    for total in (replace(one, sealed=other.sealed), replace(one, wraps=other.wraps)):
        with pytest.raises(BlindTotalRefused):
            cohort.read("bob", total)


def test_a_total_in_the_clear_is_refused_where_it_must_be_sealed(cohort):
    """Whatever the server says: the client's settings say so; and the other way round."""
    with pytest.raises(BlindTotalRefused, match="in the clear"):
        cohort.read("bob", OPENED)
    plain = Client("bob", 0.1, cohort.clients["bob"].sealers)
    with pytest.raises(BlindTotalRefused, match="by the settings it is not"):
        plain.read_total(RUN, 1, SPEC, cohort.sealed())


MADE_BY_THE_AUTHORITY = {
    "a list without the client": ({"names": ("alice", "carol", "dave")}, "without this client"),
    "a client twice": ({"names": ("alice", "bob", "bob", "carol")}, "twice on its list"),
    "no list": ({"names": b"nobody"}, "no list of clients"),
    "a list of numbers": ({"names": b"[1, 2]"}, "no list of clients"),
    "brackets": ({"names": b"[" * 10**5}, "no list of clients"),
    "another count": ({"names": ("alice", "bob")}, "counts 4 clients, and lists 2"),
    "too short": ({"content": CONTENT[:-1]}, "is none"),
    "too long": ({"content": CONTENT + b"\0"}, "is none"),
    "NaN": ({"content": total_bytes(replace(OPENED, values=np.full(5, np.nan)), RELEASED)}, "none"),
    "of nobody": ({"content": total_bytes(replace(OPENED, n_clients=0), RELEASED)}, "is none"),
}


@pytest.mark.parametrize("name", MADE_BY_THE_AUTHORITY)
def test_rubbish_that_opens_is_refused_too(cohort, name):
    """Of an authority that errs: the client checks what is inside."""
    changes, why = MADE_BY_THE_AUTHORITY[name]
    with pytest.raises(BlindTotalRefused, match=why):
        cohort.read("bob", cohort.crafted("bob", **changes))


def test_content_keys_and_their_holders_show_no_secret(cohort):
    """No text, pickle or copy of one."""
    key = ContentKey.sealing(CONTENT, ABOUT.digest(), b"[]")
    assert repr(key) == "ContentKey()"
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            attempt(key)
    assert key._key not in key.text.ciphertext
    assert isinstance(key.text, BlindText)
    assert cohort.sealed().sealed != cohort.sealed().sealed


@pytest.mark.parametrize("part", ["content", "message", "about"])
def test_a_copied_machine_seals_no_other_total_under_the_same_keys(cohort, monkeypatch, part):
    """With the same random bytes: neither is its ciphertext, nor any wrap's key, used again."""
    monkeypatch.setattr("os.urandom", lambda n: b"r" * n)
    one = {"content": CONTENT, "message": ABOUT.digest(), "about": listed(NAMES)}
    other = one | {part: one[part][::-1]}
    sealed, again, elsewhere = (ContentKey.sealing(**parts) for parts in (one, one, other))
    assert sealed.text == again.text  # nothing new is under this key
    assert sealed._key != elsewhere._key
    assert sealed.text.salt != elsewhere.text.salt
    assert len(sealed._key) == 32
    assert len(sealed.text.salt) == SALT_BYTES
    assert sealed._key[:SALT_BYTES] != sealed.text.salt


def test_random_bytes_alone_change_the_keys_of_a_total():
    """Whoever guesses a total cannot tell."""
    one, other = (ContentKey.sealing(CONTENT, ABOUT.digest(), b"[]") for _ in range(2))
    assert one._key != other._key
    assert one.text.salt != other.text.salt


def test_several_officers_seal_nothing():
    """None of them has a total to seal, and clients of several take none."""
    officers = Cohort(Quorum(2, 3))
    with pytest.raises(OpeningRefused, match="several officers"):
        officers.sealed()
    with pytest.raises(BlindTotalRefused, match="several officers"):
        officers.read("bob", cohort_total())


def cohort_total():
    return Cohort().sealed()


def test_an_officer_wraps_for_clients_with_cards_alone(cohort):
    """Of the same session."""
    with pytest.raises(PeerError, match="no card of eve"):
        cohort.sealed(names=(*NAMES, "eve"))
    with pytest.raises(PeerError, match="no card of alice"):
        cohort.sealed(about=replace(ABOUT, run="cd" * 32))


# The authority.

BLIND = Policy(read=frozenset({"update/statistics", "update/parameters"}))


@pytest.fixture
def asked(federate):
    """A federation of which the authority has layer/mean sealed for clients, and its request."""
    federation = federate()
    federation.authority = federation.authority_of(BLIND)
    return federation, federation.collect().request(blind=True)


def test_the_authority_seals_by_its_own_settings(asked):
    """For all signers, who read the mean."""
    federation, request = asked
    total = federation.authority.open(request)
    assert isinstance(total, BlindTotal)
    assert [*total.wraps] == [*federation.clients]
    for client in federation.clients.values():
        client.blind = True
        found = client.read_total(federation.run, 1, federation.spec, total)
        np.testing.assert_allclose(found.values, federation.mean(), rtol=0, atol=1e-6)


def test_a_server_that_asks_to_read_it_is_refused(asked):
    """Before anything is decrypted; and it can still ask as it should."""
    federation, request = asked
    with pytest.raises(
        NotBlind, match=r"asked for in the clear, and exchange\.blind of the authority"
    ):
        federation.authority.open(replace(request, blind=False))
    assert "asked for in the clear" in federation.log[-1].refused
    assert isinstance(federation.authority.open(request), BlindTotal)


def test_what_the_server_reads_is_not_sealed(federate):
    """A round's end, and every total where the settings have none blind."""
    federation = federate()
    spec = replace(federation.spec, name="update/statistics")
    for policy, of in ((BLIND, spec), (Policy(), federation.spec)):
        authority = federation.authority_of(policy)
        request = federation.collect(spec=of).request(blind=True)
        with pytest.raises(NotBlind, match="has it in the clear"):
            authority.open(request)
        assert isinstance(authority.open(replace(request, blind=False)), OpenedSum)


def test_a_server_that_calls_it_an_update_is_refused(asked):
    """Clients have signed the name."""
    federation, request = asked
    renamed = replace(request.expected, name="update/statistics")
    with pytest.raises(Relabelled):
        federation.authority.open(replace(request, expected=renamed, blind=False))


def test_a_total_is_sealed_once(asked):
    """Not again for the same list, nor for another."""
    federation, request = asked
    federation.authority.open(request)
    fewer = federation.collect("client-1", "client-2", "client-3").request(blind=True)
    for again in (request, fewer):
        with pytest.raises(OpeningRefused, match="asked for once already"):
            federation.authority.open(again)


def test_the_weight_is_checked_before_it_is_sealed(asked):
    """Which the server cannot do; the refusal says nothing of it."""
    federation, request = asked
    weight = sum(client.weight for client in federation.clients.values())
    for due in (DueWeight(2 * weight), DueWeight(weight / 2), DueWeight(weight / 2, told=False)):
        authority = federation.authority_of(BLIND)
        with pytest.raises(TotalRefused, match="one lies about its weight") as caught:
            authority.open(replace(request, due=due))
        assert f"{weight:.3g}" not in str(caught.value)
    for due in (DueWeight(weight), DueWeight(2 * weight, told=False), None):
        authority = federation.authority_of(BLIND)
        assert isinstance(authority.open(replace(request, due=due)), BlindTotal)


# Whole runs.


@pytest.fixture
def blind_config(tiny_config):
    return lambda **run_table: tiny_config(run=run_table, exchange={"blind": True})


def with_answers(monkeypatch, change):
    """What the server makes of the total of round 2's 1/variance, before it passes it on."""
    answer, seen = ServerRound.answer, {}

    def changed(self):
        (spec,) = self._now.specs
        honest = answer(self)
        seen[self.context.number, spec.name] = honest
        if (self.context.number, spec.name) == (2, "1/variance"):
            return change(honest, seen)
        return honest

    monkeypatch.setattr(ServerRound, "answer", changed)


def of_bytes(honest, names):
    """One byte of the wraps of these."""
    wraps = dict(honest.opened.wraps)
    for name in names:
        wraps[name] = wraps[name][:-1] + bytes([wraps[name][-1] ^ 1])
    return replace(honest, opened=replace(honest.opened, wraps=wraps))


def one_byte(honest, _seen):
    return of_bytes(honest, ["client-2"])


def swapped(honest, _seen):
    wraps = dict(honest.opened.wraps)
    wraps["client-2"], wraps["client-4"] = wraps["client-4"], wraps["client-2"]
    return replace(honest, opened=replace(honest.opened, wraps=wraps))


def anothers(honest, _seen):
    wraps = honest.opened.wraps
    wraps = {**wraps, "client-4": wraps["client-1"]}
    return replace(honest, opened=replace(honest.opened, wraps=wraps))


def without(honest, _seen):
    left = [name for name in honest.opened.wraps if name != "client-3"]
    return replace(honest, opened=honest.opened.among(left))


ON_SOME = {
    "one byte": (one_byte, {"client-2"}),
    "swapped wraps": (swapped, {"client-2", "client-4"}),
    "another's wrap": (anothers, {"client-4"}),
    "no wrap": (without, {"client-3"}),
}
WORKERS = "in workers"
"""Hired for each test, so that one attack has to show that they carry refusals."""
ENGINES = {
    "in lockstep": {"engine": "sequential"},
    "in a block": {"engine": "vectorised"},
    WORKERS: {"engine": "parallel", "workers": 2},
}


@pytest.mark.parametrize(
    ("name", "engine"),
    [*product(ON_SOME, ("in lockstep", "in a block")), ("swapped wraps", WORKERS)],
)
def test_a_client_that_is_attacked_leaves_the_round(
    blind_config, tiny_task, monkeypatch, name, engine
):
    """The incident names it and the message; the round passes, and the next is of everyone."""
    change, victims = ON_SOME[name]
    with_answers(monkeypatch, change)
    result = run(blind_config(rounds=3, **ENGINES[engine]), tiny_task())
    everyone = {f"client-{i}" for i in range(1, 6)}
    assert {(i.round, i.name, i.client) for i in result.incidents} == {
        *((2, "1/variance", victim) for victim in victims),
        *((2, PASSED, name) for name in everyone - victims),
    }
    attacked = [i for i in result.incidents if i.client in victims]
    assert all("the total of '1/variance' does not open" in i.reason for i in attacked)
    assert not any(i.diverged for i in result.incidents)
    counted = {(o.round, o.name): set(o.signers) for o in result.openings}
    assert {name for number, name in counted if number == 2} == {"1/mean", "1/variance"}
    assert counted[2, "1/variance"] == counted[3, "update/statistics"] == everyone


def old_rounds(honest, seen):
    old = seen[1, "1/variance"].opened
    return replace(honest, opened=old)


def another_message(honest, seen):
    return replace(honest, opened=seen[2, "1/mean"].opened)


def in_the_clear(honest, _seen):
    zeros = OpenedSum(np.zeros(6), 1.0, 5)
    return replace(honest, opened=zeros)


def changed_ciphertext(honest, _seen):
    sealed = bytearray(honest.opened.sealed)
    sealed[-1] ^= 1
    return replace(honest, opened=replace(honest.opened, sealed=bytes(sealed)))


ON_ALL = {
    "an old round's": old_rounds,
    "another message's": another_message,
    "in the clear": in_the_clear,
    "a changed ciphertext": changed_ciphertext,
}


@pytest.mark.parametrize(
    ("name", "engine"),
    [*product(ON_ALL, ("in lockstep", "in a block")), ("an old round's", WORKERS)],
)
def test_where_all_are_attacked_nobody_goes_on(blind_config, tiny_task, monkeypatch, name, engine):
    """The run ends with the first client's reason."""
    with_answers(monkeypatch, ON_ALL[name])
    rounds = simulated(blind_config(rounds=3, **ENGINES[engine]), tiny_task())
    with pytest.raises(TooFewContributions, match=r"client-1: the total of '1/variance' "):
        rounds.run(None)
    incidents = rounds.parts.record.incidents
    assert [i.client for i in incidents] == [f"client-{i}" for i in range(1, 6)]
    assert {i.name for i in incidents} == {"1/variance"}


def test_workers_are_given_their_own_clients_keys_alone(blind_config, tiny_task, monkeypatch):
    """And no secret: a worker's members have their own signing keys."""
    among, given = Answer.among, []

    def noted(self, clients):
        part = among(self, clients)
        given.append(({*clients}, {*part.opened.wraps}))
        return part

    monkeypatch.setattr(Answer, "among", noted)
    result = run(blind_config(rounds=1, engine="parallel", workers=2), tiny_task())
    assert not result.incidents
    assert len(given) == 2 * 3
    assert all(names == wraps and 2 <= len(names) <= 3 for names, wraps in given)
    assert "blind" in Member.__slots__


# What the server holds.


class Held:
    """Each total as clients read it, and all that the server's side leads to meanwhile."""

    def __init__(self, monkeypatch):
        self.totals, self.found, self.looked_at = [], [], 0
        read, answer, requests = Client.read_total, ServerRound.answer, ServerRound.opened

        def reading(client, *about):
            total = read(client, *about)
            self.totals.append(np.array(total.values))
            return total

        def answering(ongoing):
            self._look(ongoing)
            given = answer(ongoing)
            self._look([ongoing, given])
            return given

        def opened(ongoing, name, total):
            requests(ongoing, name, total)
            self._look([ongoing, total])

        monkeypatch.setattr(Client, "read_total", reading)
        monkeypatch.setattr(ServerRound, "answer", answering)
        monkeypatch.setattr(ServerRound, "opened", opened)

    def _look(self, root):
        self.looked_at += 1
        things = reachable(root)
        assert not any(isinstance(thing, (Authority, Client, Sender)) for thing in things)
        self.found.append(b"\0".join(filter(None, map(content_of, things))))

    def shown(self):
        """Totals of which the server's side holds a value of two or more, as floats or doubles."""
        data, shown = b"\0".join(self.found), 0
        for total in self.totals:
            doubles, singles = total.astype("<f8"), total.astype("<f4")
            shown += any(
                values[i : i + 2].tobytes() in data
                for values in (doubles, singles)
                for i in range(len(values) - 1)
            )
        return shown


def content_of(thing):
    if isinstance(thing, (bytes, bytearray)):
        return bytes(thing)
    if isinstance(thing, np.ndarray) and thing.dtype != object:
        return thing.tobytes()
    if isinstance(thing, torch.Tensor):
        return thing.detach().cpu().contiguous().view(-1).numpy().tobytes()
    return None


@pytest.mark.parametrize("blind", [False, True])
def test_the_server_holds_no_total_that_is_for_clients(tiny_config, tiny_task, monkeypatch, blind):
    """In no object at any time of a round; without exchange.blind the search finds all."""
    held = Held(monkeypatch)
    config = tiny_config(exchange={"blind": blind, "encrypt": "model"})
    run(config, tiny_task(dtype=torch.float64))
    assert held.looked_at >= 2 * 3 * 3
    assert len(held.totals) == 2 * 3 * 5
    assert held.shown() == (0 if blind else 2 * 3 * 5)


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("consortium") / "site")


def job_of(consortium, folder, *, blind=True):
    settings = ["algorithm.name=fedtan", f"exchange.blind={str(blind).lower()}"]
    return Job(consortium, folder, [*settings, "exchange.encrypt=statistics"])


@pytest.mark.parametrize("blind", [False, True])
def test_the_servers_process_is_sent_no_total_that_is_for_clients(
    consortium, tmp_path, monkeypatch, blind
):
    """Its objects, and the authority's answers as they came."""
    held, answer = Held(monkeypatch), authority_line._answer

    async def answered(authority, frame, size):
        body = await answer(authority, frame, size)
        held.found.append(body)
        return body

    monkeypatch.setattr(authority_line, "_answer", answered)
    job_of(consortium, tmp_path / "job", blind=blind).over_loopback()
    assert len(held.totals) == 2 * 6 * 5
    assert (held.shown() == 0) is blind


def test_a_client_process_that_is_attacked_says_so_and_joins_the_next_round(
    consortium, tmp_path, monkeypatch
):
    """By a server that gives carol bob's key in round 1: the incident is carol's, with the reason.

    The round passes, since the difference of its totals would show what carol has sent.
    """
    answer = ServerRound.answer

    def changed(self):
        (spec,) = self._now.specs
        honest = answer(self)
        if (self.context.number, spec.name) == (1, "4/mean"):
            wraps = {**honest.opened.wraps, "carol": honest.opened.wraps["bob"]}
            return replace(honest, opened=replace(honest.opened, wraps=wraps))
        return honest

    monkeypatch.setattr(ServerRound, "answer", changed)
    job = job_of(consortium, tmp_path / "job")
    job.settings = [*job.settings, "run.reproducible=false", "sites.wait_s=10"]
    loop = OnTask(job)
    loop.run()
    assert loop.ended == dict.fromkeys(loop.site.names), loop.said
    folder = tmp_path / "job" / "run"
    said = {one.client: one.reason for one in read_rows(folder / INCIDENTS, Incident)}
    assert "carol: the total of '4/mean' does not open" in said.pop("carol")
    assert said.keys() == {name for name in loop.site.names if name != "carol"}
    assert all("the round passes: carol: not in each total" in why for why in said.values())
    assert loop.has_said("^carol: the total of '4/mean' does not open")
    openings = read_rows(job.openings, Opening)
    counted = {(o.round, o.name): set(o.signers) for o in openings}
    everyone = set(loop.site.names)
    in_1 = {name for number, name in counted if number == 1}
    assert in_1 == {"1/mean", "1/variance", "4/mean"}
    assert counted[1, "4/mean"] == counted[2, "update/statistics"] == everyone


def test_a_server_process_that_asks_to_read_totals_is_refused(consortium, tmp_path, monkeypatch):
    """Its own code asks otherwise than its settings say; the authority's process has its own."""
    taken = RemoteRound._taken

    def curious(self, requests):
        self.ongoing.server.blind = False
        return taken(self, requests)

    monkeypatch.setattr(RemoteRound, "_taken", curious)
    loop = OnTask(job_of(consortium, tmp_path / "job"))
    with pytest.raises(OpeningRefused, match=r"asked for in the clear, and exchange\.blind"):
        loop.run()


def test_after_one_local_step_the_update_tells_the_pooled_mean(tiny_config, tiny_task, monkeypatch):
    """Another attack that succeeds, and the page says so: running statistics are the server's."""
    held = Held(monkeypatch)
    algorithm = {"name": "fedtan", "local_steps": 1}
    config = tiny_config(run={"rounds": 1}, algorithm=algorithm, exchange={"blind": True})
    result = run(config, tiny_task(dtype=torch.float64))
    mean, running = held.totals[0], result.model.state_dict()["1.running_mean"]
    np.testing.assert_allclose(running / 0.1, mean, rtol=0, atol=1e-6)
    assert held.shown() == 0


def test_a_client_on_the_list_can_tell_the_server(cohort):
    """The attack that succeeds: what all clients read is no secret from who is one of them."""
    total = cohort.sealed()
    told = cohort.keys.public.secrets(cohort.sender("dave"))[0]
    text = BlindText(ABOUT.digest(), listed(NAMES), total.sealed[:16], total.sealed[-72:])
    assert ContentKey.unwrapped(total.wraps["dave"], told, text).content() == CONTENT
    with pytest.raises(MessageRefused):
        ContentKey.unwrapped(total.wraps["alice"], told, text)
