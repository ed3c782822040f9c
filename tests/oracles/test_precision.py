"""Local steps in bfloat16: what layers compute is coarse, and nothing else."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import by_hand
import pytest
import torch
from side_by_side import ALONE, vector
from torch import nn

import securefl
from securefl.algorithms import features
from securefl.errors import ConfigError
from securefl.federation.clients_round import ClientsRound

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from combinations import POLICIES, PRIVACY, SOLVERS, reason

SETTINGS = (
    "run.rounds=2",
    "algorithm.local_steps=2",
    "train.batch_size=8",
    "train.lr=0.05",
    "exchange.encrypt=none",
)
COARSE = "train.precision=bfloat16"
EPS = torch.finfo(torch.bfloat16).eps


def single(name="mlp"):
    """Clients with a model and data in float32."""
    return by_hand.single(by_hand.task(name, sizes=(8, 9, 14, 8), width=8))


def trained(job, *settings):
    return securefl.run(securefl.load_config(None, [*SETTINGS, *settings]), job)


def far(one, other):
    """How far two models are from each other, in steps of bfloat16 at the longer."""
    distance = (vector(one.model) - vector(other.model)).norm()
    return float(distance / vector(one.model).norm() / EPS)


PAIRS = [
    (policy, solver)
    for policy, solver in product(POLICIES, SOLVERS)
    if (solver == "sgd" or policy in {"fedtan", "fixbn"})
    and policy != "singlenet"  # no model leaves a client
    and not reason(POLICIES[policy], SOLVERS[solver])
]


@pytest.mark.parametrize(("engine", "name"), [("sequential", "cnn"), ("vectorised", "mlp")])
@pytest.mark.parametrize(("policy", "solver"), PAIRS)
def test_a_coarse_run_ends_beside_the_exact_one(policy, solver, engine, name):
    """Other than it, since something is rounded; and no further than rounding takes it."""
    if engine == "vectorised" and {policy, solver} & ALONE:
        pytest.skip("one by one")
    settings = [*POLICIES[policy], *SOLVERS[solver], f"run.engine={engine}"]
    exact, coarse = trained(single(name), *settings), trained(single(name), *settings, COARSE)
    assert {value.dtype for value in coarse.model.parameters()} == {torch.float32}
    assert 0 < far(exact, coarse) < 10
    assert not coarse.incidents


class Watching(nn.Linear):
    """Notes what its forward passes compute in."""

    def __init__(self):
        super().__init__(12, 4)
        self.seen = set()

    def forward(self, x):
        y = super().forward(x)
        self.seen.add((self.training, y.dtype))
        return y


@pytest.mark.parametrize("settings", [(), (COARSE,)])
def test_evaluation_is_as_exact_as_the_model(settings, monkeypatch):
    """Whatever local steps are in."""
    seen = set()
    monkeypatch.setattr(Watching, "__deepcopy__", lambda own, _: _twin(own, seen), raising=False)
    job = replace(single(), model=_twin(Watching(), seen))
    trained(job, "algorithm.name=fedavg", "run.engine=sequential", *settings)
    steps = torch.bfloat16 if settings else torch.float32
    assert seen >= {(True, steps), (False, torch.float32)}
    assert (False, torch.bfloat16) not in seen


def _twin(layer, seen):
    """A copy that notes in the same place."""
    twin = Watching()
    twin.load_state_dict(layer.state_dict())
    twin.seen = seen
    return twin


@pytest.mark.parametrize("settings", [*POLICIES.values(), SOLVERS["scaffold"]], ids=str)
def test_what_is_sent_is_in_float32(settings, monkeypatch):
    """Sums in the middle of a round and contributions at its end, before they are packed."""
    sent = set()
    asked, finish = ClientsRound.sum, ClientsRound.finish

    def watched_sum(self, asks):
        sent.update(value.dtype for _, named in asks.values() for value in named.values())
        return asked(self, asks)

    def watched_finish(self, name, contribution):
        kinds = contribution.tensors.values()
        sent.update(value.dtype for named in kinds for value in named.values())
        return finish(self, name, contribution)

    monkeypatch.setattr(ClientsRound, "sum", watched_sum)
    monkeypatch.setattr(ClientsRound, "finish", watched_finish)
    model = nn.Sequential(nn.Linear(12, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
    fixed = ("algorithm.name=fedavg", "run.engine=sequential", COARSE)
    trained(replace(single(), model=model), *fixed, *settings)
    assert sent <= {torch.float32}


@pytest.mark.parametrize("moments", ["two-pass", "fused"])
def test_pooled_moments_are_summed_in_float32(moments):
    """Of what a layer gives in bfloat16, whose mean keeps more digits than one of its values."""
    job, layer = single(), nn.Linear(12, 6)
    model = nn.Sequential(layer, nn.BatchNorm1d(6), nn.Linear(6, 4))
    job = replace(job, model=model, clients=[(x[:8] + 30, y[:8]) for x, y in job.clients])
    fixed = ("algorithm.name=fedtan", f"algorithm.moments={moments}", "run.engine=sequential")
    run = trained(job, *fixed, "run.rounds=1", "algorithm.local_steps=1", COARSE)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        seen = torch.cat([layer(x) for x, _ in job.clients])
    assert seen.dtype is torch.bfloat16
    expected = 0.1 * seen.double().mean(dim=0)
    found = run.model[1].running_mean.double()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fnr", "engine"),
    [("matched", "sequential"), ("server", "sequential"), ("server", "vectorised")],
)
def test_public_samples_are_assessed_as_exactly_as_the_model(fnr, engine, monkeypatch):
    """Class norms are sums over many samples, and who is refined hangs on a few outputs."""
    seen, norms = set(), features.class_norms

    def watched(features, y, n_classes):
        seen.add((features.requires_grad, features.dtype))
        return norms(features, y, n_classes)

    monkeypatch.setattr(features, "class_norms", watched)
    job = single()
    x, y = job.test
    job = replace(job, clients=[*job.clients, *job.clients], public=(x + 1, y))
    way = "algorithm.name=fedavg", f"fnr.name={fnr}", f"run.engine={engine}"
    run = trained(job, *way, COARSE)
    assert (False, torch.bfloat16) not in seen
    assert ((False, torch.float32) in seen) is (fnr == "matched")
    assert all(torch.isfinite(value).all() for value in run.model.state_dict().values())


@pytest.mark.parametrize(
    "settings",
    [
        PRIVACY["client"],
        ("train.momentum=0.9", "train.momentum_across_rounds=local"),
        ("train.momentum=0.9", "train.momentum_across_rounds=global"),
    ],
    ids=str,
)
def test_what_clients_keep_and_clip_is_in_float32_too(settings):
    """Coarse steps go on from exact buffers."""
    exact, coarse = (
        trained(single(), "algorithm.name=fedavg", *settings, "privacy.noise=seeded", *more)
        if "privacy.level=client" in settings
        else trained(single(), "algorithm.name=fedavg", *settings, *more)
        for more in ((), (COARSE,))
    )
    assert 0 < far(exact, coarse) < 10


def test_a_model_of_doubles_is_refused():
    """Autocast leaves doubles as they are."""
    with pytest.raises(ConfigError, match="a model of float64"):
        trained(by_hand.task(), "algorithm.name=fedavg", COARSE)


def test_records_are_not_clipped_by_coarse_norms():
    """A gradient that is clipped 0.4 % too long is more than the noise is for."""
    with pytest.raises(ConfigError, match=r"off by 0\.4 %"):
        securefl.load_config(
            None, ["algorithm.name=fixbn", "exchange.encrypt=none", COARSE, *PRIVACY["record"]]
        )
