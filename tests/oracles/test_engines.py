"""Every engine makes the same models of the same seed: the whole grid of algorithms."""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import pytest
import torch
from by_hand import task

import securefl
from securefl.errors import ConfigError

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from combinations import MOMENTA, POLICIES, SERVERS, SOLVERS, reason

SMALL = (
    "run.rounds=3",
    "algorithm.local_steps=2",
    "train.batch_size=5",
    "train.lr=0.1",
    "train.weight_decay=0.01",
    "exchange.encrypt=none",
)


def trained(settings, engine, job=None):
    """What a run leaves, with the engine that it took in words."""
    config = securefl.load_config(None, [*SMALL, *settings, f"run.engine={engine}"])
    return securefl.run(config, job or task(sizes=(5, 9, 14, 8)))


def vector(model):
    return torch.cat([value.flatten().double() for value in model.state_dict().values()])


def require_same(settings, job=None):
    """Within the rounding of doubles, and with the same messages."""
    one, other = (trained(settings, engine, job) for engine in ("sequential", "vectorised"))
    torch.testing.assert_close(vector(one.model), vector(other.model), rtol=1e-9, atol=1e-10)
    assert [m.loss for m in one.metrics] == pytest.approx([m.loss for m in other.metrics], rel=1e-8)
    assert one.ledger.entries == other.ledger.entries


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_clients_side_by_side_end_where_they_end_one_by_one(policy, solver):
    """All normalisations and solvers, with every momentum; of the servers, clients know FedNova."""
    for beside in (*MOMENTA.values(), SERVERS["fednova"]):
        parts = POLICIES[policy], SOLVERS[solver], beside
        if any(reason(*pair) for pair in combinations(parts, 2)):
            continue
        settings = [setting for part in parts for setting in part]
        if solver == "moon":
            with pytest.raises(ConfigError, match='"sequential", or "auto"'):
                trained(settings, "vectorised")
        else:
            require_same(settings)
