"""A server that has totals opened of lists of its choice, whose sums and differences show a client.

Each of these read a client's update before it was refused.
"""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from over_loopback import Consortium, Job
from torch import nn

import securefl
from securefl.errors import DataError, OpeningRefused
from securefl.exchange.card_keys import Quorum
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time import OneTimeAdder, OneTimeSealer
from securefl.exchange.policy import Policy
from securefl.federation.authority import Authority, CheckingOfficer
from securefl.federation.client import Client
from securefl.federation.message import Roster
from securefl.federation.opening_history import OpeningHistory
from securefl.federation.round import ServerRound
from securefl.federation.server import Server, ServerSum
from securefl.federation.site import Begin
from securefl.federation.total import Terms
from securefl.types import Kind, MessageSpec, State

VICTIM = "client-5"


def asking_for_less(patch, less):
    """A server that has one total of a round's end opened without the victim."""
    messages, admit, requests = {}, ServerSum.admit, ServerRound.requests

    def noting(self, message, client=None):
        messages[self._expected.name, client] = bytes(message)
        return admit(self, message, client)

    def changed(self):
        for request in requests(self):
            name = request.expected.name
            if name != less:
                yield request
                continue
            spec = next(s for s in self.context.plan.update if s.name == name)
            terms = {client: self.context.terms(client) for client in self._present}
            about = self.context.number, spec, request.expected.state, terms
            again = self.server.start(*about, self.context.model)
            for client in request.signers:
                if client != VICTIM:
                    admit(again, messages[name, client], client)()
            self._now.signed[name] = again  # what else it checks is of those clients
            yield again.request()

    patch.setattr(ServerSum, "admit", noting)
    patch.setattr(ServerRound, "requests", changed)


@pytest.mark.parametrize("officers", [1, 3])
@pytest.mark.parametrize("less", ["update/parameters", "update/control"])
def test_totals_of_a_rounds_end_are_of_the_same_clients(monkeypatch, less, officers):
    """SCAFFOLD's control variate follows from the parameters, so two lists would show the victim's.

    Whichever total is opened second is refused, and the round counts for nothing.
    """
    asking_for_less(monkeypatch, less)
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(120, 4, generator=rng)
    y = (x[:, 0] > 0).long()
    clients = [(x[i : i + 20], y[i : i + 20]) for i in range(0, 100, 20)]
    task = securefl.Task(nn.Linear(4, 2), clients, test=(x[100:], y[100:]))
    settings = [
        "algorithm.name=fedavg",
        "solver.name=scaffold",
        "exchange.encrypt=model",
        "run.rounds=1",
    ]
    settings += [f"exchange.officers={officers}", f"exchange.threshold={officers // 2 + 1}"]
    with pytest.raises(OpeningRefused, match="another total of this round was of other clients"):
        securefl.run(securefl.load_config(settings=settings), task)


def losing_the_victim(patch):
    """In round 1 the victim is lost between FedTAN's sums and the update."""
    take = ServerRound.take

    def late(self, client, sent):
        specs = self._now.specs
        if client == VICTIM and self.context.number == 1 and specs[0].name.startswith("update/"):
            self.lose(client, specs[0].name, f"{client}: late")
            return False
        return take(self, client, sent)

    patch.setattr(ServerRound, "take", late)


def fedtan(officers, rounds=2):
    """One local step: gradients of statistics follow from the update, and so do means of both."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(120, 4, generator=rng)
    y = (x[:, 0] > 0).long()
    clients = [(x[i : i + 20], y[i : i + 20]) for i in range(0, 100, 20)]
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    task = securefl.Task(model, clients, test=(x[100:], y[100:]))
    settings = ["algorithm.name=fedtan", "algorithm.local_steps=1", f"run.rounds={rounds}"]
    settings += [f"exchange.officers={officers}", f"exchange.threshold={officers // 2 + 1}"]
    return securefl.run(securefl.load_config(settings=settings), task)


@pytest.mark.parametrize("officers", [1, 3])
def test_a_round_that_loses_a_client_between_two_totals_counts_for_nothing(monkeypatch, officers):
    """Its update is not opened; the next round is of everyone again."""
    losing_the_victim(monkeypatch)
    result = fedtan(officers)
    opened = [(line.round, line.name, VICTIM in line.signers) for line in result.openings]
    assert (1, "1/mean", True) in opened
    assert not any(number == 1 and name.startswith("update/") for number, name, _ in opened)
    assert {there for number, _, there in opened if number == 2} == {True}
    reasons = {incident.client: incident.reason for incident in result.incidents}
    assert reasons[VICTIM] == f"{VICTIM}: late"
    assert f"the round passes: {VICTIM}: not in each total of this" in reasons["client-1"]


@pytest.mark.parametrize("officers", [1, 3])
def test_a_server_that_asks_for_such_an_update_is_refused(monkeypatch, officers):
    """By the authority, or by each officer."""
    losing_the_victim(monkeypatch)
    monkeypatch.setattr(ServerRound, "_require_alike", lambda _self, _name: None)
    with pytest.raises(OpeningRefused, match="another total of this round was of other clients"):
        fedtan(officers)


@pytest.mark.parametrize("layer", ["score", "update"])
def test_a_layer_whose_sums_would_be_in_no_group_with_the_rounds_is_refused(layer):
    """Named as sums of scores or of a round's end, one could be opened of other clients."""
    layers = {"a": nn.Linear(4, 6), layer: nn.BatchNorm1d(6), "b": nn.Linear(6, 2)}
    clients = [(torch.randn(20, 4), torch.zeros(20, dtype=torch.long)) for _ in range(5)]
    task = securefl.Task(nn.Sequential(OrderedDict(layers)), clients, test=clients[0])
    with pytest.raises(DataError, match=f"'{layer}/mean'.* give that layer .* another name"):
        securefl.run(securefl.load_config(settings=["algorithm.name=fedtan"]), task)


NAMES = tuple(f"client-{i}" for i in range(1, 8))
LISTS = NAMES[:3], NAMES[3:6], NAMES
"""Each pair of them differs by three clients or more; the third less the others is one."""
SPEC = MessageSpec("layer/mean", Kind.STATISTICS, 8)


class Sessions:
    """Sessions of the same settings whose clients send the same values in each."""

    def __init__(self, needed, n_officers, policy=None):
        self.keys = KeySet.ephemeral(Quorum(needed, n_officers))
        public = self.keys.public
        sealers = {Kind.STATISTICS: OneTimeSealer(public)}
        self.clients = {c: Client(c, 1 / 8, sealers, card_keys=public) for c in NAMES}
        self.roster = Roster({c: client.identity for c, client in self.clients.items()})
        about = self.roster, policy or Policy(), lambda _opening: None
        if n_officers == 1:
            self.roles = [Authority(self.keys.opener(), *about, OpeningHistory("settings"))]
        else:
            officers = self.keys.officers()
            self.roles = [CheckingOfficer(o, *about, OpeningHistory("settings")) for o in officers]

    def ask(self, session, names, officers):
        """Ask these officers for a total of these clients, in a session of its own."""
        run = f"{session:064x}"
        server = Server(run, self.roster, {Kind.STATISTICS: OneTimeAdder(self.keys.public)})
        collected, state = server.start(1, SPEC, state="5" * 64), Terms().bind("5" * 64)
        for name in names:
            mean = {"mean": torch.zeros(8, dtype=torch.float64)}
            collected.receive(self.clients[name].contribute(run, 1, SPEC, mean, state=state))
        cards = {name: client.send_cards(run) for name, client in self.clients.items()}
        for number in officers:
            role = self.roles[number]
            assert role.take_cards(run, cards) == {}
            answer = role.open if isinstance(role, Authority) else role.key_sums
            answer(collected.request())


@pytest.mark.parametrize(
    ("needed", "n_officers", "refused"),
    [(1, 1, 3), (2, 3, 2), (3, 5, 2), (4, 5, 2), (3, 3, 3)],
)
def test_three_lists_that_no_officer_sees_together_are_not_opened(needed, n_officers, refused):
    """Three pairs of three officers have none in common: each would see two lists, which differ.

    Where all officers answer each total, as one authority does, the third list is refused.
    """
    sessions = Sessions(needed, n_officers)
    for session, names in enumerate(LISTS, 1):
        shift = needed * (session - 1)
        asked = [(shift + i) % n_officers for i in range(needed)]
        if session == refused:
            match = "list at most" if refused == 2 else "would show the values of client-7"
            with pytest.raises(OpeningRefused, match=match):
                sessions.ask(session, names, asked)
            return
        sessions.ask(session, names, asked)


@pytest.mark.parametrize(
    ("needed", "n_officers", "opened"), [(1, 1, 8), (3, 3, 8), (2, 3, 7), (3, 5, 6)]
)
def test_noise_that_hides_clients_is_not_averaged_away_over_sessions(needed, n_officers, opened):
    """A server that repeats a round had a thousand totals, each with other noise on it.

    By turns it has the officers open as many as each may answer for.
    """
    sessions = Sessions(needed, n_officers, Policy(noise_hides_clients=True))
    asked = [[(needed * turn + i) % n_officers for i in range(needed)] for turn in range(20)]
    for session, officers in enumerate(asked[:opened], 1):
        sessions.ask(session, NAMES, officers)
    with pytest.raises(
        OpeningRefused, match=r"opened in \d runs of the same settings, and the mean"
    ):
        sessions.ask(opened + 1, NAMES, asked[opened])
    ours = Sessions(needed, n_officers)
    for session, officers in enumerate(asked[:10], 1):
        ours.ask(session, NAMES, officers)


def updates(party, run, model):
    """What a site's update is in round 1 of a session, by name."""
    found, hand_over = {}, Client.hand_over

    def noting(self, spec, tensors, times=1):
        found[spec.name] = torch.cat([t.detach().reshape(-1) for t in tensors.values()])
        return hand_over(self, spec, tensors, times)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "hand_over", noting)
        session = party.session(run, "1" * 64)
        session.store.claim("update", 1)
        session.site.handle(Begin(run, State(0, model.tensors), {party.name: 1}, {party.name: 0}))
        session.site.close()
    return found["update/parameters"]


def test_a_server_cannot_choose_a_session_whose_draws_it_knows(tmp_path, monkeypatch):
    """Draws of a site follow from its own key, and of the session in no other way.

    Where they followed from the session's id alone, 2^32 steps found two ids whose draws agree in
    two rounds, so that totals of two lists showed the difference.
    """
    consortium = Consortium(tmp_path / "consortium")
    settings = ["exchange.encrypt=model", "run.reproducible=false"]
    job = Job(consortium, tmp_path / "job", settings)
    alice, bob = (job.party(name) for name in job.names[:2])
    for party in (alice, bob):
        party.seal_with(consortium.bundle("client"))
    model = alice.job.algorithm.init(alice.job.task.model)
    one, other = "a" * 64, "b" * 64
    assert not torch.equal(updates(alice, one, model), updates(alice, other, model))
    drawn = {who.client.draws(run, 3) for who in (alice, bob) for run in (one, other)}
    assert len(drawn) == 4
    assert min(drawn) > 2**200
    monkeypatch.setattr(Client, "draws", lambda _self, _run, _seed: 7)
    assert torch.equal(updates(alice, "c" * 64, model), updates(alice, "d" * 64, model))
