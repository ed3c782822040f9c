"""Totals of other clients at one model, over rounds that pass and sessions that resume.

Each of these read a client before lists at one model were held against each other.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from over_loopback import NAMES, Consortium, Job, OnTask
from torch import nn

import securefl
from securefl import Task
from securefl.errors import OpeningRefused, RunFolderError, TooFewContributions, TotalRefused
from securefl.exchange.layout import gains_of
from securefl.federation.client import Client
from securefl.federation.incidents import SITS_OUT, Incident
from securefl.federation.left_out import ListsOfModel
from securefl.federation.opening_history import fewest
from securefl.federation.round import ServerRound
from securefl.network.sites import NetworkSites
from securefl.runs.folder_files import INCIDENTS
from securefl.runs.folder_reader import read_rows
from securefl.runs.folder_writer import RunFolder
from securefl.runs.session import InFlight
from securefl.simulation.in_memory import InMemory

pytestmark = pytest.mark.usefixtures("no_hang", "quick")


# A client that spoils the last message of a round, after others were opened.


def batch_of_all(n_clients, seed=1):
    """A task whose clients draw nothing: each has one batch, and another mean than the others."""
    rng = torch.Generator().manual_seed(seed)
    own = torch.randn(n_clients, 3, generator=rng).mul(3).repeat_interleave(12, 0)
    x = torch.randn(12 * n_clients, 3, generator=rng) + own
    y = (x[:, 0] > 0).long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.BatchNorm1d(3, affine=False), nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU()),
            nn.Linear(6, 2),
        )
    clients = [(x[i : i + 12], y[i : i + 12]) for i in range(0, len(x), 12)]
    return Task(model, clients, test=(x, y))


def mean_of(task, client):
    """A client's own mean, which the first layer sends."""
    return task.clients[int(client.split("-")[1]) - 1][0].double().mean(0).numpy()


class Spoiler:
    """A client whose update weighs too much, and which records the means that it is sent."""

    def __init__(self, patch, name):
        self.name, self.seen, self.lists = name, [], []
        weight_in, read_total, answer = Client.weight_in, Client.read_total, ServerRound.answer

        def heavy(client, spec, times=1):
            own = weight_in(client, spec, times)
            return min(1.0, 3 * own) if client.name == name and "update/" in spec.name else own

        def noting(client, run, number, spec, opened):
            found = read_total(client, run, number, spec, opened)
            if client.name == name and spec.name == "0/mean":
                self.seen.append((found.values * found.n_clients, *self.lists[-1]))
            return found

        def listing(ongoing):
            self.lists.append((frozenset(ongoing.counted), ongoing.context.model))
            return answer(ongoing)

        patch.setattr(Client, "weight_in", heavy)
        patch.setattr(Client, "read_total", noting)
        patch.setattr(ServerRound, "answer", listing)

    def reads(self, task):
        """Clients whose means follow from the totals that it was sent at one model, and its own."""
        found = []
        for model in {model for _, _, model in self.seen}:
            at_it = [(total, of) for total, of, other in self.seen if other == model]
            found += self._reads(task, at_it)
        return found

    def _reads(self, task, seen):
        names = [f"client-{i + 1}" for i in range(len(task.clients))]
        rows = [[name in of for name in names] for _, of in seen]
        known = np.array([*rows, [name == self.name for name in names]], dtype=float)
        sums = np.array([*(total for total, _ in seen), mean_of(task, self.name)])
        found = []
        for i, name in enumerate(names):
            alone = np.eye(len(names))[i]
            how = np.linalg.lstsq(known.T, alone, rcond=None)[0]
            if name != self.name and np.abs(how @ known - alone).max() < 1e-9:
                np.testing.assert_allclose(how @ sums, mean_of(task, name), atol=1e-3)
                found.append(name)
        return found


def settings(*more, rounds=6):
    """Of one local step on all data."""
    about = ["algorithm.name=fedtan", "algorithm.local_steps=1", "train.batch_size=12"]
    return securefl.load_config(settings=[*about, f"run.rounds={rounds}", *more])


SENT = [
    pytest.param(("exchange.blind=true",), id="blind"),
    pytest.param((), id="read by the server"),
    pytest.param(("exchange.officers=3", "exchange.threshold=2"), id="2 of 3 officers"),
    pytest.param(("exchange.officers=3", "exchange.threshold=3"), id="3 of 3 officers"),
]


@pytest.mark.parametrize("sent", SENT)
def test_a_client_steers_the_search_for_it_to_nobodys_values(monkeypatch, sent):
    """Of four no three can be left out: the run ends, and names the group."""
    task, spoiler = batch_of_all(4), Spoiler(monkeypatch, "client-4")
    match = "one of client-1, client-2, client-3, client-4 has spoiled it, .* Begin anew"
    with pytest.raises(TotalRefused, match=match):
        securefl.run(settings(*sent), task)
    assert {of for of, _ in spoiler.lists} == {frozenset(f"client-{i}" for i in range(1, 5))}
    assert spoiler.seen
    assert spoiler.reads(task) == []


@pytest.mark.parametrize("sent", SENT)
def test_without_the_rule_of_the_run_whoever_opens_refuses(monkeypatch, sent):
    """The second list is refused, whatever the server says of the rounds."""
    monkeypatch.setattr(ListsOfModel, "note", lambda _self, _signers: False)
    task, spoiler = batch_of_all(4), Spoiler(monkeypatch, "client-4")
    with pytest.raises(OpeningRefused, match="or at this model, and ") as caught:
        securefl.run(settings(*sent), task)
    assert not isinstance(caught.value, TotalRefused)
    assert spoiler.reads(task) == []


def test_with_neither_rule_the_client_reads_three_others(monkeypatch):
    """So that what is read above is nothing by the rule, and not by a fault of this test."""
    monkeypatch.setattr(ListsOfModel, "note", lambda _self, _signers: False)
    monkeypatch.setattr(
        "securefl.federation.checks.OpeningHistory.require_alike", lambda *_a, **_k: None
    )
    task, spoiler = batch_of_all(4), Spoiler(monkeypatch, "client-4")
    securefl.run(settings("exchange.blind=true"), task)
    assert spoiler.reads(task) == ["client-1", "client-2", "client-3"]


@pytest.mark.parametrize("number", [1, 4, 8])
def test_of_eight_the_client_is_found_and_has_read_nobody(monkeypatch, number):
    """The lists at each model leave out three, or more; the model moves in between."""
    task, name = batch_of_all(8), f"client-{number}"
    spoiler = Spoiler(monkeypatch, name)
    result = securefl.run(settings("exchange.blind=true", rounds=14), task)
    named = {i.client for i in result.incidents if "left out from now on" in i.reason}
    assert named == {name}
    assert result.metrics[-1].loss < result.metrics[0].loss
    opened = {model: {of for of, at in spoiler.lists if at == model} for _, model in spoiler.lists}
    assert all(len(fewest(lists)) >= 3 for lists in opened.values())
    assert max(map(len, opened.values())) > 1
    assert spoiler.reads(task) == []


# A client that is lost twice between two totals, and sits out the next round.

VICTIM = "client-2"


def losing(patch, rounds, name=VICTIM, at="2/mean"):
    """In these rounds this client is lost before this sum."""
    take = ServerRound.take

    def late(self, client, sent):
        if client == name and self.context.number in rounds and self._now.specs[0].name == at:
            self.lose(client, at, f"{client}: late")
            return False
        return take(self, client, sent)

    patch.setattr(ServerRound, "take", late)


def of_first_sums(result):
    """The clients of each round's first opened total."""
    return {o.round: frozenset(o.signers) for o in result.openings if o.name == "0/mean"}


@pytest.mark.parametrize("sent", SENT)
def test_whoever_sits_out_is_not_the_difference_to_the_round_before(monkeypatch, sent):
    """Of five nobody can sit out at the same model: the run ends."""
    losing(monkeypatch, {1, 2})
    with pytest.raises(
        TooFewContributions, match=f"round 3: {VICTIM}: lost time and again .* at t"
    ):
        securefl.run(settings(*sent, rounds=4), batch_of_all(5))


@pytest.mark.parametrize("late", ["pass", "wait"])
def test_of_five_it_takes_part_again_where_rounds_may_pass(monkeypatch, late):
    losing(monkeypatch, {1, 2})
    result = securefl.run(settings(f"sites.late={late}", rounds=4), batch_of_all(5))
    everybody = frozenset(f"client-{i}" for i in range(1, 6))
    assert of_first_sums(result) == dict.fromkeys((1, 2, 3, 4), everybody)
    assert result.metrics[3].loss < result.metrics[2].loss < result.metrics[1].loss
    assert result.metrics[1].loss == result.metrics[0].loss


@pytest.mark.parametrize("sent", [*SENT[:2], SENT[3]])
def test_of_eight_two_others_sit_out_with_it_and_the_model_moves(monkeypatch, sent):
    """In the next round both are back, and it sits out alone where it is due."""
    losing(monkeypatch, {1, 2, 4})
    result = securefl.run(settings(*sent, rounds=8), batch_of_all(8))
    everybody = frozenset(f"client-{i}" for i in range(1, 9))
    found = of_first_sums(result)
    assert found[1] == found[2] == found[4] == found[7] == found[8] == everybody
    assert found[6] == everybody - {VICTIM}
    for number in (3, 5):
        assert VICTIM not in found[number]
        assert len(found[number]) == 5
    reasons = [i.reason for i in result.incidents if i.round == 3 and i.name == SITS_OUT]
    assert sum("sits out this round: totals at this model" in reason for reason in reasons) == 2
    losses = [metrics.loss for metrics in result.metrics]
    assert losses[0] == losses[1] > losses[2] == losses[3] > losses[4] > losses[5] > losses[6]


def test_where_officers_may_be_away_the_list_is_the_same_or_none(monkeypatch):
    losing(monkeypatch, {1, 2})
    about = "exchange.officers=3", "exchange.threshold=2"
    with pytest.raises(TooFewContributions, match="round 3: client-2: lost time and again"):
        securefl.run(settings(*about, rounds=4), batch_of_all(8))
    result = securefl.run(settings(*about, "sites.late=pass", rounds=4), batch_of_all(8))
    assert len(set(of_first_sums(result).values())) == 1


def test_a_client_that_is_lost_before_the_first_total_of_the_next_round_costs_it(monkeypatch):
    """Nothing was opened in that round, and the difference to the one before would show it."""
    losing(monkeypatch, {1})
    losing(monkeypatch, {2}, "client-4", "0/mean")
    result = securefl.run(settings(rounds=3), batch_of_all(5))
    assert set(of_first_sums(result)) == {1, 3}
    (why,) = {i.reason for i in result.incidents if i.round == 2 and i.client == "client-1"}
    assert "the round passes: client-4: lost before '0/mean', and totals at this model" in why
    assert result.metrics[2].loss < result.metrics[1].loss == result.metrics[0].loss


@pytest.mark.parametrize("replacement", ["without"])
def test_a_selection_draws_nobody_else_at_the_same_model(monkeypatch, replacement):
    """The same clients, each as often; at the next model others."""
    taken = {}
    begin = ServerRound.__init__

    def noting(self, server, context, lists=None):
        taken[context.number] = dict(context.times)
        begin(self, server, context, lists)

    monkeypatch.setattr(ServerRound, "__init__", noting)
    take = ServerRound.take

    def late(self, client, sent):
        last = list(self.context.times)[-1]
        if client == last and self.context.number in {1, 2} and self._now.specs[0].name == "2/mean":
            self.lose(client, "2/mean", f"{client}: late")
            return False
        return take(self, client, sent)

    monkeypatch.setattr(ServerRound, "take", late)
    drawn = "selection.name=random", "selection.fraction=0.5"
    about = *drawn, f"selection.replacement={replacement}", "sites.late=pass"
    securefl.run(settings(*about, rounds=5), batch_of_all(12))
    assert taken[1] == taken[2]
    assert len({frozenset(of.items()) for of in taken.values()}) > 2


# A server that stops after a total was opened, and before its checkpoint.


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("consortium"))


RESUMED = (
    *("run.reproducible=false", "run.rounds=3", "sites.scores=mean", "exchange.encrypt=model"),
    *("train.batch_size=12", "algorithm.local_steps=1"),
)


def resumed_without(job, patch, *away, joining_s=5.0):
    """Stop the server once round 1 has counted, and go on without these clients."""

    def full(_self, *_about):
        raise RunFolderError("no space left")

    with patch.context() as of_disk:
        of_disk.setattr(RunFolder, "note_round", full)
        with pytest.raises(RunFolderError, match="no space left"):
            OnTask(job).run()
    second = OnTask(job, 5.0, joining_s)
    for name in away:
        del second.clients[name]
    return second


def read_by_difference(opened, truth):
    """The clients that are the difference of two totals, by what their difference is."""
    found = set()
    for one, other in combinations(opened, 2):
        (names, values, weight, base), (others, *of_others, their_base) = one, other
        if len(set(names) ^ set(others)) != 1 or (base != their_base).any():
            continue
        (victim,) = set(names) ^ set(others)
        update = (values * weight - of_others[0] * of_others[1]) / (weight - of_others[1])
        if np.abs(update - truth[victim]).max() < 1e-4:
            found.add(victim)
    return found


@pytest.fixture
def seen_by_the_server(monkeypatch):
    """Totals of parameters that the server reads, and what each client has sent."""
    opened, truth = [], {}
    take, contribute = ServerRound.opened, Client.contribute

    def noting(self, name, total):
        take(self, name, total)
        if name == "update/parameters":
            spec = next(s for s in self._now.specs if s.name == name)
            base = torch.cat(
                [v.double().reshape(-1) for v in self.context.state.tensors[spec.kind].values()]
            ).numpy()
            values = total.values / gains_of(spec)
            opened.append((tuple(self._now.counted), values, total.weight, base))

    def sent(self, run, number, spec, tensors, times=1, state="", *, model=""):
        if spec.name == "update/parameters":
            flat = torch.cat([v.double().reshape(-1) for v in tensors.values()]).numpy()
            truth.setdefault(self.name, flat)
        return contribute(self, run, number, spec, tensors, times, state, model=model)

    monkeypatch.setattr(ServerRound, "opened", noting)
    monkeypatch.setattr(Client, "contribute", sent)
    return opened, truth


def job_of(consortium, folder, *more):
    """Twelve samples each, all in one batch: nothing is drawn."""
    task = batch_of_all(len(NAMES))
    return Job(consortium, folder, (*RESUMED, *more), task)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedtan"])
def test_a_resumed_run_opens_nothing_without_a_client_of_the_model(
    consortium, tmp_path, monkeypatch, seen_by_the_server, algorithm
):
    """The first round would pass, and the next one show the client that is away."""
    job = job_of(consortium, tmp_path / "job", f"algorithm.name={algorithm}")
    second = resumed_without(job, monkeypatch, "eve", joining_s=2.0)
    with pytest.raises(
        TooFewContributions, match=r"totals at this model .* it takes eve; start th"
    ):
        second.run()
    opened, truth = seen_by_the_server
    assert {names for names, *_ in opened} == {NAMES}
    assert read_by_difference(opened, truth) == set()


def test_without_the_runs_rule_the_authority_refuses_it(
    consortium, tmp_path, monkeypatch, seen_by_the_server
):
    job = job_of(consortium, tmp_path / "job", "algorithm.name=fedavg")
    second = resumed_without(job, monkeypatch, "eve", joining_s=2.0)
    monkeypatch.setattr(InFlight, "lists_at", lambda *_about: ())
    with pytest.raises(OpeningRefused, match=r"at this model, and .* show the values of eve"):
        second.run()
    opened, truth = seen_by_the_server
    assert read_by_difference(opened, truth) == set()


def test_with_neither_rule_the_server_reads_the_client(
    consortium, tmp_path, monkeypatch, seen_by_the_server
):
    """So that the two above are refused for what they would show."""
    job = job_of(consortium, tmp_path / "job", "algorithm.name=fedavg")
    second = resumed_without(job, monkeypatch, "eve", joining_s=2.0)
    monkeypatch.setattr(InFlight, "lists_at", lambda *_about: ())
    monkeypatch.setattr(
        "securefl.federation.checks.OpeningHistory.require_alike", lambda *_a, **_k: None
    )
    second.run()
    opened, truth = seen_by_the_server
    assert read_by_difference(opened, truth) == {"eve"}


def test_a_list_that_was_refused_is_none_of_the_next_session(consortium, tmp_path, monkeypatch):
    """Nothing was opened of it: who was on it may stay away."""
    job = job_of(consortium, tmp_path / "job", "algorithm.name=fedavg")

    def refusing(*_about, **_more):
        raise OpeningRefused("not today")

    with monkeypatch.context() as patch:
        patch.setattr("securefl.federation.checks.OpeningHistory.require_alike", refusing)
        with pytest.raises(OpeningRefused, match="not today"):
            OnTask(job).run()
    assert RunFolder(job.folder / "run").in_flight().lists == ()
    second = OnTask(job, 5.0, 1.0)
    del second.clients["eve"]
    second.run()
    assert len(job.record.metrics) == 3


@pytest.mark.parametrize("late", ["pass", "wait"])
def test_the_run_goes_on_once_the_client_is_back(
    consortium, tmp_path, monkeypatch, seen_by_the_server, late
):
    """With "pass" the rounds without it pass, with "wait" the first one waits."""
    more = "algorithm.name=fedavg", f"sites.late={late}", "sites.wait_s=0.2", "run.rounds=4"
    job = job_of(consortium, tmp_path / "job", *more)
    second = resumed_without(job, monkeypatch, joining_s=0.5)
    here = NetworkSites._present

    async def late_by_a_round(self, number, names):
        back = number > 1 or late == "wait"
        members = self.members
        if not back and (link := members.links.get("eve")):
            members.drop("eve", link)
        found = await here(self, number, names)
        return found if back else [name for name in found if name != "eve"]

    monkeypatch.setattr(NetworkSites, "_present", late_by_a_round)
    second.run()
    opened, truth = seen_by_the_server
    assert {names for names, *_ in opened} == {NAMES}
    assert read_by_difference(opened, truth) == set()
    losses = [metrics.loss for metrics in job.record.metrics]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    incidents = read_rows(job.folder / "run" / INCIDENTS, Incident)
    missing = {i.client for i in incidents if "missing, and the round passes" in i.reason}
    assert missing == ({"eve"} if late == "pass" else set())


# A client that is gone between two totals, for some rounds or for good.


def gone(patch, rounds, name=VICTIM):
    """It is lost in the middle of the first of these rounds, and away in the others."""
    losing(patch, rounds[:1], name)
    present = InMemory.present

    def without(self, number, names):
        here = present(self, number, names)
        return [each for each in here if each != name or number not in rounds[1:]]

    patch.setattr(InMemory, "present", without)


@pytest.mark.parametrize("n_clients", [6, 8])
def test_with_six_clients_or_more_a_run_goes_on_without_one_that_is_gone_for_good(
    monkeypatch, n_clients
):
    """Two others sit out one round with it."""
    gone(monkeypatch, range(2, 20))
    result = securefl.run(settings(rounds=6), batch_of_all(n_clients))
    found = of_first_sums(result)
    assert [len(found[number]) for number in range(1, 7)] == [
        *(n_clients, n_clients, n_clients - 3),
        *(n_clients - 1,) * 3,
    ]
    losses = [metrics.loss for metrics in result.metrics]
    assert losses[0] == losses[1] > losses[2] > losses[3] > losses[4] > losses[5]


@pytest.mark.parametrize("late", ["go-on", "pass", "wait"])
def test_with_four_clients_it_takes_the_one_that_is_gone(monkeypatch, late):
    """The run ends, or its rounds pass until the client is back."""
    gone(monkeypatch, range(2, 5))
    config, task = settings(f"sites.late={late}", rounds=6), batch_of_all(4)
    if late == "go-on":
        with pytest.raises(TooFewContributions, match=f"round 3: .* it takes {VICTIM}; start them"):
            securefl.run(config, task)
        return
    result = securefl.run(config, task)
    everybody = frozenset(f"client-{i}" for i in range(1, 5))
    assert of_first_sums(result) == dict.fromkeys((1, 2, 5, 6), everybody)
    losses = [metrics.loss for metrics in result.metrics]
    assert losses[0] == losses[1] == losses[2] == losses[3] > losses[4] > losses[5]
    passed = {i.round for i in result.incidents if "missing, and the round passes" in i.reason}
    assert passed == {3, 4}


def test_in_the_clear_nothing_of_this_holds(monkeypatch):
    """The server reads each client anyway."""
    gone(monkeypatch, range(2, 20))
    result = securefl.run(settings("exchange.encrypt=none", rounds=3), batch_of_all(4))
    losses = [metrics.loss for metrics in result.metrics]
    assert losses[0] > losses[1] > losses[2]
    assert not any(i.name == SITS_OUT for i in result.incidents)


def test_a_round_that_moves_no_bit_counts_for_nobody_and_ends_no_run():
    """The next one is at the same model, of clients on the same terms."""

    def samples(seed):
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
        x[:, 0] = x[:, 0].sign() * (1 + x[:, 0].abs())
        return x, (x[:, 0] > 0).long()

    settings = ["run.rounds=4", "train.lr=1e-12", "train.batch_size=16", "data.clients=5"]
    settings += ["algorithm.name=fedavg", "exchange.encrypt=model"]
    task = securefl.Task(
        nn.Linear(4, 2), {c: samples(i) for i, c in enumerate("abcde")}, samples(9)
    )
    result = securefl.run(securefl.load_config(None, settings), task)
    assert len(result.metrics) == 4
    assert {incident.round for incident in result.incidents} == {1, 2, 3, 4}
    assert all("left the model as it was" in incident.reason for incident in result.incidents)
