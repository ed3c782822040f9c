"""Every data set of the catalogue trains with whatever goes with it, or is refused in words.

Samples are made: of the form, the targets and the domains that a data set's line tells. So the test
needs none of its files, and a line that is new is in it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from pairs import each, marked

import securefl
from securefl.data.catalogue import DATA_SETS, Inputs, Targets
from securefl.data.split import Split
from securefl.errors import ConfigError

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from combinations import DATA, WITH_DATA, reason

SMALL = (
    "run.rounds=1",
    "algorithm.name=fedavg",
    "algorithm.local_steps=1",
    "train.batch_size=4",
    "train.lr=0.01",
    "model.width=4",
    "exchange.encrypt=none",
)
SHAPES = {
    Inputs.IMAGES: (1, 16, 16),
    Inputs.READINGS: (6,),
    Inputs.VOLUMES: (1, 16, 16, 16),
}
N = 130
"""Samples of a domain; dealt ones are six times as many."""
OTHERS = {"here": "here", "there": "there"}
"""Domains where a folder alone would tell."""


def made(name, n):
    """Return samples of the form of a data set's line."""
    line, rng = DATA_SETS[name], torch.Generator().manual_seed(n)
    x = torch.rand(n, *SHAPES[line.inputs], generator=rng)
    numbers = torch.rand(n, 2, generator=rng)
    targets = {
        Targets.CLASSES: torch.arange(n) % 3,
        Targets.NUMBERS: numbers,
        Targets.SURVIVAL: torch.stack([1 + numbers[:, 0], torch.ones(n)], 1),
        Targets.MASKS: (x[:, 0] > 0.5).long(),
    }
    return x, targets[line.targets]


def read(data, seed):
    """Return what a reader would."""
    del seed
    x, y = made(data.dataset, 6 * N)
    if data.traits.by_domain:
        return dict.fromkeys(data.families or OTHERS, (x[:N], y[:N]))
    return Split(x[N:], y[N:], x[:N], y[:N])


def others(data):
    """Return the domains in a folder."""
    del data
    return OTHERS


AXES = DATA, WITH_DATA


@pytest.mark.parametrize(("name", "beside"), marked(product(*AXES), each(AXES, product(*AXES))))
def test_every_data_set_goes_with_what_the_page_says(name, beside, monkeypatch):
    """Its clients train, its domains each as one, and are scored by its metric."""
    line = DATA_SETS[name]
    own = replace(line, reader=f"{__name__}:read", listed=line.listed and f"{__name__}:others")
    monkeypatch.setitem(DATA_SETS, name, own)
    settings = [*SMALL, *DATA[name], *WITH_DATA[beside]]
    if reason(DATA[name], WITH_DATA[beside]):
        with pytest.raises(ConfigError):
            securefl.load_config(None, settings)
        return
    config = securefl.load_config(None, settings)
    result = securefl.run(config)
    assert not result.incidents
    assert all(torch.isfinite(value).all() for value in result.model.state_dict().values())
    clients = {entry.sender for entry in result.ledger.entries} - {"server"}
    by_domain = config.data.families or OTHERS
    assert len(clients) == (len(by_domain) if line.by_domain else config.data.clients)
