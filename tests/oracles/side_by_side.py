"""Runs by two engines, for tests that compare them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from by_hand import task

import securefl
from securefl.settings.axes import SOLVERS

ALONE = frozenset(name for name, kind in SOLVERS.own().items() if not kind.elementwise)
ALONE |= {"bn-scaffold", "fbn", "hbn"}
"""Solvers and normalisations whose clients train one after the other."""
SMALL = (
    "run.rounds=3",
    "algorithm.local_steps=2",
    "train.batch_size=5",
    "train.lr=0.1",
    "train.weight_decay=0.01",
    "exchange.encrypt=none",
)

REFINED = ("fnr.name=matched", "fnr.share=0.3", "fnr.strength=0.5", "fnr.epochs=2")


def with_public(job):
    """The same job with twenty public samples, of three of its four classes."""
    shape = job.clients[0][0].shape[1:]
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(20, *shape, generator=rng, dtype=torch.float64) * 1.5 + 0.7
    return replace(job, public=(x, torch.randint(3, (20,), generator=rng)))


def trained(settings, engine, job=None):
    """What a run leaves, with the engine that it took in words."""
    config = securefl.load_config(None, [*SMALL, *settings, f"run.engine={engine}"])
    return securefl.run(config, job or task(sizes=(5, 9, 14, 8)))


def vector(model):
    """All that a model holds, on the CPU."""
    return torch.cat([value.flatten().double().cpu() for value in model.state_dict().values()])


def require_same(settings, job=None):
    """Within the rounding of doubles, and with the same messages."""
    one, other = (trained(settings, engine, job) for engine in ("sequential", "vectorised"))
    torch.testing.assert_close(vector(one.model), vector(other.model), rtol=1e-9, atol=1e-10)
    assert [m.loss for m in one.metrics] == pytest.approx([m.loss for m in other.metrics], rel=1e-8)
    assert Counter(one.ledger.entries) == Counter(other.ledger.entries)
