"""Which passes a CUDA graph may stand in for; a GPU's own tests are in test_gpu_rounds."""

from __future__ import annotations

import pytest
import torch
from by_hand import task
from on_device import configured
from torch import nn
from torch.nn import functional

import securefl
from securefl.build.simulation import simulated
from securefl.models.build import build_model
from securefl.simulation import graphed
from securefl.simulation.graphed import GraphedPasses, may_be_captured, reason_against_graphs

X, Y = torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)


class _Own(nn.Module):
    def forward(self, x):
        return x


class _Faked:
    """Graph in whose place gradients of ones are left."""

    made = 0

    def __init__(self, model, _loss, _x, _y):
        type(self).made += 1
        self.gradients = [torch.ones_like(p) for p in model.parameters()]

    def replay(self, _x, _y):
        """Do nothing."""


@pytest.fixture
def passes(monkeypatch):
    monkeypatch.setattr(graphed, "_Graph", _Faked)
    monkeypatch.setattr(_Faked, "made", 0)
    return GraphedPasses(_model(), functional.cross_entropy)


def _model():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet20", "alexnet"])
def test_models_of_the_settings_are_captured(name):
    """All of their layers are known."""
    assert not reason_against_graphs(
        build_model(name, "batch", in_channels=3, n_features=64, n_classes=10)
    )


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (_Own(), "'1' is a _Own, which may do something else"),
        (nn.Dropout(0.5), "'1' draws at random"),
        (nn.BatchNorm1d(3, momentum=None), "'1' counts its batches"),
    ],
)
def test_layers_that_do_something_else_in_each_pass_are_not(layer, why):
    """A graph would do the same again and again."""
    assert why in reason_against_graphs(nn.Sequential(nn.Linear(3, 3), layer))


def test_a_loss_of_ones_own_is_not():
    """Torch's and ours are."""
    ours = functional.cross_entropy, nn.MSELoss(), securefl.cox_loss
    assert all(may_be_captured(loss) for loss in ours)
    assert not may_be_captured(lambda outputs, y: outputs.sum())


def test_a_shape_is_captured_when_it_comes_again(passes):
    """Once, and its gradients are those of each pass; a fifth shape is not."""
    model = passes._model
    assert [passes.replay(model, X, Y) for _ in range(3)] == [False, True, True]
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters())
    for n in (3, 2, 1, 5, 6):
        found = [passes.replay(model, X.new_zeros(n, 3), Y.new_zeros(n)) for _ in range(2)]
        assert found == [False, n in (3, 2, 1)]
    assert _Faked.made == graphed.MOST_GRAPHS == 4


def test_a_model_that_was_changed_for_a_while_is_not_replayed(passes):
    """Another forward, a hook, evaluation mode, a frozen parameter, another model."""
    model = passes._model
    for _ in range(2):
        passes.replay(model, X, Y)
    model[1].forward = model[1].forward
    assert not passes.replay(model, X, Y)
    del model[1].forward
    hook = model[0].register_forward_pre_hook(lambda *_: None)
    assert not passes.replay(model, X, Y)
    hook.remove()
    model[1].eval()
    assert not passes.replay(model, X, Y)
    model[1].train()
    model[0].weight.requires_grad_(requires_grad=False)
    assert not passes.replay(model, X, Y)
    model[0].weight.requires_grad_()
    assert not passes.replay(_model(), X, Y)
    assert passes.replay(model, X, Y)


def test_what_cannot_be_captured_is_tried_once(passes, monkeypatch):
    """A layer may wait for a value, and memory may be short."""

    def fails(*_):
        _Faked.made += 1
        raise torch.OutOfMemoryError

    monkeypatch.setattr(graphed, "_Graph", fails)
    assert not any(passes.replay(passes._model, X, Y) for _ in range(5))
    assert _Faked.made == 1


def test_without_a_gpu_nothing_is_captured():
    """A run on a CPU trains as ever."""
    run = simulated(configured("cpu", "run.engine=sequential"), task(), None, None)
    assert run.parts.engine._trainer._replay is None
    run.close()
