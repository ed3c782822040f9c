"""What lies read though nothing is refused: attacks that succeed, as SECURITY.md says.

All that clients send is sealed, every total is of all listed clients, and headers agree.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import securefl
from securefl.errors import SecureFLError
from securefl.exchange.layout import gains_of
from securefl.federation.client import Client
from securefl.federation.left_out import ListsOfModel
from securefl.federation.round import ServerRound
from securefl.runs.loop import Rounds
from securefl.selection.participation import Participation
from securefl.types import Kind

pytestmark = pytest.mark.usefixtures("no_hang", "quick")

VICTIM = "client-2"
N_CLIENTS, EACH = 5, 40


def cosine(one, other):
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def vector(tensors):
    return torch.cat([value.double().reshape(-1) for value in tensors.values()]).numpy()


def drawn_task(model, each=EACH):
    """Clients of different means; labels by the first column."""
    rng = torch.Generator().manual_seed(1)
    n = each * N_CLIENTS
    x = torch.randn(n, 6, generator=rng)
    x += torch.repeat_interleave(torch.randn(N_CLIENTS, 6, generator=rng), each, 0)
    y = (x[:, 0] + torch.randn(n, generator=rng) > 0).long()
    return securefl.Task(
        model, [(x[i : i + each], y[i : i + each]) for i in range(0, n, each)], (x, y)
    )


def read_update(patch, rounds, *settings):
    """How near a server is to one client's mean update, and one honest total.

    It sends the same model in every round, and leaves the client out of every second one.
    """
    totals, own, first = [], [], {}
    after, participants = Rounds.after, Participation.participants
    opened, contribute = ServerRound.opened, Client.contribute

    def with_the_same_model(self, ongoing):
        before = self._state
        return replace(before, round=after(self, ongoing).round)

    def chosen(self, state, plan, here=None, again=None):
        names = [n for n in here or self.clients if n != VICTIM or state.round % 2 == 0]
        return participants(self, state, plan, names, again)

    def noting(self, name, total):
        if name == "update/parameters":
            spec = next(spec for spec in self._now.specs if spec.name == name)
            first["model"] = vector(self.context.state.tensors[Kind.PARAMETERS])
            values = total.values / gains_of(spec) - first["model"]
            totals.append((VICTIM in self._now.counted, values, total.weight))
        return opened(self, name, total)

    def sending(self, run, number, spec, tensors, *terms, **model):
        if spec.name == "update/parameters" and self.name == VICTIM:
            own.append(vector(tensors))
        return contribute(self, run, number, spec, tensors, *terms, **model)

    with patch.context() as attack:
        attack.setattr(Rounds, "after", with_the_same_model)
        attack.setattr(Participation, "participants", chosen)
        attack.setattr(ServerRound, "opened", noting)
        attack.setattr(Client, "contribute", sending)
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
        chosen_settings = [
            f"run.rounds={rounds}",
            "algorithm.name=fedavg",
            "algorithm.local_steps=2",
            "train.batch_size=16",
            "train.lr=0.1",
            *settings,
        ]
        result = securefl.run(securefl.load_config(settings=chosen_settings), drawn_task(model))
    assert not result.incidents
    (with_it, less), weights = (
        [np.mean([v for there, v, _ in totals if there is way], 0) for way in (True, False)],
        [next(w for there, _, w in totals if there is way) for way in (True, False)],
    )
    read = with_it * weights[0] - less * weights[1]
    true = np.mean(own, 0) - first["model"]
    return cosine(read, true), cosine(totals[0][1], true)


def test_a_server_that_repeats_a_model_reads_no_clients_update(monkeypatch):
    """All totals at one model are held against each other."""
    with pytest.raises(SecureFLError, match="totals at this model were opened"):
        read_update(monkeypatch, 2)


def test_without_the_rule_of_one_model_it_reads_a_clients_update(monkeypatch):
    """Though clients draw other batches each time, and no two totals are of one round."""
    monkeypatch.setattr(ListsOfModel, "note", lambda _self, _signers: False)
    monkeypatch.setattr(
        "securefl.federation.checks.OpeningHistory.require_alike", lambda *_a, **_k: None
    )
    few, alone = read_update(monkeypatch, 2)
    many, _ = read_update(monkeypatch, 24)
    assert alone < 0.85
    assert many > few
    assert many > 0.95


def test_a_crafted_model_reads_records_in_a_total_of_all_clients(monkeypatch):
    """Units that open one after the other: neighbours' gradients differ by one record.

    Fowl et al., ICLR 2022, against a total of 5 clients.
    """
    width, each = 512, 8
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(each * N_CLIENTS, 16, generator=rng)
    y = torch.randint(10, (len(x),), generator=rng)
    public = torch.rand(2000, 16, generator=rng)
    first, last = nn.Linear(16, width), nn.Linear(width, 10)
    along = torch.randn(16, generator=rng)
    with torch.no_grad():
        first.weight.copy_(along.expand(width, 16))
        first.bias.copy_(-torch.quantile(public @ along, torch.linspace(0.0005, 0.9995, width)))
        last.weight.copy_(torch.randn(10, 1, generator=rng).expand(10, width) * 1e-3)
        last.bias.zero_()
    weight, bias = first.weight.detach().double().clone(), first.bias.detach().double().clone()
    seen, totals = {}, ServerRound.totals

    def noting(self):
        found = totals(self)
        seen.update(found)
        return found

    monkeypatch.setattr(ServerRound, "totals", noting)
    clients = [(x[i : i + each], y[i : i + each]) for i in range(0, len(x), each)]
    task = securefl.Task(nn.Sequential(first, nn.ReLU(), last), clients, (x, y))
    settings = ["algorithm.name=fedavg", "algorithm.local_steps=1", "run.rounds=1"]
    settings += [f"train.batch_size={each}", "train.lr=1.0"]
    assert not securefl.run(securefl.load_config(settings=settings), task).incidents
    total = seen[Kind.PARAMETERS]
    assert total.n_clients == N_CLIENTS
    moved = total.values["0.weight"].double() - weight, total.values["0.bias"].double() - bias
    by_unit, by_bias = (each[:-1] - each[1:] for each in moved)
    told = by_bias.abs() > 1e-6
    records = by_unit[told] / by_bias[told, None]
    error = torch.cdist(records, x.double()).min(0).values / 4
    assert int((error < 1e-2).sum()) > len(x) / 2


def test_one_clients_value_closes_a_relu_for_all_but_one(monkeypatch):
    """FedTAN: a false mean shifts what all normalise by, and the next total is the victim's."""
    torch.manual_seed(3)
    liar, each, out, seen = "client-5", 32, [], {}
    x = torch.randn(each * N_CLIENTS, 3)
    x[each : 2 * each] += 6.0  # the victim has other values
    y = (torch.rand(len(x)) > 0.5).long()
    clients = [(x[i : i + each], y[i : i + each]) for i in range(0, len(x), each)]
    blocks = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4), nn.BatchNorm1d(4)]
    model = nn.Sequential(*blocks, nn.ReLU(), nn.Linear(4, 2))
    w1, b1, w2, b2 = (
        part.detach().double().clone()
        for part in (model[0].weight, model[0].bias, model[3].weight, model[3].bias)
    )
    target = torch.where(w1.sum(1) > 0.3, w1.sum(1) * 4 + b1, torch.tensor(1e3).double())
    usual = (4 * b1 + w1.sum(1) * 6) / 4
    contribute, read_total = Client.contribute, Client.read_total

    def lying(self, run, number, spec, tensors, *terms, **model):
        if self.name == liar and spec.name == "1/mean":
            tensors = {"mean": 5 * target - 4 * usual}
        out.append(spec.name)
        return contribute(self, run, number, spec, tensors, *terms, **model)

    def reading(self, run, number, spec, opened):
        total = read_total(self, run, number, spec, opened)
        if self.name == liar:
            seen[spec.name] = torch.tensor(total.values)
        return total

    monkeypatch.setattr(Client, "contribute", lying)
    monkeypatch.setattr(Client, "read_total", reading)
    settings = ["algorithm.local_steps=1", "run.rounds=1", f"train.batch_size={each}"]
    config = securefl.load_config(settings=[*settings, "exchange.blind=true"])
    assert not securefl.run(config, securefl.Task(model, clients, (x, y))).incidents
    deviation = (seen["1/variance"] + 1e-5).sqrt()
    mean = [
        torch.relu((own.double() @ w1.T + b1 - seen["1/mean"]) / deviation).mean(0)
        for own, _ in clients
    ]
    read = torch.linalg.solve(w2, seen["4/mean"] - b2) * N_CLIENTS - mean[4]
    others = sum(mean[i] for i in (0, 2, 3))
    assert float((others * deviation).max()) < 0.02
    assert torch.allclose(read * deviation, mean[1] * deviation, atol=0.02)
    assert float((mean[1] * deviation).max()) > 1
