"""FedWon, scaled weight standardisation and adaptive gradient clipping, written out by hand."""

from __future__ import annotations

import copy
import math

import by_hand
import pytest
import torch
from torch import nn
from torch.nn import functional
from weighted_layers import WEIGHTED_LAYERS

import securefl
from securefl.algorithms.solvers.agc import unit_norms
from securefl.errors import DataError
from securefl.models.build import build_model
from securefl.norms.weight_standardization import scaled, standardise_weights

pytestmark = [pytest.mark.shapes, pytest.mark.usefixtures("quick")]

ROUNDS, E, LAMBDA = 4, 3, 0.05
GAMMA = 2**0.5 / (1 - 1 / math.pi) ** 0.5
"""The closed form. NFNets' own code has 1.71396, an estimate from random numbers."""


def scaled_by_hand(weight):
    """γ (W - μ) / √(N σ² + 1e-4) of each row, by loops."""
    rows = []
    for row in weight.flatten(1):
        n = row.numel()
        mu = sum(row) / n
        var = sum((v - mu) ** 2 for v in row) / n
        rows.append(GAMMA * (row - mu) / (n * var + 1e-4).sqrt())
    return torch.stack(rows).view_as(weight)


@pytest.mark.parametrize(("plain", "shape"), WEIGHTED_LAYERS)
def test_a_scaled_layer_is_the_plain_one_with_scaled_weights(plain, shape):
    """Ŵ = γ (W - μ) / (σ √N) over an output channel's weights; the rest of the layer stays."""
    plain = plain.double()
    layer, expected = copy.deepcopy(plain), copy.deepcopy(plain)
    standardise_weights([("layer", layer)], scaled)
    with torch.no_grad():
        expected.weight.copy_(scaled_by_hand(plain.weight))
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(layer(x), expected(x), atol=1e-12, rtol=1e-12)
    assert torch.equal(layer.weight, plain.weight)


def test_a_scaled_layer_behind_a_relu_keeps_a_unit_variance():
    """Of inputs ReLU(z), z standard normal, each output has variance 1; γ is what makes it so."""
    rng = torch.Generator().manual_seed(0)
    layer = nn.Linear(200, 50).double()
    nn.init.zeros_(layer.bias)
    standardise_weights([("layer", layer)], scaled)
    z = torch.randn(20_000, 200, generator=rng, dtype=torch.float64)
    assert layer(z.relu()).var(0).mean().item() == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet20", "alexnet"])
def test_scaled_ws_leaves_no_norm_and_gives_every_layer_a_bias(name):
    """Nothing of a sample depends on its batch, and no state is a statistic."""
    model = build_model(name, "scaled-ws", in_channels=1, n_features=64, n_classes=4, width=4)
    hidden = [m for m in model[:-1].modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert len(hidden) == {"mlp": 1, "cnn": 4, "resnet20": 19, "alexnet": 7}[name]
    assert all(m.standardisation is scaled and m.bias is not None for m in hidden)
    assert not any(m.bias.any() for m in hidden if isinstance(m, nn.Conv2d))
    assert {n.rpartition(".")[2] for n in model.state_dict()} == {"weight", "bias"}
    assert not list(model.buffers())


def clipped_by_hand(weight, gradient):
    """Unit-wise clipping, row by row; a vector is one unit."""
    if weight.dim() == 1:
        most = LAMBDA * max(float(weight.norm()), 1e-3)
        return gradient * min(1.0, most / float(gradient.norm()))
    return torch.stack(
        [
            g * min(1.0, LAMBDA * max(float(w.norm()), 1e-3) / max(float(g.norm()), 1e-6))
            for w, g in zip(weight, gradient, strict=True)
        ]
    )


def forward(w, x):
    """The cnn of the settings without its norms, from weights alone."""
    for layer, pools in ((0, False), (3, True), (7, False), (10, True)):
        weight = scaled_by_hand(w[f"{layer}.weight"])
        x = functional.conv2d(x, weight, w[f"{layer}.bias"], padding=1).relu()
        x = functional.max_pool2d(x, 2) if pools else x
    return x.mean((2, 3)) @ w["16.weight"].T + w["16.bias"]


def fedwon(job, present, momentum):
    """The global weights after each round's clients took E clipped steps."""
    w = {name: p.detach().clone() for name, p in job.model.named_parameters()}
    n_clipped = 0
    for done, names in enumerate(present):
        numbers = [int(name.rpartition("-")[2]) - 1 for name in names]
        ends = []
        for i in numbers:
            local = {name: p.clone().requires_grad_() for name, p in w.items()}
            moving = {name: torch.zeros_like(p) for name, p in w.items()}
            for x, y in by_hand.batches(job, done, i, E):
                loss = functional.cross_entropy(forward(local, x), y)
                gradients = torch.autograd.grad(loss, list(local.values()))
                for (name, p), g in zip(list(local.items()), gradients, strict=True):
                    if not name.startswith("16."):
                        n_clipped += not torch.equal(g, g := clipped_by_hand(p.detach(), g))
                    moving[name] = momentum * moving[name] + g + by_hand.DECAY * p.detach()
                    local[name] = (p.detach() - by_hand.LR * moving[name]).requires_grad_()
            ends.append({name: p.detach() for name, p in local.items()})
        sizes = [len(job.clients[i][1]) for i in numbers]
        w = by_hand.mean([n / sum(sizes) for n in sizes], ends)
    assert n_clipped > 10
    return w


FEDWON = ("algorithm.name=fedavg", "solver.name=agc", f"solver.clip={LAMBDA}")
SOME = ("selection.name=random", "selection.fraction=0.5")


def config(*settings):
    return by_hand.config(
        *FEDWON, f"algorithm.local_steps={E}", "algorithm.weights=samples", *settings, rounds=ROUNDS
    )


@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("some", [(), SOME], ids=["all", "half"])
def test_fedwon_is_the_loop_by_hand(some, momentum):
    """Four rounds of three steps, in float64, with all clients of unequal size or with half."""
    job = by_hand.task("cnn", "scaled-ws")
    result = securefl.run(config(*some, f"train.momentum={momentum}"), job)
    present = [list(each.selected) for each in result.participants]
    assert [len(of) for of in present] == [2 if some else 4] * ROUNDS
    expected = fedwon(job, present, momentum)
    found = by_hand.averaged(result.model)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-12, rtol=1e-10)


def test_encrypted_fedwon_ends_where_it_ends_in_the_clear():
    """All that travels is one sum of weights a round: there is no statistic."""
    plain, sealed = (
        securefl.run(config(f"exchange.encrypt={e}"), by_hand.task("cnn", "scaled-ws"))
        for e in ("none", "model")
    )
    assert by_hand.largest_difference(plain.model, sealed.model) < 1e-6
    assert not sealed.ledger.server_reads()
    sent = {e.name for e in sealed.ledger.entries if e.receiver == "server"}
    assert {name for name in sent if "/" in name} == {"update/parameters"}


def test_over_workers_fedwon_gives_the_same_bits():
    """Clients in two processes, or one after the other here."""
    one, other = (
        securefl.run(
            config("run.threads=1", f"run.engine={engine}"), by_hand.task("cnn", "scaled-ws")
        )
        for engine in ("sequential", "parallel")
    )
    assert by_hand.largest_difference(one.model, other.model) == 0


def test_a_share_that_nothing_reaches_clips_nothing():
    """Then it is FedAvg, bit for bit."""
    wide = securefl.run(config("solver.clip=1e9"), by_hand.task("cnn", "scaled-ws"))
    plain = by_hand.config(
        f"algorithm.local_steps={E}",
        "algorithm.name=fedavg",
        "algorithm.weights=samples",
        rounds=ROUNDS,
    )
    fedavg = securefl.run(plain, by_hand.task("cnn", "scaled-ws"))
    assert by_hand.largest_difference(wide.model, fedavg.model) == 0


def test_a_clients_own_parameters_are_clipped_too():
    """FedBN's γ and β do not travel; a step of theirs is as short as the others'."""
    job = by_hand.task("cnn")
    with_clip, without = (
        securefl.run(by_hand.config("algorithm.name=fedbn", solver, rounds=1), job).client_models
        for solver in ("solver.name=agc", "solver.name=sgd")
    )
    name = "1.bias"  # which starts at zero, so that a step is λ ε long at most
    moved, free = (
        float(models["client-1"].state_dict()[name].norm()) for models in (with_clip, without)
    )
    assert 0 < moved <= by_hand.LR * 0.16 * 1e-3 * (1 + 1e-9) < free


def test_a_model_that_ends_with_a_convolution_is_clipped_as_a_whole():
    """There is no last linear layer to leave out."""
    job = by_hand.task("cnn")
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    task = securefl.Task(nn.Sequential(*layers).double(), job.clients, job.test)
    settings = ("algorithm.name=fedavg", "solver.name=agc", "solver.clip=1e-9")
    decay = "train.weight_decay=0"
    result = securefl.run(by_hand.config(*settings, decay, rounds=1), task)
    moved = {
        n: (p - task.model.get_parameter(n)).norm() for n, p in result.model.named_parameters()
    }
    assert all(0 < float(of.detach()) < 1e-8 for of in moved.values())


def test_units_are_output_channels_and_whole_vectors():
    """A bias, and what is a vector but for axes of size one, is one unit."""
    weight = torch.arange(24.0).view(2, 3, 4, 1)
    expected = [sum(float(v) ** 2 for v in row.flatten()) ** 0.5 for row in weight]
    torch.testing.assert_close(unit_norms(weight), torch.tensor(expected).view(2, 1, 1, 1))
    for vector in (torch.tensor([3.0, 4.0]), torch.tensor([[3.0], [4.0]])):
        assert float(unit_norms(vector)) == 5


def test_scaled_ws_is_refused_where_it_would_make_weights_zero():
    """One weight alone has no deviation."""
    with pytest.raises(DataError, match="one weight an output channel"):
        build_model("mlp", "scaled-ws", in_channels=1, n_features=1, n_classes=4)
