"""On a GPU, runs end where they end on the CPU.

Without a GPU, `SECUREFL_TEST_DEVICE=cpu pytest -m gpu` tries the tests themselves.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from by_hand import single, task
from on_device import configured, require_rounded_alone, require_same, trained
from side_by_side import ALONE, vector
from torch import nn

import securefl
from securefl.build.simulation import simulated
from securefl.runs.checkpoint import Checkpoint

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from combinations import FNR, MOMENTA, POLICIES, PRIVACY, SELECTIONS, SERVERS, SOLVERS, reason

DEVICE = os.environ.get("SECUREFL_TEST_DEVICE", "cuda")
ENGINES = ("sequential", "vectorised")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="no GPU"),
    # Once, of autograd's own thread, which gets what it needs.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]


def clients():
    return task(sizes=(5, 9, 14, 8))


@cache
def on_cpu(*settings):
    """One by one, which other tests hold against formulas."""
    return trained("cpu", clients(), *settings, "run.engine=sequential")


def require_alike(*settings, job=None, engines=ENGINES):
    one = trained("cpu", job, *settings, "run.engine=sequential") if job else on_cpu(*settings)
    for engine in engines:
        other = trained(DEVICE, job or clients(), *settings, f"run.engine={engine}")
        assert {v.device.type for v in other.model.state_dict().values()} == {DEVICE}
        require_same(one, other)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_all_normalisations_and_solvers_end_alike(policy, solver):
    """With each engine that takes them."""
    if reason(POLICIES[policy], SOLVERS[solver]):
        pytest.skip("refused together")
    engines = ENGINES[:1] if {policy, solver} & ALONE else ENGINES
    require_alike(*POLICIES[policy], *SOLVERS[solver], engines=engines)


@pytest.fixture
def without_tf32(monkeypatch):
    """Convolutions with all of float32's digits, as matrix products have them unasked."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.usefixtures("without_tf32")
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_all_end_alike_in_float32(policy, solver):
    """But for its rounding."""
    if reason(POLICIES[policy], SOLVERS[solver]):
        pytest.skip("refused together")
    settings = (*POLICIES[policy], *SOLVERS[solver])
    for engine in ENGINES[:1] if {policy, solver} & ALONE else ENGINES:
        other = trained(DEVICE, single(clients()), *settings, f"run.engine={engine}")
        require_rounded_alone(on_cpu(*settings), other)


FORMS = {
    "sgd": (),
    "momentum": ("train.momentum=0.9", "train.momentum_between_rounds=average"),
    "scaffold": ("solver.name=scaffold",),
    "padded batches": ("train.batch_size=10",),
    "unequal steps": ("algorithm.local_epochs=2",),
}
"""Settings by what lies in the layout of the weights beside them, or is in their batches."""


@pytest.mark.usefixtures("without_tf32")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedtan"])
def test_convolutions_end_alike_in_float32(algorithm, form, engine):
    """With kernels that GPU and CPU have each their own of."""
    job, settings = task("cnn", width=8), (f"algorithm.name={algorithm}", *FORMS[form])
    if reason(settings):
        pytest.skip("refused together")
    exact = trained("cpu", job, *settings, "run.engine=sequential")
    other = trained(DEVICE, single(job), *settings, f"run.engine={engine}")
    require_rounded_alone(exact, other)


@pytest.mark.parametrize("policy", ["fedavg", "fedbn", "fedtan"])
@pytest.mark.parametrize("momentum", MOMENTA)
def test_momentum_ends_alike(momentum, policy):
    """Kept by a client, averaged, or begun anew."""
    require_alike(*POLICIES[policy], *MOMENTA[momentum])


@pytest.mark.parametrize("server", SERVERS)
def test_server_optimisers_end_alike(server):
    """They step where the model is."""
    require_alike(*POLICIES["fedavg"], *SERVERS[server])


@pytest.mark.parametrize("norm", ["batch", "group", "layer", "instance", "group-ws", "scaled-ws"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedtan"])
def test_convolutions_end_alike(algorithm, norm):
    """Side by side they are in groups."""
    if algorithm == "fedtan" and norm != "batch":
        pytest.skip("needs BN")
    require_alike(f"algorithm.name={algorithm}", job=task("cnn", norm, width=8))


def test_a_residual_network_ends_alike():
    """Whose shortcuts pad channels."""
    job = task("resnet20", sizes=(5, 6, 7))
    require_alike("algorithm.name=fedtan", "run.rounds=1", job=job)


@pytest.mark.parametrize("name", [name for name in SELECTIONS if name != "all"])
def test_selections_end_alike(name):
    """Scores of losses and profiles are the same but for rounding, and so is who takes part."""
    x, y = task(sizes=(40,)).clients[0]
    job = task(sizes=(5, 9, 14, 8, 6), public=(x + 1, y))
    chosen = [*SELECTIONS[name], "selection.fraction=0.6", "algorithm.name=fedavg"]
    if reason(tuple(chosen)):
        pytest.skip("needs more")
    require_alike(*chosen, "run.rounds=5", job=job)


@pytest.mark.parametrize("name", [name for name in FNR if name != "none"])
def test_fnr_ends_alike(name):
    """Refinement is of public samples, and its counts are on the CPU."""
    x, y = task(sizes=(40,)).clients[0]
    job = task(sizes=(24, 30, 36, 24), public=(x + 1, y))
    settings = ("algorithm.name=fedavg", *FNR[name], "fnr.batch_size=16", "train.lr=0.01")
    require_alike(*settings, job=job, engines=ENGINES[:1])


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize(
    ("level", "more"),
    [
        ("record", ("algorithm.name=fixbn",)),
        ("record", ("algorithm.name=fixbn", "privacy.clipping=per-layer")),
        ("record", ("algorithm.name=fixbn", "privacy.clipping=ghost")),
        ("client", ("algorithm.name=fedavg",)),
    ],
    ids=lambda of: of if isinstance(of, str) else of[-1],
)
def test_private_training_ends_alike(level, more):
    """Noise and samples are drawn on the CPU, so that one seed has the same everywhere."""
    noise = ("privacy.noise=seeded", "privacy.sigma=1.0", "run.rounds=2")
    job = task(sizes=(120, 110, 104, 100))
    require_alike(*more, *PRIVACY[level], *noise, job=job, engines=("sequential",))


@pytest.mark.parametrize("policy", ["fedavg", "fedtan", "fedbn"])
def test_a_worker_on_the_gpu_ends_alike(policy):
    """What it is sent arrives in its GPU's memory."""
    job, beside = clients(), SOLVERS["sgd" if policy == "fedtan" else "scaffold"]
    one = on_cpu(*POLICIES[policy], *beside)
    more = ("run.engine=parallel", "run.workers=1")
    require_same(one, trained(DEVICE, job, *POLICIES[policy], *beside, *more))


def test_a_run_goes_on_from_a_file_on_the_gpu(tmp_path):
    """What solver, server and clients have kept is where the model is."""
    settings = (*POLICIES["fedbn"], *SOLVERS["scaffold"], *SERVERS["fedadam"])
    config = configured(DEVICE, *settings, "run.rounds=4", "run.engine=sequential")
    one, other = (simulated(config, clients(), None, None) for _ in range(2))
    one.step()
    path = tmp_path / "checkpoint"
    path.write_bytes(Checkpoint(one.state, one.parts.engine.client_states).to_bytes())
    other.go_back_to(Checkpoint.read(path))
    for run in (one, other):
        run.step()
        run.step()
    torch.testing.assert_close(vector(one._model), vector(other._model), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedtan"])
def test_what_dropout_draws_follows_the_seed(algorithm):
    """A GPU draws other masks than a CPU; torch's own generators go on as if nothing were drawn."""
    layers = nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)
    job = securefl.Task(nn.Sequential(*layers).double(), clients().clients, clients().test)
    before = _drawn()
    settings = (f"algorithm.name={algorithm}", "run.engine=sequential")
    one, other, third = (trained(DEVICE, job, *settings, f"run.seed={seed}") for seed in (1, 1, 2))
    assert torch.equal(before, _drawn())
    torch.testing.assert_close(vector(one.model), vector(other.model), rtol=1e-7, atol=1e-9)
    assert not torch.allclose(vector(one.model), vector(third.model))


def _drawn():
    """Where torch's own generator of the device is."""
    return torch.cuda.get_rng_state() if DEVICE == "cuda" else torch.get_rng_state()
