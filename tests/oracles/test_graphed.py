"""Which passes a CUDA graph may stand in for; a GPU's own tests are in test_gpu_rounds."""

from __future__ import annotations

from functools import partial

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
from securefl.simulation.stacked.batches import BlockLoss


class _Own(nn.Module):
    def forward(self, x):
        return x


class _Faked:
    """Graph that takes the pass when it is replayed, by the constants of its capture."""

    made = 0

    def __init__(self, model, loss, _x, _y):
        type(self).made += 1
        self.model, self.loss = model, loss

    def gradients(self, x, y):
        parameters = list(self.model.parameters())
        return torch.autograd.grad(self.loss(self.model(x), y), parameters)


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
    model = build_model(name, "batch", in_channels=3, n_features=64, n_classes=10)
    assert not reason_against_graphs(model)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (_Own(), "the model is a _Own, which may do something else"),
        (nn.Sequential(_Own()), "'0' is a _Own"),
        (nn.Sequential(nn.Dropout(0.5)), "'0' draws at random"),
        (nn.Sequential(nn.RReLU()), "'0' draws at random"),
        (nn.Sequential(nn.BatchNorm1d(3, momentum=None)), "'0' counts its batches"),
    ],
)
def test_what_does_something_else_in_each_pass_is_not(model, why):
    """A graph would do the same again and again."""
    assert why in reason_against_graphs(model)


def test_a_loss_of_ones_own_is_not():
    """Torch's and ours are, also with some of their arguments given."""
    smooth = partial(functional.cross_entropy, label_smoothing=0.1)
    known = functional.cross_entropy, nn.MSELoss(), securefl.cox_loss, smooth
    assert all(may_be_captured(loss) for loss in known)
    assert not may_be_captured(lambda outputs, y: outputs.sum())
    assert not may_be_captured(partial(_Own(), 1))


def _replayed(passes, n=4, model=None, loss=functional.cross_entropy):
    x, y = torch.randn(n, 3), torch.zeros(n, dtype=torch.long)
    return passes.replay(model or passes._model, loss, x, y)


def test_a_form_is_captured_when_it_comes_again(passes):
    """Once, and no more than four; forms that come once take no place."""
    for n in (2, 3, 5, 6, 7):
        assert not _replayed(passes, n)
    assert [_replayed(passes) for _ in range(3)] == [False, True, True]
    assert all(p.grad is not None for p in passes._model.parameters())
    assert [_replayed(passes, n) for n in (2, 3, 5, 6, 7)] == [True] * 3 + [False] * 2
    assert _Faked.made == graphed.MOST_GRAPHS == 4


CHANGES = {
    "another momentum": lambda model: setattr(model[1], "momentum", 0.5),
    "evaluation mode": lambda model: model[1].eval(),
    "a frozen parameter": lambda model: model[0].weight.requires_grad_(requires_grad=False),
    "another forward": lambda model: setattr(model[1], "forward", model[1].forward),
    "a hook": lambda model: model[0].register_forward_pre_hook(lambda *_: None),
    "a backward hook": lambda model: model[0].register_full_backward_pre_hook(lambda *_: None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_was_changed_is_not_replayed(passes, change):
    """A graph has as constants what the model was at the capture."""
    _replayed(passes)
    assert _replayed(passes)
    CHANGES[change](passes._model)
    assert not _replayed(passes)


def test_another_model_or_loss_is_not_replayed(passes):
    """A solver may give its work another; a block's is equal each round, by its clients."""
    _replayed(passes)
    assert _replayed(passes)
    assert not _replayed(passes, model=_model())
    assert not _replayed(passes, loss=functional.mse_loss)
    block = BlockLoss(functional.cross_entropy, 3)
    assert block == BlockLoss(functional.cross_entropy, 3) != BlockLoss(functional.cross_entropy, 2)


def test_what_cannot_be_captured_is_tried_once(passes, monkeypatch):
    """A layer may wait for a value, and memory may be short."""

    def fails(*_):
        _Faked.made += 1
        raise torch.OutOfMemoryError

    monkeypatch.setattr(graphed, "_Graph", fails)
    assert not any(_replayed(passes) for _ in range(5))
    assert _Faked.made == 1


class _Stream:
    """CUDA stream, or anything that a block is within, that notes which device it is of."""

    def __init__(self, noted, *args, **kwargs):
        noted.append((args, kwargs))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def wait_stream(self, _other):
        """Do nothing."""

    def replay(self):
        """Leave gradients as they were."""


@pytest.fixture
def cuda(monkeypatch):
    """Torch's functions of a GPU, by name, with what each was called with."""
    noted = {}
    for name in ("Stream", "current_stream", "stream", "device", "graph", "CUDAGraph"):
        calls = noted[name] = []
        monkeypatch.setattr(torch.cuda, name, partial(_Stream, calls))
    drawn = torch.zeros(16, dtype=torch.uint8)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda _device: drawn.clone())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *_: None)
    return noted


def test_a_graph_is_of_the_batchs_device_and_leaves_statistics_as_they_were(cuda):
    """A run on a second GPU: torch's own capture stream would be the first one's."""
    model, x, y = _model(), torch.randn(4, 3), torch.zeros(4, dtype=torch.long)
    before = {name: value.clone() for name, value in model.named_buffers()}
    made = graphed._Graph(model, functional.cross_entropy, x, y)
    assert [cuda[of] for of in ("Stream", "current_stream")] == [[((x.device,), {})]] * 2
    ((_, captured),) = cuda["graph"]
    assert isinstance(captured["stream"], _Stream)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert all(parameter.grad is None for parameter in model.parameters())
    one, other = made.gradients(x, y), made.gradients(x, y)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert {v.data_ptr() for v in one}.isdisjoint(v.data_ptr() for v in other)
    assert cuda["device"] == [((x.device,), {})] * 3


def test_a_pass_that_draws_is_not_captured(cuda, monkeypatch):
    """Its masks would be drawn three times more than without graphs."""
    states = iter(torch.arange(8, dtype=torch.uint8).unsqueeze(1))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda _device: next(states))
    with pytest.raises(RuntimeError, match="draws at random"):
        graphed._Graph(_model(), functional.cross_entropy, torch.randn(4, 3), torch.zeros(4).long())


def test_without_a_gpu_nothing_is_captured():
    """A run on a CPU trains as ever."""
    run = simulated(configured("cpu", "run.engine=sequential"), task(), None, None)
    assert run.parts.engine._trainer._replay is None
    run.close()
