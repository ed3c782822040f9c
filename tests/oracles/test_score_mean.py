"""Scores of clients' own models over processes: the server reads their mean, and no more."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from over_loopback import NAMES, Consortium, Job, OnTask, incidents_of, made_up_task, model_of

from securefl.errors import TooFewContributions
from securefl.federation.incidents import Incident
from securefl.federation.message import SCORE_MEAN, SCORES
from securefl.federation.opening import Opening
from securefl.network.sites import NetworkSites
from securefl.runs.folder_files import INCIDENTS
from securefl.runs.folder_reader import read_rows, read_run
from securefl.types import Kind

MEAN, OWN = "sites.scores=mean", "algorithm.name=silobn"
SEALED = ("exchange.encrypt=model", MEAN, OWN, "run.reproducible=false")


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture
def job(consortium, tmp_path):
    return lambda *settings: Job(
        consortium, tmp_path / "job", settings, made_up_task(own_tests=True)
    )


def own_scores(said):
    """Loss and accuracy of each client by its own log, in order."""
    lines = [line for line in said if line.endswith("on its own test samples")]
    found = {}
    for line in lines:
        name, told = line.split(": ", 1)
        found.setdefault(name, []).append(float(told.split("loss ")[1].split(",")[0]))
    return found


@pytest.mark.parametrize(
    "choice", ["algorithm.name=fedavg", "algorithm.name=fedbn", "solver.name=ditto"]
)
def test_the_mean_is_that_of_a_simulations_clients(job, choice):
    """And the model the same to the bit: the sum is after the round."""
    here = job(choice, MEAN)
    over, alone = here.over_loopback(), here.simulated()
    model, wanted = model_of(over), model_of(alone)
    assert all(torch.equal(model[name], wanted[name]) for name in wanted)
    there, simulated = read_run(over), read_run(alone)
    for mine, one in zip(there.metrics, simulated.metrics, strict=True):
        assert (mine.score, mine.loss) == pytest.approx((one.score, one.loss), rel=1e-6)
        assert mine.metric == one.metric
        assert mine.clients == {}
        assert one.clients.keys() == set(NAMES)
    scores = [entry for entry in there.ledger if entry.kind is Kind.SCORES]
    assert {entry.name for entry in scores} == {SCORE_MEAN}
    assert len(scores) == len(NAMES) * len(there.metrics)
    assert not [entry for entry in there.ledger if entry.name in SCORES]


def test_sealed_it_is_opened_once_a_round_and_each_client_knows_its_own(job):
    here = job(*SEALED)
    loop = OnTask(here)
    loop.run()
    assert loop.ended == dict.fromkeys(NAMES), loop.said
    record = here.record
    sent = [entry for entry in record.ledger if entry.name == SCORE_MEAN]
    assert {e.form for e in sent if e.sender in NAMES} == {"ciphertext"}
    openings = [json.loads(line) for line in here.openings.read_text().splitlines()]
    of_scores = [one for one in openings if one["name"] == SCORE_MEAN]
    assert [one["round"] for one in of_scores] == [1, 2]
    assert all(one["signers"] == list(NAMES) and not one["refused"] for one in of_scores)
    losses = own_scores(loop.said)
    assert losses.keys() == set(NAMES)
    for number, metrics in enumerate(record.metrics):
        own = [of[number] for of in losses.values()]
        assert len(set(own)) == len(NAMES)
        assert metrics.loss == pytest.approx(sum(own) / len(own), rel=1e-3)
        assert metrics.clients == {}
    assert incidents_of(here.folder / "run") == ""


@dataclass
class Heavy:
    """Seals under another weight than its own."""

    inner: object

    def seal(self, values, weight, *message):
        return self.inner.seal(values, 2 * weight, *message)

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_a_mean_that_one_has_spoilt_is_none_and_the_run_goes_on(job, monkeypatch):
    """The round has the score before, and all who may have spoilt it are named."""
    here = job(*SEALED)
    loop = OnTask(here)
    party = loop.clients["carol"].party

    async def in_the_second_round(loop):
        await loop.wait_for("Round 1/2")
        party.sealers[Kind.SCORES] = Heavy(party.sealers[Kind.SCORES])

    loop.run(in_the_second_round)
    one, two = here.record.metrics
    assert (one.score, one.loss) == (two.score, two.loss)
    assert two.dropped == ()  # their updates counted
    assert any("Round 2/2: " in line and f"{len(NAMES)} clients" in line for line in loop.said)
    assert any("Round 2 is scored without carol: no mean" in line for line in loop.said)
    assert incidents_of(here.folder / "run").count("which it may have spoilt") == len(NAMES)
    model = model_of(here.folder / "run")
    assert all(torch.isfinite(value.float()).all() for value in model.values())


class Spoiled(dict):
    """Sealers of which that of scores spoils, under newer keys, too."""

    def __ior__(self, newer):
        self.update(newer)
        self[Kind.SCORES] = Heavy(newer[Kind.SCORES])
        return self


def test_a_client_that_spoils_each_mean_is_found_and_ends_no_run(job):
    """From the first round on, which then has no score; later ones have one, and it is named."""
    here = job(*SEALED, "run.rounds=9")
    loop = OnTask(here)
    party = loop.clients["carol"].party
    party.sealers = party.client.sealers = Spoiled(party.sealers)
    party.sealers[Kind.SCORES] = Heavy(party.sealers[Kind.SCORES])
    loop.run()
    metrics = here.record.metrics
    assert len(metrics) == 9
    assert math.isnan(metrics[0].score)
    assert math.isnan(metrics[0].loss)
    assert {one.metric for one in metrics} == {"accuracy"}
    assert math.isfinite(metrics[-1].loss)
    assert metrics[-1].loss != metrics[-2].loss
    incidents = read_rows(here.folder / "run" / INCIDENTS, Incident)
    found = {(i.round, i.client) for i in incidents if "left out of means from now" in i.reason}
    assert {client for _, client in found} == {"carol"}
    last = [one for one in read_rows(here.openings, Opening) if one.name == SCORE_MEAN][-1]
    assert (last.round, set(last.signers)) == (9, set(NAMES) - {"carol"})


@dataclass
class Told:
    """Hands in another score than its own."""

    inner: object
    value: float
    loss: float

    def seal(self, values, weight, *message):
        return self.inner.seal(np.array([self.value, self.loss]), weight, *message)

    def __getattr__(self, name):
        return getattr(self.inner, name)


@pytest.mark.parametrize(("value", "loss"), [(1e4, 1.0), (0.5, 8e6)])
def test_a_mean_that_no_honest_clients_have_ends_no_run(job, value, loss):
    """Nobody knows whose it is: the score before stays, and all are named."""
    here = job(*SEALED)
    loop = OnTask(here)
    party = loop.clients["carol"].party

    async def in_the_second_round(loop):
        await loop.wait_for("Round 1/2")
        party.sealers[Kind.SCORES] = Told(party.sealers[Kind.SCORES], value, loss)

    loop.run(in_the_second_round)
    one, two = here.record.metrics
    assert (one.score, one.loss) == (two.score, two.loss)
    assert incidents_of(here.folder / "run").count("the score is ") == len(NAMES)
    assert loop.ended == dict.fromkeys(NAMES)


@pytest.mark.parametrize("late", ["go-on", "pass"])
def test_of_too_few_clients_nothing_is_opened(job, monkeypatch, late):
    """A mean of two is each one's to the other."""
    here = job(*SEALED, f"sites.late={late}")
    loop, connected = OnTask(here), NetworkSites.connected
    asked = []

    def few(self):
        asked.append(1)
        return connected(self)[: None if len(asked) == 1 else 2]

    monkeypatch.setattr(NetworkSites, "connected", few)
    if late == "pass":
        loop.run()
        one, two = here.record.metrics
        assert (one.score, one.loss) == (two.score, two.loss)
    else:
        with pytest.raises(TooFewContributions, match="at least 3"):
            loop.run()
    openings = [json.loads(line) for line in here.openings.read_text().splitlines()]
    opened = [one for one in openings if one["name"] == SCORE_MEAN and not one["refused"]]
    assert [one["round"] for one in opened] == [1]


def test_each_clients_is_read_where_all_agree_to_it_and_the_worst_is_named(job):
    here = job("algorithm.name=fedbn", "sites.scores=each")
    loop = OnTask(here)
    loop.run()
    clients = here.record.metrics[-1].clients
    assert clients.keys() == set(NAMES)
    worst = min(clients, key=lambda name: clients[name].score)
    assert loop.has_said(f"Round 2/2: .*, worst {worst} with [^,]*$")
