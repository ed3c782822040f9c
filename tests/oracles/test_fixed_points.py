"""Solvers that correct drift end at the minimiser, where a random half of the clients train.

Six quadratics f_i(w) = ½ (w - b_i)ᵀ A_i (w - b_i), full batches, in float64. Gradients are put in
by hand, so that thousands of rounds take seconds; all else is the library's.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from securefl.algorithms.federated import Federated
from securefl.algorithms.participation import Aggregation, Participating
from securefl.algorithms.servers.average import Average
from securefl.algorithms.servers.drift import DriftServer
from securefl.algorithms.solvers.feddc import FedDC
from securefl.algorithms.solvers.feddyn import FedDyn
from securefl.algorithms.solvers.scaffold import Scaffold
from securefl.algorithms.solvers.solver import Start
from securefl.types import ClientState, Kind, Total

N, DIM, STEPS, LR = 6, 3, 2, 0.2
WEIGHTS = {"uniform": [1 / 8] * N, "samples": [n / 64 for n in (3, 5, 8, 11, 14, 20)]}
"""As clients send them: neither adds up to one."""


class Point(nn.Module):
    """A model that is one vector."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.full((DIM,), 3.0, dtype=torch.float64))


def quadratics():
    rng = torch.Generator().manual_seed(1)
    for _ in range(N):
        root = torch.randn(DIM, DIM, generator=rng, dtype=torch.float64)
        a = root @ root.T / DIM + 0.5 * torch.eye(DIM, dtype=torch.float64)
        yield a, torch.randn(DIM, generator=rng, dtype=torch.float64)


def trained(solver, quadratic, state, kept):
    """One client's round, and what it keeps."""
    (a, b), model = quadratic, Point()
    model.w.data.copy_(state.tensors[Kind.PARAMETERS]["w"])

    def gradient(around, beside):
        model.w.grad = a @ (model.w.detach() - b)

    work = SimpleNamespace(client_state=ClientState(solver=kept), local_steps=STEPS)
    origin, control = state.tensors[Kind.PARAMETERS], state.tensors.get(Kind.CONTROL, {})
    session = solver.begin(Start(work, {"w": model.w}, origin, control, gradient))
    for _ in range(STEPS):
        session.gradients(None)
        model.w.data.sub_(model.w.grad, alpha=LR)
    return session.end()


def errors(solver, server, weights, rounds):
    """Distance to the minimiser of Σ p_i f_i after each round; three of six clients at random."""
    clients, p = list(quadratics()), torch.tensor(weights, dtype=torch.float64)
    best = torch.linalg.solve(
        sum(share * a for share, (a, _) in zip(p, clients, strict=True)),
        sum(share * a @ b for share, (a, b) in zip(p, clients, strict=True)),
    )
    inner = Federated(solver=solver, server=server)
    algorithm = Participating(inner, N, sum(weights), Aggregation.PARTIAL)
    state, kept, rng = algorithm.init(Point()), [{}] * N, torch.Generator().manual_seed(0)
    found = []
    for _ in range(rounds):
        chosen = torch.randperm(N, generator=rng)[: N // 2].tolist()
        ends = [trained(solver, clients[i], state, kept[i]) for i in chosen]
        for i, end in zip(chosen, ends, strict=True):
            kept[i] = end.client_state
        weight = sum(weights[i] for i in chosen)
        sent = {Kind.PARAMETERS: [end.parameters["w"] for end in ends]}
        if ends[0].control:
            sent[Kind.CONTROL] = [end.control["w"] for end in ends]
        totals = {
            kind: Total(
                {"w": sum(weights[i] * v for i, v in zip(chosen, values, strict=True)) / weight},
                weight,
                len(chosen),
            )
            for kind, values in sent.items()
        }
        state = algorithm.update(state, totals)
        found.append(float((state.tensors[Kind.PARAMETERS]["w"] - best).norm()))
    return found


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(
    ("solver", "server"),
    [
        (Scaffold(), Average()),
        (FedDyn(alpha=1.0), DriftServer()),
        (FedDC(alpha=1.0), DriftServer()),
        (FedDC(alpha=0.1), DriftServer()),
    ],
    ids=["scaffold", "feddyn", "feddc", "feddc-0.1"],
)
def test_a_random_half_ends_at_the_minimiser_of_the_whole_loss(solver, server, weights):
    """After 400 rounds w̄ is where Σ p_i f_i is least, to 1e-9, with equal weights and unequal."""
    assert errors(solver, server, WEIGHTS[weights], 400)[-1] < 1e-9


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("alpha", [1.0, 0.1])
@pytest.mark.parametrize("rounds", [2000, pytest.param(4000, marks=pytest.mark.full)])
def test_feddc_stays_there(alpha, weights, rounds):
    """Over thousands of rounds nothing builds up: the last 1000 are all within 1e-12."""
    assert max(errors(FedDC(alpha=alpha), DriftServer(), WEIGHTS[weights], rounds)[-1000:]) < 1e-12
