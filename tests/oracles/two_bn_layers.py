"""Clients of a small network with two BN layers, for tests of what becomes of its statistics.

The network is written out with a normalisation of the test's own in the place of BN.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import by_hand
import torch
from torch import nn
from torch.nn import functional

from securefl.models.layers import batch_norm_1d
from securefl.models.mlp import mlp

EPS = 1e-5
HALF = ("selection.name=random", "selection.fraction=0.5")
WHO = {
    "two clients": ((5, 9), ()),
    "half of six": ((5, 9, 14, 8, 11, 7), HALF),
    "half of six, full": ((5, 9, 14, 8, 11, 7), (*HALF, "selection.aggregation=full")),
    "dropouts": ((5, 9, 14, 8), ("devices.dropout=0.4",)),
}
"""Sizes of clients, and the settings by which a round has some of them."""


def task(sizes, **changes):
    """In float64, with running statistics, γ and β that no model begins with."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = mlp(batch_norm_1d, (12, 5, 4, 4)).double()
    rng = torch.Generator().manual_seed(7)
    for layer in norms(model).values():
        layer.running_mean.normal_(generator=rng)
        layer.running_var.uniform_(0.5, 2, generator=rng)
        layer.weight.data.uniform_(0.5, 2, generator=rng)
        layer.bias.data.normal_(generator=rng)
    return replace(by_hand.task(sizes=sizes), model=model, **changes)


def norms(model):
    """BN layers by name, the lower one first."""
    return {n: module for n, module in model.named_modules() if isinstance(module, nn.BatchNorm1d)}


def statistics_of(model):
    """Mean and variance of each layer."""
    return {n: (of.running_mean.clone(), of.running_var.clone()) for n, of in norms(model).items()}


def by_layer(named, like):
    """The same of a state's tensors."""
    return {n: (named[f"{n}.running_mean"], named[f"{n}.running_var"]) for n in norms(like)}


def parameters_of(model):
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def outputs(model, x, moments):
    """The network's outputs; `moments` is called with a layer's name and its batch's (μ, σ²)."""
    for name, layer in model.named_children():
        if isinstance(layer, nn.BatchNorm1d):
            mu = x.sum(0) / len(x)
            mu, var = moments(name, mu, ((x - mu) ** 2).sum(0) / len(x))
            x = layer.weight * (x - mu) / (var + EPS).sqrt() + layer.bias
        else:
            x = layer(x)
    return x


def step(model, data, moments, gradient=lambda _name, g: g, others=()):
    """One step of SGD with weight decay, of the model and of other tensors."""
    x, y = data
    model.zero_grad()
    functional.cross_entropy(outputs(model, x, moments), y).backward()
    with torch.no_grad():
        for name, w in model.named_parameters():
            w.sub_(by_hand.LR * (gradient(name, w.grad) + by_hand.DECAY * w))
        for w in others:
            w.sub_(by_hand.LR * (w.grad + by_hand.DECAY * w))
            w.grad = None


def union(model, clients):
    """Each layer's moments over all clients' samples, layers below at rest at theirs."""
    x, found = torch.cat([x for x, _ in clients]), {}

    def moments(name, mu, var):
        found[name] = mu, var
        return mu, var

    with torch.no_grad():
        outputs(copy.deepcopy(model), x, moments)
    return found


def largest(one, other):
    """Largest difference of two states of layers."""
    assert one.keys() == other.keys()
    return max(
        float((a - b).abs().max()) for n in one for a, b in zip(one[n], other[n], strict=True)
    )


def close(one, other, atol=1e-12):
    """Require that two states of layers are equal to rounding."""
    torch.testing.assert_close(dict(one), dict(other), atol=atol, rtol=0)
