"""A model whose tensors lie in one vector is the model that it was, and is loaded by one copy."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from by_hand import task
from elsewhere import ELSEWHERE
from on_device import configured
from played import same_client_state
from side_by_side import vector
from torch import nn

import securefl
from securefl.algorithms.algorithm import averaged_tensors, snapshot
from securefl.algorithms.local_sgd import _walkable
from securefl.build.simulation import simulated
from securefl.errors import ValueRefused
from securefl.federation.client import Client
from securefl.models.build import build_model
from securefl.norms.frozen import at_rest_twin
from securefl.simulation import workspace
from securefl.simulation.workspace import ALIGNED, Workspace
from securefl.types import State

MODELS = [
    ("mlp", "batch"),
    ("mlp", "group-ws"),
    ("cnn", "scaled-ws"),
    ("cnn", "batch"),
    ("cnn", "instance"),
    ("resnet20", "batch"),
    ("resnet20", "fixup"),
    ("alexnet", "batch"),
]


def built(name, norm):
    width = 4 if name == "alexnet" else 8
    return build_model(name, norm, in_channels=3, n_features=12, n_classes=4, width=width)


class Odd(nn.Module):
    """Two types, a tied weight, a frozen one, a number, nothing, and buffers that share memory."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.exact = nn.Parameter(torch.ones(3, 2, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(7, dtype=torch.float64))
        self.register_buffer("nothing", torch.zeros(0))
        self.register_buffer("whole", torch.arange(6.0))
        self.register_buffer("tail", self.whole[3:])
        self.register_buffer("gaps", torch.arange(8.0)[::2])
        self.register_buffer("count", torch.tensor(0))


def state_of(model, seed=0):
    """Other values than the model's, as they come out of a sum: in no layout of their own."""
    rng = torch.Generator().manual_seed(seed)
    tensors = snapshot(averaged_tensors(model))
    drawn = {
        kind: {n: torch.randn(v.shape, generator=rng, dtype=v.dtype) for n, v in named.items()}
        for kind, named in tensors.items()
    }
    return State(0, drawn)


def require_loaded(workspace, state):
    for kind, named in averaged_tensors(workspace.model).items():
        for name, value in named.items():
            assert torch.equal(value, state.tensors[kind][name]), name


def storages(model):
    return {
        value.untyped_storage()
        for named in averaged_tensors(model).values()
        for value in named.values()
    }


@pytest.mark.parametrize("of", MODELS, ids="-".join)
def test_each_client_of_a_round_begins_with_the_state_tensor_by_tensor(of):
    """The first, the second, from which on it is one copy, and those behind them."""
    workspace = Workspace(built(*of))
    states = state_of(workspace.model, 1), state_of(workspace.model, 2)
    for state in (states[0], states[1], states[0]):
        for _ in range(4):
            workspace.load(state)
            require_loaded(workspace, state)
            with torch.no_grad():
                for parameter in workspace.model.parameters():
                    parameter.add_(1)  # it trains


@pytest.mark.parametrize("of", MODELS, ids="-".join)
def test_tensors_lie_in_one_vector_as_they_would_by_themselves(of):
    """The same strides, channels-last for convolutions, and each where torch may begin a tensor."""
    model = built(*of)
    placed = Workspace(model).model
    assert len(storages(placed)) == 1
    for kind, named in averaged_tensors(placed).items():
        for name, value in named.items():
            assert value.data_ptr() % ALIGNED == 0
            like = averaged_tensors(model)[kind][name]
            if like.dim() == 4:
                like = like.contiguous(memory_format=torch.channels_last)
            assert value.stride() == like.stride()
            assert torch.equal(value, like)
    assert all(map(_walkable, placed.parameters()))  # by the fused kernel


def test_whatever_a_model_is_made_of_is_loaded():
    """By type a vector; what shares memory or has gaps by itself."""
    workspace = Workspace(Odd())
    model = workspace.model
    assert len(storages(model)) == 2 + 2
    assert model.first.weight is model.second.weight
    assert [p.requires_grad for p in (model.frozen, model.scale, model.exact)] == [
        False,
        True,
        True,
    ]
    assert model.tail.untyped_storage().data_ptr() == model.whole.untyped_storage().data_ptr()
    state = state_of(model)
    for _ in range(3):
        model.count.add_(1)
        workspace.load(state)
        shown = averaged_tensors(model)
        assert shown.keys() == state.tensors.keys()
        for kind, named in shown.items():
            for name in named.keys() - {"whole", "tail"}:
                assert torch.equal(named[name], state.tensors[kind][name])
        assert model.whole[3:].equal(model.tail)
        assert model.count == 0
        assert model.frozen.equal(torch.ones(5))


def test_a_state_is_known_by_itself_and_not_by_its_values():
    """Another of the same values, or a changed copy of it, is loaded for what it is."""
    workspace = Workspace(built("mlp", "batch"))
    state = state_of(workspace.model)
    for _ in range(3):
        workspace.load(state)
    twin = copy.deepcopy(state)
    next(iter(twin.tensors.values()))["0.weight"].add_(1)
    for other in (twin, replace(state, round=1), state):
        workspace.load(other)
        require_loaded(workspace, other)


def test_a_place_keeps_no_state_alive():
    """One that will not be used again holds its own model and nothing of the round."""
    workspace = Workspace(built("mlp", "batch"))
    state = state_of(workspace.model)
    workspace.load(state)
    workspace.load(state)
    known = workspace._flat._state
    assert known() is state
    del state
    assert known() is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet20"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedbn", "fedtan"])
def test_clients_train_the_same_bits_wherever_their_tensors_lie(
    monkeypatch, algorithm, name, dtype
):
    """To the last, with momentum, weight decay and everything beside."""
    job = task(name, sizes=(5, 6, 7))
    job = securefl.Task(
        job.model.to(dtype),
        [(x.to(dtype), y) for x, y in job.clients],
        (job.test[0].to(dtype), job.test[1]),
    )
    chosen = f"algorithm.name={algorithm}", "train.momentum=0.9", "run.engine=sequential"
    config = configured("cpu", *chosen)
    flat = securefl.run(config, job)
    monkeypatch.setattr(workspace, "FlatTensors", lambda _model: None)
    apart = securefl.run(config, job)
    assert torch.equal(vector(flat.model), vector(apart.model))
    assert [m.loss for m in flat.metrics] == [m.loss for m in apart.metrics]


def test_copies_and_twins_of_the_model_are_as_ever():
    """A copy shares nothing with it, a twin at rest the tensors."""
    placed = Workspace(built("cnn", "batch")).model
    copied, twin = copy.deepcopy(placed), at_rest_twin(placed)
    before = vector(placed)
    with torch.no_grad():
        for value in (*copied.parameters(), *copied.buffers()):
            value.add_(1)
    assert torch.equal(vector(placed), before)
    assert {id(p) for p in twin.parameters()} == {id(p) for p in placed.parameters()}


def test_tensors_on_another_device_lie_in_a_vector_there():
    """Which is laid where the model is."""
    workspace = Workspace(built("cnn", "batch").to(ELSEWHERE))
    assert {of.device for of in workspace._flat._vectors} == {ELSEWHERE}
    assert len(storages(workspace.model)) == 1


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_a_refused_contribution_leaves_what_its_client_kept(monkeypatch, engine):
    """The next round begins where the last that counted has ended."""
    chosen = "algorithm.name=fedbn", "solver.name=scaffold", f"run.engine={engine}"
    rounds = simulated(configured("cpu", *chosen), task(sizes=(10, 10, 10)), None, None)
    rounds.step()
    client_states = rounds.parts.engine.client_states
    before = copy.deepcopy(dict(client_states))
    hand_over = Client.hand_over

    def refusing(client, *about):
        if client.name == "client-2":
            raise ValueRefused("a value")
        return hand_over(client, *about)

    monkeypatch.setattr(Client, "hand_over", refusing)
    assert rounds.step().dropped == ("client-2",)
    rounds.close()
    assert all(before[name].own and before[name].solver for name in client_states)
    assert {
        name for name in client_states if same_client_state(client_states[name], before[name])
    } == {"client-2"}


def test_what_looks_into_a_tensor_sees_it_still():
    """A plain attribute that is a view of a buffer: such a buffer stays where it is."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model.view = model[1].running_mean.view(2, 2)
    workspace = Workspace(model)
    state = State(0, snapshot(averaged_tensors(model)))
    for kind in state.tensors:
        for value in state.tensors[kind].values():
            value.fill_(7)
    for _ in range(3):
        workspace.load(state)
        assert torch.equal(workspace.model.view, torch.full((2, 2), 7.0))
