"""Clients with fewer samples than a batch go side by side, padded, and end where they end alone."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from by_hand import task
from pairs import each, marked
from side_by_side import ALONE, require_same, trained, vector
from torch import nn

import securefl
from securefl.algorithms.algorithm import Sgd
from securefl.errors import ConfigError, DataError
from securefl.federation.training import Training
from securefl.norms.bn_function import batch_moments
from securefl.norms.frozen import frozen_batch_norm
from securefl.norms.padded import Present, moments_of, padded_batch_norm
from securefl.simulation.stacked.engine import Stacked
from securefl.simulation.stacked.grouping import Grouping
from securefl.types import Freeze

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from combinations import POLICIES, SERVERS, SOLVERS, reason

SIZES = (9, 14, 6, 11, 8, 3, 5, 20)
SHORT = "train.batch_size=16"
"""Blocks: 9, 14, 11 and 8; 6, 5 (and 4); 3; 20, whose batch is whole."""

STEPPED = {**SOLVERS, "fednova": SERVERS["fednova"]}


@pytest.fixture
def blocks(monkeypatch):
    """Who has trained in one wide model, each time."""
    seen, trained_ = [], Stacked._trained

    def noted(engine, names, ongoing):
        seen.append(tuple(sorted(names)))
        return trained_(engine, names, ongoing)

    monkeypatch.setattr(Stacked, "_trained", noted)
    return seen


TOGETHER = (
    {name: policy for name, policy in POLICIES.items() if name not in ALONE},
    {name: beside for name, beside in STEPPED.items() if name not in ALONE},
)


# `test_engines` has every pair of them, in batches of one size.
@pytest.mark.parametrize(
    ("policy", "solver"), marked(product(*TOGETHER), each(TOGETHER, product(*TOGETHER)))
)
def test_padded_batches_change_nothing(policy, solver, blocks):
    """All normalisations and solvers: moments, losses and gradients are of a client's own."""
    beside = STEPPED[solver]
    if reason(POLICIES[policy], beside):
        pytest.skip("refused together")
    settings = ["run.rounds=2", *POLICIES[policy], *beside, SHORT]  # in the second they remember
    require_same(settings, task(sizes=SIZES))
    if policy == "fixbn, window":
        assert not blocks
    elif policy == "centralised":
        assert set(blocks) == {("client-1",)}
    elif policy.startswith(("fedtan", "forward-only")):
        assert len(blocks[0]) == len(SIZES)
    else:
        assert ("client-1", "client-2", "client-4", "client-5") in blocks


@pytest.mark.parametrize("norm", ["batch", "group", "layer", "instance", "group-ws", "scaled-ws"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet20"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedtan"])
def test_padded_batches_change_nothing_in_any_model(name, norm, algorithm, blocks):
    """Moments over pixels, too; of norms that look at one sample there is nothing to mask."""
    if (name, norm) == ("mlp", "instance") or (norm != "batch" and algorithm == "fedtan"):
        pytest.skip("no such thing")
    if name == "resnet20" and norm not in {"batch", "group"}:
        pytest.skip("as of the cnn")
    job = task(name, norm, sizes=(7, 4, 6), width=8)
    require_same([f"algorithm.name={algorithm}", "run.rounds=1", SHORT], job)
    assert blocks == [("client-1", "client-2", "client-3")]


def test_shorter_batches_and_fewer_steps_go_together(blocks):
    """Passes over their data: 2 steps of 9, 4 of 16, 2 of 12, 2 of 11."""
    settings = ["algorithm.local_epochs=2", SHORT, "train.momentum=0.9"]
    job = task(sizes=(9, 33, 12, 11))
    for algorithm in ("fedavg", "fedtan"):
        require_same([f"algorithm.name={algorithm}", *settings], job)
    assert blocks[-1] == ("client-1", "client-2", "client-3", "client-4")


@pytest.mark.parametrize("weights", ["samples", "uniform", "batch"])
@pytest.mark.parametrize("moments", ["two-pass", "fused"])
def test_fedtans_moments_of_padded_batches_are_of_the_union(weights, moments, blocks):
    """Whatever clients are weighed by; by their batches it is centralised training."""
    settings = [f"algorithm.weights={weights}", f"algorithm.moments={moments}", SHORT]
    require_same(["algorithm.name=fedtan", *settings], task(sizes=SIZES))
    assert len(blocks) == 3


def test_static_statistics_are_of_a_clients_own_batches(blocks):
    """Of as many batches for all who are side by side."""
    require_same(["algorithm.name=static-bn", SHORT], task(sizes=(9, 14, 33, 35, 16)))
    assert ("client-1", "client-2") in blocks


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(), nn.MultiMarginLoss(reduction="sum")], ids=str
)
def test_a_loss_of_ones_own_sees_a_clients_own_samples(loss, blocks):
    """Padding is in no mean, and in no sum."""
    require_same(["algorithm.name=fedavg", SHORT], task(sizes=SIZES, loss=loss, metric="accuracy"))
    assert any(len(names) == 4 for names in blocks)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
@pytest.mark.parametrize("sizes", [(9, 14, 11), (16, 16)])
def test_labels_are_what_they_are_in_any_type_that_torch_takes(dtype, sizes):
    """No class of two hundred is taken for what is left out, in eight bits -100."""
    job = task(sizes=sizes)
    model = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 200)).double()
    clients = [(x, (156 + y).to(dtype)) for x, y in job.clients]
    job = securefl.Task(model, clients, clients[0])
    require_same(["algorithm.name=fedavg", SHORT], job)


def test_labels_that_are_ignored_count_no_more_than_padding():
    """A mean over what is left of a client's labels."""
    job = task(sizes=(9, 14, 11))
    job.clients[0][1][4:] = -100
    require_same(["algorithm.name=fedavg", SHORT], job)


def test_numbers_are_compared_sample_by_sample():
    """Of a regression, whose loss is known by name."""
    rng = torch.Generator().manual_seed(0)
    clients = [
        tuple(torch.randn(n, k, generator=rng, dtype=torch.float64) for k in (12, 3))
        for n in (9, 14, 11)
    ]
    model = nn.Sequential(nn.Linear(12, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    job = securefl.Task(model, clients, clients[0], loss=nn.functional.mse_loss)
    require_same(["algorithm.name=fedavg", SHORT], job)


class Centred(nn.Module):
    """It looks at all samples of a batch, and is no BN layer."""

    def forward(self, x):
        return x - x.mean(0)


class Sum(nn.Module):
    """Over the last axis."""

    def forward(self, x):
        return x.sum(-1)


class Tracking(nn.BatchNorm1d):
    """BN with a forward of its own."""

    def forward(self, x):
        return super().forward(x) + 1


@pytest.mark.parametrize(
    "layer",
    [Centred(), Tracking(3), nn.InstanceNorm1d(3, track_running_stats=True)],
    ids=lambda layer: type(layer).__name__,
)
def test_what_looks_at_several_samples_by_itself_is_not_padded(layer, blocks):
    """Such models are side by side with batches of their own size."""
    job = task(sizes=(9, 14, 9, 14, 11))
    clients = [(x.unflatten(1, (3, 4)), y) for x, y in job.clients]
    model = nn.Sequential(layer, nn.Conv1d(3, 4, 2), nn.BatchNorm1d(4), Sum())
    job = securefl.Task(model.double(), clients, clients[0])
    require_same(["algorithm.name=fedavg", SHORT], job)
    assert set(blocks) == {("client-1", "client-3"), ("client-2", "client-4"), ("client-5",)}
    with pytest.raises(
        ConfigError, match="sums, and their batches are unequal and cannot be padded"
    ):
        trained(["algorithm.name=fedtan", SHORT], "vectorised", job)


class Choosy(nn.Module):
    """It looks at a batch's other samples, under a condition."""

    def __init__(self, condition):
        super().__init__()
        self.condition = condition
        self.a, self.bn, self.b = nn.Linear(12, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)

    def forward(self, x):
        return getattr(self, self.condition)(x)

    def of_many(self, x):
        h = self.a(x)
        return self.b(self.bn(h - h.mean(0) if self.training and len(h) >= 10 else h))

    def by_number(self, x):
        return self.b(self.bn(self.a(x))) * min(1.0, 10 / len(x))

    def later(self, x):
        h = self.bn(self.a(x))
        later = self.training and self.bn.num_batches_tracked > 1
        return self.b(h - h.mean(0) if later else h)

    def ghosts(self, x):
        h = self.a(x)
        return self.b(torch.cat([self.bn(c) for c in h.chunk(max(1, -(-len(h) // 8)))]))

    def twice(self, x):
        if not torch.is_grad_enabled():
            return self.b(self.bn(self.a(x)))
        x = x.detach().requires_grad_()
        outputs = self.b(self.bn(self.a(x)))
        (slope,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
        return outputs + slope[:, :1]


@pytest.mark.parametrize("condition", ["of_many", "by_number", "later", "ghosts", "twice"])
def test_a_model_that_goes_by_its_batch_is_tried_with_batches_as_long_as_they_are(condition):
    """And with several of them: it is side by side without padding."""
    job = replace(task(sizes=SIZES), model=Choosy(condition).double())
    require_same(["algorithm.name=fedavg", SHORT], job)


def test_layers_of_two_precisions_have_moments_in_their_own():
    """A layer of single precision behind one of double."""
    job = task(sizes=SIZES)
    model = nn.Sequential(nn.Linear(12, 5).double(), Single(), nn.BatchNorm1d(5), nn.Linear(5, 4))
    job = replace(job, model=model)
    one, other = (
        trained(["algorithm.name=fedavg", SHORT], engine, job) for engine in ("sequential", "auto")
    )
    torch.testing.assert_close(vector(one.model), vector(other.model), rtol=1e-4, atol=1e-5)


class Single(nn.Module):
    """From double to single precision."""

    def forward(self, x):
        return x.float()


def grouping(sizes, *, why_not="", batch_size=16):
    clients = {str(n): (torch.zeros(n, 2), torch.zeros(n)) for n in sizes}
    data = {name: securefl.data.samples.TensorSamples(*of) for name, of in clients.items()}
    training = Training(nn.functional.cross_entropy, lambda _: Sgd(0.1), 2, batch_size, 0)
    return Grouping(data, training, securefl.algorithms.federated.Federated(), why_not)


def test_blocks_are_of_whole_batches_or_of_batches_within_a_factor_of_two():
    """So at most half of what is computed is padding."""
    names = [str(n) for n in (2, 3, 4, 7, 8, 15, 16, 40)]
    found = grouping(map(int, names)).blocks(names, static=False, most=9)
    assert found == [["2", "3"], ["4", "7"], ["8", "15"], ["16", "40"]]
    alone = grouping(map(int, names), why_not="so").blocks(names, static=False, most=9)
    assert [len(block) for block in alone] == [1, 1, 1, 1, 1, 1, 2]


def test_all_wait_together_where_not_more_than_half_is_padding():
    """Else each has a model of its own."""
    for sizes, together in (((4, 7, 16), True), ((2, 3, 16), False), ((16, 40), True)):
        why_not = grouping(sizes).reason_against_one([str(n) for n in sizes])
        assert why_not == ("" if together else "their batches or steps are too unequal")
    unpadded = grouping((4, 7, 16), why_not="so").reason_against_one(["4", "7", "16"])
    assert unpadded == "their batches are unequal and cannot be padded: so"


@pytest.mark.parametrize("shape", [(), (3,), (3, 2)])
def test_moments_of_those_present_are_those_of_the_clients_alone(shape):
    """And so are their gradients; padding has none."""
    rng = torch.Generator().manual_seed(1)
    sizes = [5, 2, 4]
    y = torch.randn(5, 6, *shape, generator=rng, dtype=torch.float64, requires_grad=True)
    towards = torch.randn(2, 6, generator=rng, dtype=torch.float64)
    mu_C, var_C, n_C = Present.of(sizes, y.device).moments(y)
    (slope,) = torch.autograd.grad((mu_C * towards[0] + var_C * towards[1]).sum(), y)
    for i, n in enumerate(sizes):
        own = y[:n, 2 * i : 2 * i + 2].detach().clone().requires_grad_()
        mu, var = batch_moments(own)
        towards_own = towards[:, 2 * i : 2 * i + 2]
        (slope_own,) = torch.autograd.grad((mu * towards_own[0] + var * towards_own[1]).sum(), own)
        channels = slice(2 * i, 2 * i + 2)
        torch.testing.assert_close(mu_C[channels], mu)
        torch.testing.assert_close(var_C[channels], var)
        torch.testing.assert_close(slope[:n, channels], slope_own)
        assert not slope[n:, channels].any()
        assert n_C[channels].tolist() == [own.numel() / 2] * 2


def test_padding_is_over_when_the_block_is():
    """Forwards and moments are those of before, whatever was put on top within."""
    layer = nn.BatchNorm1d(4)
    model, present = nn.Sequential(layer), Present.of([3, 2], torch.device("cpu"))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    with padded_batch_norm(model, present):
        masked = model(x)
        with frozen_batch_norm(model, Freeze.STATISTICS):
            assert not torch.equal(model(x), masked)
        assert torch.equal(model(x), masked)
        assert isinstance(moments_of(layer, x)[2], torch.Tensor)
        assert torch.equal(model.eval()(x), nn.BatchNorm1d.forward(layer, x))
        model.train()
    assert "forward" not in vars(layer)
    assert moments_of(layer, x)[2] == 3.0
    with (
        pytest.raises(DataError, match="forward of its own"),
        padded_batch_norm(nn.Sequential(Tracking(4)), present),
    ):
        pass


def test_coarse_layers_have_exact_moments_of_padded_batches():
    """Under autocast: beside the same run one by one, as near as that is to itself in float32."""
    job = task(sizes=(9, 14, 11, 8))
    clients = [(x.float(), y) for x, y in job.clients]
    job = replace(job, model=job.model.float(), clients=clients, test=clients[0])
    settings = ["algorithm.name=fedavg", SHORT, "train.precision=bfloat16"]
    one, other = (trained(settings, engine, job) for engine in ("sequential", "vectorised"))
    torch.testing.assert_close(vector(one.model), vector(other.model), rtol=0.02, atol=0.02)
