"""Federated training written out in plain torch, for the tests to compare with."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import islice

import torch
from torch.nn import functional

import securefl
from securefl.data.samples import minibatches, samples
from securefl.federation.training import round_generator
from securefl.models.build import build_model

SIZES = (5, 9, 14, 8)
BATCH, LR, DECAY, SEED = 10, 0.05, 1e-2, 3


def task(name="mlp", norm="batch", sizes=SIZES, width=4, **changes):
    """Clients of unequal size whose inputs have other means and scales, in float64."""
    rng = torch.Generator().manual_seed(0)
    shape = (12,) if name == "mlp" else (1, 8, 8)
    model = build_model(name, norm, in_channels=1, n_features=12, n_classes=4, width=width)

    def data(i, n):
        x = torch.randn(n, *shape, generator=rng, dtype=torch.float64)
        return x * (1 + i / 2) + i / 2, torch.randint(4, (n,), generator=rng)

    clients = [data(i, n) for i, n in enumerate(sizes)]
    return securefl.Task(model.double(), clients, data(1, 40), **changes)


def single(job):
    """The same job in float32."""
    (x, y), clients = job.test, [(x.float(), y) for x, y in job.clients]
    return replace(job, model=job.model.float(), clients=clients, test=(x.float(), y))


def config(*settings, rounds):
    """Settings in the clear, with one local step and each batch weighing by its size."""
    return securefl.load_config(
        None,
        [
            f"run.rounds={rounds}",
            f"run.seed={SEED}",
            "algorithm.local_steps=1",
            "algorithm.weights=batch",
            f"train.batch_size={BATCH}",
            f"train.lr={LR}",
            "train.lr_drops=[]",
            f"train.weight_decay={DECAY}",
            "exchange.encrypt=none",
            *settings,
        ],
    )


def shares(job, batch=BATCH):
    """p_i by the size of a client's batch."""
    sizes = [min(len(y), batch) for _, y in job.clients]
    return [size / sum(sizes) for size in sizes]


def batches(job, done, i, steps=1):
    """The batches that client i draws in the round after `done`."""
    rng = round_generator(SEED, done, i)
    drawn = minibatches(samples(job.clients[i], "a client"), BATCH, rng, torch.device("cpu"))
    return list(islice(drawn, steps))


def sgd(model, momentum, buffers=None):
    """Torch's own SGD, going on with momentum buffers by name."""
    optimiser = torch.optim.SGD(model.parameters(), LR, momentum=momentum, weight_decay=DECAY)
    for name, parameter in model.named_parameters():
        if buffers:
            optimiser.state[parameter]["momentum_buffer"] = buffers[name].clone()
    return optimiser


def buffers_of(model, optimiser):
    """The momentum buffers by name."""
    return {n: optimiser.state[p]["momentum_buffer"].clone() for n, p in model.named_parameters()}


def steps(model, optimiser, data):
    """One step of SGD for each batch."""
    for x, y in data:
        optimiser.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimiser.step()


def union_steps(model, optimiser, job, rounds):
    """One step of SGD a round, on the union of the clients' batches."""
    for done in rounds:
        drawn = [batches(job, done, i)[0] for i in range(len(job.clients))]
        x, y = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        steps(model, optimiser, [(x, y)])


def mean(weights, named):
    """Σ p_i x_i of tensors by name."""
    return {
        name: sum(p * tensors[name] for p, tensors in zip(weights, named, strict=True))
        for name in named[0]
    }


def averaged(model):
    """What FedAvg averages: the parameters and the floating-point buffers."""
    return {n: v.clone() for n, v in model.state_dict().items() if v.is_floating_point()}


def fedavg_round(model, job, done, *, momentum=0.0, kept=None, n_steps=1, own=None):
    """One round of FedAvg in place; each client's momentum buffers, by client.

    `own`, by client, lies over the global model and is kept up to date; its names do not travel.
    """
    locals_, buffers = [], []
    for i in range(len(job.clients)):
        local = copy.deepcopy(model)
        if own:
            local.load_state_dict(own[i], strict=False)
        local.train()
        optimiser = sgd(local, momentum, kept[i] if kept else None)
        steps(local, optimiser, batches(job, done, i, n_steps))
        locals_.append(averaged(local))
        if momentum:
            buffers.append(buffers_of(local, optimiser))
        if own:
            own[i] = {name: locals_[-1][name] for name in own[i]}
    stays = own[0].keys() if own else ()
    average = mean(shares(job), locals_)
    model.load_state_dict({n: v for n, v in average.items() if n not in stays}, strict=False)
    return buffers


def after_a_round(rounds, state):
    """What a round of all clients of a run makes of a state."""
    return rounds.after(
        rounds.round_of(dict.fromkeys(rounds.parts.participation.clients, 1), state)
    )


def largest_difference(one, other):
    """Over all parameters and floating-point buffers."""
    a, b = averaged(one), averaged(other)
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def sent_values(result, kind, round_number):
    """n_values of what each client sent of this kind, and of what it was broadcast."""
    up, down = {}, {}
    for e in result.ledger.entries:
        if e.round == round_number and e.name == f"update/{kind}" and e.receiver == "server":
            up[e.sender] = e.n_values
        if e.round == round_number and e.name == f"model/{kind}":
            down[e.receiver] = e.n_values
    return set(up.values()), set(down.values())


def own_differences(one, other):
    """Largest difference of each client's model of its own, of the same clients."""
    assert one.client_models.keys() == other.client_models.keys()
    return [
        largest_difference(model, other.client_models[name])
        for name, model in one.client_models.items()
    ]
