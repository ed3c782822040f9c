"""Clients that train on another device: what crosses does so once a round, and not step by step."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from by_hand import task
from elsewhere import ELSEWHERE, ENGINES, crossings
from on_device import memcpys
from side_by_side import ALONE
from torch import nn

import securefl
from securefl.evaluation import evaluator as evaluator_module
from securefl.evaluation.evaluator import Evaluator
from securefl.runs.checkpoint import Checkpoint
from securefl.types import ClientState, Kind, State

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from combinations import MOMENTA, POLICIES, SERVERS, SOLVERS

SIZES = (40, 40, 34)
"""Two passes of 16 steps of 2, and one more, are within one permutation of each."""


def copies(job, engine, steps, *chosen):
    fixed = ("run.engine=sequential", "train.batch_size=2", "exchange.encrypt=none")
    config = securefl.load_config(None, [*fixed, f"algorithm.local_steps={steps}", *chosen])
    return crossings(config, job, engine)


def require_no_more(engine, *chosen, job=None):
    """For four times as many steps."""
    few, many = (copies(job or task(sizes=SIZES), engine, n, *chosen) for n in (1, 4))
    assert len(many) == len(few)
    return few


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", POLICIES)
def test_more_steps_cross_no_more_often(policy, engine):
    """Nor does any of them wait for a value."""
    require_no_more(engine, *POLICIES[policy])


@pytest.mark.parametrize("policy", ["fedavg", "fedtan", "static-bn"])
def test_nor_do_those_of_padded_batches(policy, monkeypatch):
    """Which samples are present is the same at each step."""
    monkeypatch.setattr(
        "securefl.simulation.stacked.engine.require_padded", lambda *_: None
    )  # of values
    short = (*POLICIES[policy], "train.batch_size=17")
    few, many = (copies(task(sizes=(15, 11, 9)), "vectorised", n, *short) for n in (1, 4))
    assert len(many) == len(few) + 3  # a permutation for each step


OTHERS = [
    *(SOLVERS[name] for name in SOLVERS if name != "sgd"),
    *MOMENTA.values(),
    SERVERS["fednova"],
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("beside", OTHERS, ids=lambda of: of[-1])
@pytest.mark.full
def test_nor_do_those_of_another_solver_or_with_momentum(beside, engine):
    """Second rounds, when clients remember."""
    if engine == "vectorised" and beside in [SOLVERS[name] for name in ALONE & SOLVERS.keys()]:
        pytest.skip("one by one")
    require_no_more(engine, "algorithm.name=fedavg", *beside)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["cnn", pytest.param("resnet20", marks=pytest.mark.full)])
def test_nor_do_those_of_convolutions(name, engine):
    """With FedTAN, whose first step asks for sums."""
    require_no_more(engine, "algorithm.name=fedtan", job=task(name, sizes=SIZES[:2]))


def test_a_permutation_of_all_clients_side_by_side_crosses_at_once():
    """One by one, each client's."""
    chosen = ("algorithm.name=fedavg",)
    assert len(require_no_more("vectorised", *chosen)) == 1
    assert len(require_no_more("sequential", *chosen)) == len(SIZES)


def test_clients_of_other_shapes_do_not_cross_step_by_step_either():
    """Which are in no one tensor of all samples."""
    job = task(sizes=SIZES)
    clients = [(x, y) if i else (x.float(), y) for i, (x, y) in enumerate(job.clients)]
    model = nn.Sequential(Doubles(), *job.model)
    require_no_more(
        "vectorised", "algorithm.name=fedavg", job=replace(job, model=model, clients=clients)
    )


class Doubles(nn.Module):
    """Makes them of whatever it gets."""

    def forward(self, x):
        return x.double()


def test_what_a_run_goes_on_from_is_where_the_run_is():
    """A file's tensors are on the CPU; what is on the CPU in the run stays there."""

    def state(device):
        w = {"w": torch.zeros(2, device=device)}
        kinds = {Kind.PARAMETERS: w, Kind.CLIPPING: {"parameters": torch.zeros(())}}
        return State(3, kinds, {"m": torch.zeros(2, device=device)})

    client_state = ClientState(own={"w": torch.zeros(2)}, solver={"c": torch.zeros(2)})
    found = Checkpoint(state("cpu"), {"client-1": client_state}).beside(state(ELSEWHERE))
    kept = found.client_states["client-1"]
    assert found.state.tensors[Kind.PARAMETERS]["w"].device == ELSEWHERE
    assert found.state.tensors[Kind.CLIPPING]["parameters"].device.type == "cpu"
    assert {v.device for v in (found.state.private["m"], kept.own["w"], kept.solver["c"])} == {
        ELSEWHERE
    }


def test_test_data_cross_once_and_not_every_round(monkeypatch):
    """Each client's own as well."""
    monkeypatch.setattr(evaluator_module, "tried", lambda *_: {})
    job = task()
    job = replace(job, model=job.model.to(ELSEWHERE), client_tests=job.clients, metric="accuracy")
    evaluator = Evaluator(job, [str(i) for i in range(len(job.clients))])
    assert {of.x.device for of in (evaluator._common, *evaluator._own.values())} == {ELSEWHERE}


def test_what_a_profiler_saw_is_counted_by_direction():
    """Names as torch's profiler gives them; copies within the GPU and their calls do not count."""
    names = [
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy DtoH (Device -> Pageable)",
        "Memcpy DtoD (Device -> Device)",
        "cudaMemcpyAsync",
        "aten::copy_",
        "Memset (Device)",
    ]
    assert memcpys(names) == {"HtoD": 2, "DtoH": 1}
