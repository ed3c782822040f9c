"""How rounds are on a GPU: what crosses to it, how coarse bfloat16 is, that FedTAN does not hang.

As `test_gpu`, `SECUREFL_TEST_DEVICE=cpu pytest -m gpu` tries the tests themselves.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from by_hand import task
from on_device import configured, copies_of_a_round, require_same
from on_device import trained as trained_on
from test_precision import COARSE, far, single, trained
from torch import nn

import securefl
from securefl.build.simulation import simulated
from securefl.evaluation.evaluator import Evaluator
from securefl.simulation import graphed
from securefl.simulation.stacked.model import stacked
from securefl.simulation.workspace import Workspace

DEVICE = os.environ.get("SECUREFL_TEST_DEVICE", "cuda")
ENGINES = ("sequential", "vectorised")
PATIENCE_S = 120

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="no GPU"),
    # Once, of autograd's own thread, which gets what it needs.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
    pytest.mark.filterwarnings("ignore:.*[Pp]rofiler"),
]


@pytest.mark.parametrize("engine", ENGINES)
def test_fedtan_does_not_wait_for_ever(engine):
    """In its backward pass clients wait for each other; whoever hangs is given up."""
    script = Path(__file__).with_name("fedtan_on_device.py")
    command = [sys.executable, str(script), DEVICE, engine]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0


WAYS = {
    "sgd": (),
    "momentum": ("train.momentum=0.9",),
    "scaffold": ("solver.name=scaffold",),
    "fedprox": ("solver.name=fedprox",),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("way", WAYS)
def test_more_steps_are_copied_no_more_often(way, name, engine):
    """Within one permutation of the samples: 4 steps of 2, and 16."""
    few, many = (
        copies_of_a_round(
            DEVICE,
            task(name, sizes=(40, 36, 40)),
            "algorithm.name=fedavg",
            f"run.engine={engine}",
            "train.batch_size=2",
            f"algorithm.local_steps={steps}",
            *WAYS[way],
        )
        for steps in (4, 16)
    )
    assert few == many
    assert DEVICE != "cuda" or few["HtoD"] >= 1 <= few["DtoH"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedtan"])
def test_graphs_stand_in_for_passes(algorithm, engine, monkeypatch):
    """From a shape's second batch on; not in FedTAN's first step, nor where its clients wait."""
    replayed = []
    replay = graphed.GraphedPasses.replay
    monkeypatch.setattr(
        graphed.GraphedPasses, "replay", lambda *of: replayed.append(replay(*of)) or replayed[-1]
    )
    settings = (f"algorithm.name={algorithm}", "algorithm.local_steps=3", f"run.engine={engine}")
    run = simulated(configured(DEVICE, *settings), task(sizes=(8, 8, 8)), None, None)
    run.step()
    run.step()
    n_clients = 3 if engine == "sequential" else 1
    n_steps = 2 * n_clients * (3 if algorithm == "fedavg" else 2)
    if DEVICE != "cuda" or (algorithm, engine) == ("fedtan", "sequential"):
        n_steps = 0
    assert replayed == [False][:n_steps] + [True] * (n_steps - 1)
    run.close()


@pytest.mark.parametrize(("width", "laid_out"), [(8, True), (4, False)])
def test_channels_that_fill_tensor_cores_are_last(width, laid_out):
    """Side by side, of models that have a multiple of eight in each convolution."""
    model = stacked(task("cnn", width=width).model.float().to(DEVICE), 3)
    layers = [of for of in Workspace(model, 3).model.modules() if isinstance(of, nn.Conv2d)]
    is_last = layers[-1].weight.is_contiguous(memory_format=torch.channels_last)
    assert is_last is (laid_out and DEVICE == "cuda")


def test_a_layer_that_waits_for_a_value_is_trained_as_ever():
    """It cannot be captured, and nothing of the attempt is left."""
    job = task(sizes=(8, 9, 8))
    plain, waiting = job.model, copy.deepcopy(job.model)
    waiting[2].__class__ = type("Waiting", (nn.ReLU,), {"forward": _waiting})
    waiting[2].__class__.__module__ = "securefl.models.waiting"
    settings = ("algorithm.name=fedavg", "run.engine=sequential")
    one, other = (
        trained_on(DEVICE, securefl.Task(model, job.clients, job.test), *settings)
        for model in (plain, waiting)
    )
    require_same(one, other)


def _waiting(layer, x):
    del layer
    return torch.relu(x) if x.abs().max().item() >= 0 else x


@pytest.mark.parametrize("engine", ENGINES)
def test_samples_are_in_the_gpus_memory_before_the_first_round(engine):
    """Those to train with, and those to test on."""
    config = configured(DEVICE, "algorithm.name=fedavg", f"run.engine={engine}")
    rounds = simulated(config, task(), None, None)
    parts = rounds.parts
    tests = Evaluator(parts.task, parts.participation.clients)
    held = [*parts.engine._trainer._clients.data.values(), tests._common]
    assert {values.device.type for of in held for values in (of.x, of.y)} == {DEVICE}
    rounds.close()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedtan", "fixbn", "fedbn"])
def test_a_coarse_run_ends_beside_the_exact_one(algorithm, engine, name):
    """Other than it, and no further than rounding takes it."""
    settings = (f"algorithm.name={algorithm}", f"run.engine={engine}", f"run.device={DEVICE}")
    exact, coarse = trained(single(name), *settings), trained(single(name), *settings, COARSE)
    assert {value.dtype for value in coarse.model.parameters()} == {torch.float32}
    assert 0 < far(exact, coarse) < 10
    assert not coarse.incidents
