"""A task whose clients' updates are known beforehand: the loss is linear in one row of weights.

Client i's loss is i² (x · w_0), from i = 0, so one step moves w_0 by -η i² x, and w_1 by nothing.
"""

from __future__ import annotations

import torch
from torch import nn

import securefl
from securefl.build.simulation import simulated
from securefl.types import Kind

CLIP = 0.5


def steep_loss(output, y):
    return (output[:, 0] * y).mean()


def steep_task(n_clients, width):
    """So many clients with ‖Δ_i‖ = η i², in float64; 2 × width values."""
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(width, generator=rng, dtype=torch.float64)
    x = (x / x.norm()).expand(2, width)
    model = nn.Linear(width, 2, bias=False).double()
    nn.init.zeros_(model.weight)
    clients = [(x, torch.full((2,), i * i)) for i in range(n_clients)]
    return securefl.Task(model, clients, clients[0], steep_loss, metric="accuracy")


def steep_rounds(n_clients, width, *settings):
    """A run at client level that has not begun: σ = 1, and most clients move by more than C."""
    base = [
        "algorithm.name=fedavg",
        "algorithm.weights=uniform",
        "algorithm.local_steps=1",
        f"data.clients={n_clients}",
        f"train.lr={20 * CLIP / n_clients**2}",
        "train.lr_drops=[]",
        "run.rounds=100",
        "exchange.encrypt=none",
        "privacy.level=client",
        "privacy.noise=seeded",
        "privacy.sigma=1.0",
        f"privacy.clip={CLIP}",
        "privacy.colluders=0",
    ]
    config = securefl.load_config(None, [*base, *settings])
    return simulated(config, steep_task(n_clients, width))


def direction(rounds):
    """x, of length 1."""
    return rounds.parts.engine._trainer._clients.data["client-1"].take(torch.arange(1))[0][0]


def clipped_updates(rounds, present):
    """Σ clip(Δ_i, C) over the clients at these places, by hand."""
    lr = rounds.config.train.lr
    x = direction(rounds)
    length = sum(min(lr * i * i, CLIP) for i in present)
    return torch.stack([-length * x, torch.zeros_like(x)])


def opened_sum(rounds, present):
    """Σ of what the clients at these places send in the first round, as it is opened."""
    before, names = rounds._state, [f"client-{i + 1}" for i in present]
    rounds.parts.cards.holders(before, names)
    after = rounds.after(rounds.round_of(dict.fromkeys(names, 1), before))
    one, other = (s.tensors[Kind.PARAMETERS]["weight"] for s in (before, after))
    return (other - one) * len(present)
