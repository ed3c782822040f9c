"""BN layers that a model's own `train()` keeps in evaluation mode, and BN outside of layers."""

from __future__ import annotations

import copy

import pytest
import torch
from by_hand import config, largest_difference, sgd, union_steps
from by_hand import task as by_hand_task
from torch import nn
from torch.nn import functional

import securefl
from securefl.errors import DataError

pytestmark = pytest.mark.shapes

ENGINES = ["sequential", "vectorised"]
FUSED = ["algorithm.name=fedtan", "algorithm.moments=fused"]


class Kept(nn.Module):
    """A net whose first BN layer keeps the statistics that it came with."""

    def __init__(self, all_of_them=False):
        super().__init__()
        self.first, self.kept = nn.Linear(12, 6), nn.BatchNorm1d(6)
        self.second, self.free = nn.Linear(6, 5), nn.BatchNorm1d(5)
        self.last = nn.Linear(5, 4)
        self.all_of_them = all_of_them
        self.kept.running_mean.fill_(0.3)
        self.kept.running_var.fill_(1.7)

    def train(self, mode=True):
        super().train(mode)
        self.kept.eval()
        if self.all_of_them:
            self.free.eval()
        return self

    def forward(self, x):
        y = torch.tanh(self.kept(self.first(x)))
        return self.last(torch.tanh(self.free(self.second(y))))


class Functional(nn.Module):
    """Normalises its batch with no layer, beside one."""

    def __init__(self):
        super().__init__()
        self.first, self.inner = nn.Linear(12, 6), Inner()
        self.layer, self.last = nn.BatchNorm1d(6), nn.Linear(6, 4)

    def forward(self, x):
        return self.last(self.layer(self.inner(self.first(x))))


class Inner(nn.Module):
    def forward(self, y):
        return functional.batch_norm(y, None, None, training=True)


def job(model):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        made = model()
    found = by_hand_task()
    return securefl.Task(made.double(), found.clients, found.test)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("moments", [["algorithm.name=fedtan"], FUSED])
def test_fedtan_leaves_a_kept_layer_as_it_is(moments, engine):
    """One step a round is a centralised step of this model on the union of the batches."""
    task = job(Kept)
    result = securefl.run(config(*moments, f"run.engine={engine}", rounds=4), task)
    expected = copy.deepcopy(task.model).train()
    union_steps(expected, sgd(expected, 0.0), task, range(4))
    assert largest_difference(result.model, expected) < 1e-12
    assert torch.equal(result.model.kept.running_mean, task.model.kept.running_mean)
    sums = {entry.name for entry in result.ledger.entries}
    assert any(name.startswith("free/") for name in sums)
    assert not any(name.startswith("kept/") for name in sums)


OTHERS = {
    "static-bn": ["algorithm.name=static-bn"],
    "fedtan-ii": ["algorithm.name=fedtan-ii", "algorithm.switch=1"],
    "forward-only": ["algorithm.name=forward-only"],
    "fixbn": ["algorithm.name=fixbn", "algorithm.switch=1"],
    "affine": ["algorithm.name=fixbn", "algorithm.switch=1", "algorithm.freeze=affine"],
    "window": ["algorithm.name=fixbn", "algorithm.switch=window", "algorithm.window=2"],
    "fedbn": ["algorithm.name=fedbn"],
    "moon": ["algorithm.name=fedavg", "solver.name=moon"],
    "dp": [
        "algorithm.name=fixbn",
        "algorithm.weights=uniform",
        "privacy.level=record",
        "privacy.records=5",
        "train.batch_size=3",
        "privacy.delta=0.01",
        "privacy.sigma=1.0",
        "privacy.statistics_sigma=0.5",
        "train.weight_decay=0.0",
    ],
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_kept_layers_statistics_stay_whatever_the_policy(name):
    """To the bit; those of the layer beside it move, at each client alone with FedBN.

    DP-SGD refuses a layer that trains in evaluation mode, so that γ and β are frozen there.
    """
    task = job(Kept)
    task.model.kept.requires_grad_(name != "dp")
    model = securefl.run(config(*OTHERS[name], "algorithm.local_steps=2", rounds=4), task).model
    for own in ("running_mean", "running_var"):
        assert torch.equal(getattr(model.kept, own), getattr(task.model.kept, own))
        moved = not torch.equal(getattr(model.free, own), getattr(task.model.free, own))
        assert moved is (name != "fedbn")


class Plain(Kept):
    """The same, its kept layer written as the affine map that it is."""

    def forward(self, x):
        mean, var = self.kept.running_mean, self.kept.running_var
        y = (self.first(x) - mean) / (var + self.kept.eps).sqrt()
        y = torch.tanh(y * self.kept.weight + self.kept.bias)
        return self.last(torch.tanh(self.free(self.second(y))))


@pytest.mark.parametrize("name", sorted(OTHERS.keys() - {"dp", "fedtan-ii", "forward-only"}))
def test_a_kept_layer_is_an_affine_map(name):
    """Each policy trains the model as one in which that map is written out."""
    settings = config(*OTHERS[name], "algorithm.local_steps=2", rounds=4)
    one, other = (securefl.run(settings, job(model)).model for model in (Kept, Plain))
    assert largest_difference(one, other) < 1e-12


@pytest.mark.parametrize("name", ["fedtan", "forward-only", "static-bn"])
def test_where_all_layers_are_kept_there_is_nothing_to_pool(name):
    """The message says so, before the first round."""
    task = job(lambda: Kept(all_of_them=True))
    with pytest.raises(DataError, match=r"own train\(\) keeps all of them in evaluation mode"):
        securefl.run(config(f"algorithm.name={name}", rounds=1), task)


@pytest.mark.parametrize("name", [*sorted(OTHERS.keys() - {"dp", "moon"}), "fedtan"])
def test_batch_normalisation_outside_of_layers_is_refused(name):
    """In the first step already, with the module that does it and the way out."""
    beside = OTHERS.get(name, [f"algorithm.name={name}"])
    with pytest.raises(DataError, match=r"'inner' .* use nn\.BatchNorm1d"):
        securefl.run(config(*beside, rounds=4), job(Functional))


def test_fedavg_takes_any_batch_normalisation():
    """It does nothing to layers that it would not do to a functional call."""
    found = securefl.run(config("algorithm.name=fedavg", rounds=1), job(Functional))
    assert len(found.metrics) == 1


class KeptInForward(Kept):
    """Puts its layer into evaluation mode in forward, where `train` does not show it."""

    def train(self, mode=True):
        return nn.Module.train(self, mode)

    def forward(self, x):
        self.kept.eval()
        return super().forward(x)


@pytest.mark.parametrize("name", ["fedtan", "static-bn"])
def test_a_layer_that_forward_keeps_is_refused(name):
    """Its statistics would be lost, or stay behind, without a word."""
    with pytest.raises(DataError, match=r"evaluation mode|planned sums"):
        securefl.run(config(f"algorithm.name={name}", rounds=1), job(KeptInForward))
