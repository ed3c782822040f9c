"""FedTAN against centralised training on the union of the clients' batches, in float64."""

from __future__ import annotations

import copy
from itertools import islice

import pytest
import torch
from torch import nn
from torch.nn import functional

import securefl
from securefl.data.samples import minibatches, samples
from securefl.federation.training import round_generator
from securefl.models.build import build_model

SIZES = (5, 9, 14, 8)
LR, MOMENTUM, DECAY, SEED = 0.05, 0.9, 1e-2, 3
STEPS = 20


def task(name, sizes=SIZES, width=4):
    rng = torch.Generator().manual_seed(0)
    shape = (12,) if name == "mlp" else (1, 8, 8)
    model = build_model(name, "batch", in_channels=1, n_features=12, n_classes=4, width=width)
    clients = [
        (
            torch.randn(n, *shape, generator=rng, dtype=torch.float64) * (1 + i) + i,
            torch.randint(4, (n,), generator=rng),
        )
        for i, n in enumerate(sizes)
    ]
    return securefl.Task(model.double(), clients, clients[0])


def config(*settings, rounds=STEPS):
    return securefl.load_config(
        None,
        [
            f"run.rounds={rounds}",
            f"run.seed={SEED}",
            "algorithm.local_steps=1",
            "algorithm.weights=batch",
            "train.batch_size=10",
            f"train.lr={LR}",
            "train.lr_drops=[]",
            f"train.momentum={MOMENTUM}",
            "train.momentum_across_rounds=local",
            f"train.weight_decay={DECAY}",
            "exchange.encrypt=none",
            *settings,
        ],
    )


def centralised(job, rounds=STEPS, batch_size=10):
    """PyTorch's own BN and SGD on the union of the batches that the clients draw."""
    model = copy.deepcopy(job.model).train()
    sgd = torch.optim.SGD(model.parameters(), LR, momentum=MOMENTUM, weight_decay=DECAY)
    for done in range(rounds):
        batches = [
            next(
                minibatches(
                    samples(data, "a client"),
                    batch_size,
                    round_generator(SEED, done, i),
                    torch.device("cpu"),
                )
            )
            for i, data in enumerate(job.clients)
        ]
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        sgd.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        sgd.step()
    return model


def largest_difference(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.mark.parametrize(
    ("model", "rounds"),
    [
        ("mlp", STEPS),
        ("cnn", STEPS),
        ("resnet20", 6),
        pytest.param("resnet20", STEPS, marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("moments", ["two-pass", "fused"])
def test_fedtan_is_centralised_sgd_on_the_union_of_the_batches(model, rounds, moments):
    """20 rounds of one step each move all weights as 20 centralised steps do, to 1e-12."""
    job = task(model)
    result = securefl.run(config(f"algorithm.moments={moments}", rounds=rounds), job)
    assert largest_difference(result.model, centralised(job, rounds)) < 1e-12


def test_fedtan_leaves_the_running_statistics_of_the_union():
    """Running means and (unbiased) variances are those that PyTorch keeps for the union batch."""
    job = task("mlp")
    result, reference = securefl.run(config(), job), centralised(job)
    for name, buffer in reference.named_buffers():
        if "running" in name:
            torch.testing.assert_close(dict(result.model.named_buffers())[name], buffer)


@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet20"])
def test_the_forward_only_variant_is_another_method(model):
    """Without the exchange of gradients one step already differs by more than 1e-3."""
    job = task(model)
    result = securefl.run(config("algorithm.name=forward-only", "train.lr=0.5", rounds=1), job)
    step = securefl.run(config("train.lr=0.5", rounds=1), job)
    assert largest_difference(result.model, step.model) > 1e-3


def test_fedavg_is_not_centralised_training():
    """The equality above is FedTAN's: FedAvg with BN differs after one step."""
    job = task("mlp")
    result = securefl.run(config("algorithm.name=fedavg", rounds=1), job)
    assert largest_difference(result.model, centralised(job, rounds=1)) > 1e-3


@pytest.mark.parametrize(
    ("model", "rounds"),
    [("mlp", STEPS), ("cnn", 5), pytest.param("cnn", STEPS, marks=pytest.mark.full)],
)
@pytest.mark.parametrize("encrypt", ["statistics", "model"])
def test_encryption_changes_nothing_that_matters(model, rounds, encrypt):
    """After 20 encrypted steps the weights are within 1e-4 of the plain ones."""
    job = task(model)
    plain = securefl.run(config(rounds=rounds), job)
    sealed = securefl.run(config(f"exchange.encrypt={encrypt}", rounds=rounds), job)
    assert 0 < largest_difference(plain.model, sealed.model) < 1e-4


def by_hand(job, shares, steps, lr):
    """Algorithms 1-3 for Linear, BN, ReLU, Linear, in one graph with a copy of w for each client.

    With F = Σ p_j F_j, client i's gradient of Algorithm 3 is (1/p_i) ∂F/∂w_i: its own path and,
    through its own inputs, the sum over clients of the gradients of the shared statistics.
    """
    norm = job.model[1]
    state = [
        [p.detach().clone().requires_grad_() for p in job.model.parameters()] for _ in job.clients
    ]
    running = [[torch.zeros(4).double(), torch.ones(4).double()] for _ in job.clients]
    batches = [
        list(
            islice(
                minibatches(
                    samples(data, "a client"),
                    10,
                    round_generator(SEED, 0, i),
                    torch.device("cpu"),
                ),
                steps,
            )
        )
        for i, data in enumerate(job.clients)
    ]

    def loss(params, z, mu, var, y):
        gamma, beta, w2, b2 = params[2:]
        hidden = torch.relu((z - mu) / (var + norm.eps).sqrt() * gamma + beta)
        return functional.cross_entropy(hidden @ w2.T + b2, y)

    for step in range(steps):
        zs = [b[step][0] @ w[0].T + w[1] for b, w in zip(batches, state, strict=True)]
        if step == 0:
            mu = sum(p * z.mean(0) for p, z in zip(shares, zs, strict=True))
            var = sum(p * (z - mu).square().mean(0) for p, z in zip(shares, zs, strict=True))
            stats = [(mu, var)] * len(zs)
            # PyTorch's unbiased running variance, with n_i / p_i as the size of the union.
            counts = [len(z) / p for z, p in zip(zs, shares, strict=True)]
        else:
            stats = [(z.mean(0), z.var(0, correction=0)) for z in zs]
            counts = [len(z) for z in zs]
        losses = [
            loss(w, z, *s, b[step][1]) for w, z, s, b in zip(state, zs, stats, batches, strict=True)
        ]
        total = sum(p * f for p, f in zip(shares, losses, strict=True))
        grads = torch.autograd.grad(total, [p for w in state for p in w])
        grads = [grads[6 * i : 6 * i + 6] for i in range(len(state))]
        for i, (m, v) in enumerate(stats):
            running[i][0] = 0.9 * running[i][0] + 0.1 * m.detach()
            running[i][1] = 0.9 * running[i][1] + 0.1 * v.detach() * counts[i] / (counts[i] - 1)
        state = [
            [(w - lr * g / p).detach().requires_grad_() for w, g in zip(ws, gs, strict=True)]
            for ws, gs, p in zip(state, grads, shares, strict=True)
        ]
    weights = [sum(p * w[k] for p, w in zip(shares, state, strict=True)) for k in range(6)]
    statistics = [sum(p * r[k] for p, r in zip(shares, running, strict=True)) for k in range(2)]
    return weights, statistics


@pytest.mark.parametrize("weights", ["samples", "uniform", "batch"])
@pytest.mark.parametrize("steps", [1, 4])
def test_fedtan_follows_algorithms_1_to_3_for_any_weights_and_local_steps(weights, steps):
    """One round is, to the last digits, the papers' three algorithms written out by hand."""
    job = task("mlp")
    sizes = {"samples": SIZES, "uniform": (1,) * 4, "batch": [min(n, 10) for n in SIZES]}[weights]
    shares = [size / sum(sizes) for size in sizes]
    settings = config(
        f"algorithm.weights={weights}",
        f"algorithm.local_steps={steps}",
        "train.momentum=0",
        "train.weight_decay=0",
        rounds=1,
    )
    result = securefl.run(settings, job)
    expected, statistics = by_hand(job, shares, steps, LR)
    torch.testing.assert_close(list(result.model.parameters()), expected, atol=1e-12, rtol=1e-12)
    buffers = [result.model[1].running_mean, result.model[1].running_var]
    torch.testing.assert_close(buffers, [s.detach() for s in statistics], atol=1e-12, rtol=1e-12)


def far_away(offset, running=0.0, dtype=torch.float32):
    """Clients whose inputs are N(offset, 1), and a layer that begins with this running mean."""
    rng = torch.Generator().manual_seed(0)
    clients = [
        (
            torch.randn(64, 3, generator=rng).to(dtype) + offset,
            torch.randint(2, (64,), generator=rng),
        )
        for _ in range(3)
    ]
    norm = nn.BatchNorm1d(3)
    norm.running_mean.fill_(running)
    torch.nn.init.constant_((linear := nn.Linear(3, 2)).weight, 0.1)
    return securefl.Task(nn.Sequential(norm, linear).to(dtype), clients, clients[0])


def variances_of(task, *beside, rounds=4):
    """The unbiased variance of each round's batch, read off a running variance that keeps 0.9."""
    found, kept = [], task.model[0].running_var.clone()
    chosen = ["train.batch_size=64", "train.momentum=0", "train.momentum_across_rounds=reset"]
    for done in range(1, rounds + 1):
        result = securefl.run(config(*chosen, *beside, rounds=done), task)
        assert not result.incidents
        found.append((result.model[0].running_var - 0.9 * kept) / 0.1)
        kept = result.model[0].running_var.clone()
    return torch.stack(found)


@pytest.mark.parametrize("running", [0.0, 4000.0, 3000.0])
def test_fused_moments_do_not_cancel(running):
    """In float32 with |mean| = 4000 σ variances keep their digits, wherever running means begin."""
    task = far_away(4000.0, running)
    union = torch.cat([x for x, _ in task.clients]).double().var(0)
    found = variances_of(task, "algorithm.moments=fused")
    assert (found - union).abs().max() < 1e-3


@pytest.mark.parametrize("offset", [100.0, 1000.0])
def test_fused_moments_of_far_inputs_can_be_sealed(offset):
    """What is sealed stays in range, since moments are about the last round's pooled mean."""
    task = far_away(offset)
    union = torch.cat([x for x, _ in task.clients]).double().var(0)
    sealed = ["algorithm.moments=fused", "exchange.encrypt=statistics"]
    assert (variances_of(task, *sealed, rounds=3) - union).abs().max() < 1e-3


def test_fused_moments_are_about_the_mean_of_the_round_before():
    """With full aggregation and a random half, too: the state carries the pooled mean itself."""
    task = far_away(4000.0)
    half = ["selection.name=random", "selection.fraction=0.67", "selection.aggregation=full"]
    runs = [
        securefl.run(
            config("algorithm.moments=" + moments, *half, "train.momentum=0", rounds=5), task
        )
        for moments in ("two-pass", "fused")
    ]
    one, other = (run.model[0].running_var for run in runs)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-3)
