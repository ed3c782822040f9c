"""A task whose every solver has a closed form: least squares on full batches, in float64.

Client i's loss is f_i(w) = ½ tr (w - b_i)ᵀ A_i (w - b_i) + const, with w the transpose of the
weight, A_i = XᵀX / n and b_i its least-squares fit to the labels' unit vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import securefl

SIZES = (9, 20, 14)
N_FEATURES, N_CLASSES = 3, 4
IDENTITY = torch.eye(N_FEATURES, dtype=torch.float64)


@dataclass
class Quadratic:
    """One client's f_i and its share."""

    a: torch.Tensor
    b: torch.Tensor
    p: float


def least_squares(output, y):
    target = functional.one_hot(y, output.shape[1]).to(output.dtype)
    return (output - target).square().sum() / (2 * len(y))


def task():
    rng = torch.Generator().manual_seed(2)
    model = nn.Linear(N_FEATURES, N_CLASSES, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.randn(N_CLASSES, N_FEATURES, generator=rng, dtype=torch.float64))
    clients = []
    for i, n in enumerate(SIZES):
        x = torch.randn(n, N_FEATURES, generator=rng, dtype=torch.float64) * (0.7 + 0.3 * i) + 0.5
        clients.append((x, torch.randint(N_CLASSES, (n,), generator=rng)))
    return securefl.Task(model, clients, clients[0], least_squares, metric="accuracy")


def quadratics(job):
    for x, y in job.clients:
        a = x.T @ x / len(y)
        target = functional.one_hot(y, N_CLASSES).double()
        b = torch.linalg.solve(a, x.T @ target / len(y))
        yield Quadratic(a, b, len(y) / sum(SIZES))


def run(*settings, rounds, steps, lr):
    """The last global w of a run with these settings."""
    config = securefl.load_config(
        None,
        [
            "algorithm.name=fedavg",
            "exchange.encrypt=none",
            "train.batch_size=32",
            "train.lr_drops=[]",
            f"run.rounds={rounds}",
            f"algorithm.local_steps={steps}",
            f"train.lr={lr}",
            *settings,
        ],
    )
    return securefl.run(config, task()).model.weight.detach().T


def descend(w, hessian, pull, steps, lr):
    """Where `steps` of gradient descent along `hessian` w - `pull` end: in closed form."""
    minimiser = torch.linalg.solve(hessian, pull)
    contraction = torch.linalg.matrix_power(IDENTITY - lr * hessian, steps)
    return minimiser + contraction @ (w - minimiser)


def minimiser(clients):
    """Of Σ p_i f_i."""
    return torch.linalg.solve(
        sum(c.p * c.a for c in clients), sum(c.p * c.a @ c.b for c in clients)
    )


def fedavg_fixed_point(clients, steps, lr):
    """Where w̄ = Σ p_i w_i, with w_i - b_i = (I - ηA_i)^K (w̄ - b_i)."""
    moves = [
        c.p * (IDENTITY - torch.linalg.matrix_power(IDENTITY - lr * c.a, steps)) for c in clients
    ]
    pulls = [move @ c.b for move, c in zip(moves, clients, strict=True)]
    return torch.linalg.solve(sum(moves), sum(pulls))
