"""BN layers of an uncommon make: without β, without statistics, never called."""

from __future__ import annotations

import copy

import pytest
import torch
from by_hand import averaged, config
from by_hand import task as by_hand_task
from torch import nn

import securefl
from securefl.errors import DataError
from securefl.norms.adapted import adapted_batch_norm
from securefl.norms.frozen import at_rest_twin, frozen_batch_norm
from securefl.privacy.gradients import per_sample_gradients
from securefl.types import Freeze

pytestmark = pytest.mark.shapes

ENGINES = ["sequential", "vectorised"]
ALGORITHMS = {
    "fedtan": [],
    "fused": ["algorithm.name=fedtan", "algorithm.moments=fused"],
    "fedtan-ii": ["algorithm.switch=1"],
    "forward-only": [],
    "fixbn": ["algorithm.switch=1"],
    "both": ["algorithm.name=fixbn", "algorithm.switch=1", "algorithm.freeze=both"],
    "static-bn": [],
}


class WithoutShift(nn.BatchNorm1d):
    """A layer as torch 2.12 makes it with `bias=False`, in any version."""

    def __init__(self, n):
        super().__init__(n)
        self.register_parameter("bias", None)


class Beside(nn.Module):
    """A layer that no pass calls stands beside one that is called."""

    def __init__(self, n):
        super().__init__()
        self.called, self.never = nn.BatchNorm1d(n), nn.BatchNorm1d(n)

    def forward(self, y):
        return self.called(y)


def model_with(layer):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(12, 6), layer, nn.Tanh(), nn.Linear(6, 4)).double()


def run(layer, name, engine, rounds=2):
    chosen = [] if "algorithm.name" in str(ALGORITHMS.get(name)) else [f"algorithm.name={name}"]
    beside = [*chosen, *ALGORITHMS.get(name, []), "algorithm.local_steps=2"]
    settings = config(*beside, f"run.engine={engine}", "train.weight_decay=0.0", rounds=rounds)
    job = by_hand_task()
    return securefl.run(settings, securefl.Task(model_with(layer), job.clients, job.test)).model


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_layer_without_a_shift_is_one_whose_shift_stays_zero(name, engine):
    """BN(bias=False) trains as BN with β = 0 that does not learn, one client at a time or all."""
    fixed = nn.BatchNorm1d(6)
    fixed.bias.requires_grad_(False)
    one, other = (run(layer, name, engine) for layer in (WithoutShift(6), fixed))
    found, expected = averaged(one), averaged(other)
    assert torch.equal(expected.pop("1.bias"), torch.zeros(6, dtype=torch.float64))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_layer_without_a_shift_is_adapted_frozen_and_private():
    """UniFed's test-time BN, BN at rest and the gradients of single records need no β."""
    x = torch.randn(5, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.arange(5) % 4
    bare, whole = model_with(WithoutShift(6)), model_with(nn.BatchNorm1d(6))
    outputs = []
    for model in (bare, whole):
        with adapted_batch_norm(model, 0.9):
            adapted = model(x)
        with frozen_batch_norm(model, Freeze.STATISTICS):
            frozen = model(x)
        twin = at_rest_twin(model)
        gradients = per_sample_gradients(twin, x, y, nn.functional.cross_entropy)
        outputs.append([adapted, frozen, twin(x), gradients["1.1.weight"]])
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-15)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layer", [Beside(6), nn.BatchNorm1d(6, track_running_stats=False)])
def test_static_bn_leaves_out_what_has_no_statistics_or_is_never_called(layer, engine):
    """The run ends; a layer that no pass calls has no statistics of its own to send."""
    before = copy.deepcopy(layer)
    model = run(layer, "static-bn", engine)
    assert all(torch.isfinite(value).all() for value in averaged(model).values())
    if isinstance(layer, Beside):
        assert torch.equal(model[1].never.running_var, before.never.running_var)


WINDOW = ("algorithm.name=fixbn", "algorithm.switch=window", "algorithm.window=2")


def test_a_window_of_layers_without_statistics_is_followed():
    """FixBN's window watches what layers get; a model that keeps no statistics has it, too."""
    without = nn.BatchNorm1d(6, track_running_stats=False)
    settings = config(*WINDOW, rounds=4)
    job = by_hand_task()
    found = securefl.run(settings, securefl.Task(model_with(without), job.clients, job.test))
    assert len(found.metrics) == 4


class Unused(nn.Module):
    """A BN layer that is never called."""

    def __init__(self):
        super().__init__()
        self.layer = nn.BatchNorm1d(6)

    def forward(self, y):
        return y


def test_a_window_needs_a_layer_that_is_called():
    """Where none is, there is nothing to settle, and the message says so."""
    settings = config(*WINDOW, rounds=4)
    job = by_hand_task()
    with pytest.raises(DataError, match="no BN layer of the model was called"):
        securefl.run(settings, securefl.Task(model_with(Unused()), job.clients, job.test))
