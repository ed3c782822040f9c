"""FedAvg against a loop written by hand."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import islice

import pytest
import torch
from torch import nn
from torch.nn import functional

import securefl
from securefl.data.samples import minibatches, samples
from securefl.federation.training import round_generator

pytestmark = pytest.mark.shapes

SIZES = (12, 30, 21)


def task():
    rng = torch.Generator().manual_seed(1)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)
        ).double()
    clients = [
        (
            torch.randn(n, 6, generator=rng, dtype=torch.float64),
            torch.randint(3, (n,), generator=rng),
        )
        for n in SIZES
    ]
    return securefl.Task(model, clients, clients[0])


@pytest.mark.parametrize("keep", ["reset", "local"])
def test_fedavg_averages_weights_and_statistics_by_samples(keep):
    """Three rounds of three local steps equal deepcopy, SGD and a weighted state_dict average."""
    job = task()
    settings = [
        "run.rounds=3",
        "algorithm.name=fedavg",
        "algorithm.local_steps=3",
        "train.batch_size=8",
        "train.lr=0.1",
        "train.lr_drops=[0.5]",
        "train.momentum=0.8",
        f"train.momentum_across_rounds={keep}",
        "train.weight_decay=0.01",
        "exchange.encrypt=none",
    ]
    result = securefl.run(securefl.load_config(None, settings), job)

    model, buffers = copy.deepcopy(job.model), {}
    for done in range(3):
        sums = {name: 0.0 for name, _ in model.state_dict().items()}
        for i, data in enumerate(job.clients):
            local = copy.deepcopy(model).train()
            lr = 0.1 if done < 1.5 else 0.01
            sgd = torch.optim.SGD(local.parameters(), lr, momentum=0.8, weight_decay=0.01)
            if keep == "local" and i in buffers:
                for p, buffer in zip(local.parameters(), buffers[i], strict=True):
                    sgd.state[p]["momentum_buffer"] = buffer
            rng = round_generator(0, done, i)
            for x, y in islice(minibatches(samples(data, ""), 8, rng, torch.device("cpu")), 3):
                sgd.zero_grad()
                functional.cross_entropy(local(x), y).backward()
                sgd.step()
            buffers[i] = [sgd.state[p]["momentum_buffer"] for p in local.parameters()]
            for name, value in local.state_dict().items():
                sums[name] = sums[name] + SIZES[i] / sum(SIZES) * value
        model.load_state_dict(sums)

    for name, value in result.model.state_dict().items():
        if "num_batches" not in name:
            torch.testing.assert_close(value, model.state_dict()[name], atol=1e-12, rtol=1e-12)


def test_centralised_training_is_tested_where_each_client_is():
    """The one model's score is the mean over the clients' own tests."""
    job = task()
    tests = [(x[:3], y[:3]) for x, y in job.clients]
    job = replace(job, client_tests=tests)
    settings = ["run.rounds=1", "algorithm.name=centralised", "exchange.encrypt=none"]
    result = securefl.run(securefl.load_config(None, settings), job)
    model = result.model.eval()
    right = [(model(x).argmax(1) == y).double().mean() for x, y in tests]
    assert result.accuracy == pytest.approx(float(sum(right) / len(right)))


def test_the_learning_rate_drops_after_half_and_three_quarters_of_the_rounds():
    """The papers' schedule: tenfold smaller after 50 % and again after 75 % of the rounds."""
    config = securefl.load_config(
        None, ["run.rounds=52", "algorithm.name=fedavg", "exchange.encrypt=none"]
    )
    rates = [m.lr for m in securefl.run(config, task()).metrics]
    assert rates == pytest.approx([0.5] * 26 + [0.05] * 13 + [0.005] * 13)


def test_centralised_training_is_sgd_on_all_data():
    """The yardstick is plain SGD over the union, with batches of all clients' size."""
    job = task()
    settings = [
        "run.rounds=2",
        "algorithm.name=centralised",
        "algorithm.local_steps=2",
        "train.lr_drops=[0.5]",
        "train.batch_size=5",
        "exchange.encrypt=none",
    ]
    result = securefl.run(securefl.load_config(None, settings), job)
    model = copy.deepcopy(job.model).train()
    x, y = (torch.cat(parts) for parts in zip(*job.clients, strict=True))
    for done in range(2):
        sgd = torch.optim.SGD(model.parameters(), [0.5, 0.05][done])
        rng = round_generator(0, done, 0)
        for bx, by in islice(minibatches(samples((x, y), ""), 15, rng, torch.device("cpu")), 2):
            sgd.zero_grad()
            functional.cross_entropy(model(bx), by).backward()
            sgd.step()
    torch.testing.assert_close(list(result.model.parameters()), list(model.parameters()))
