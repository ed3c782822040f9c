"""Test-time re-estimation of BN statistics against a loop over batches in numpy, in float64."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from securefl.algorithms.scoring import evaluate
from securefl.data.samples import samples
from securefl.errors import ConfigError, DataError
from securefl.norms.adapted import adapted_batch_norm

pytestmark = pytest.mark.shapes

TAUS = (0.0, 0.3, 0.9, 0.999)
SHAPES = {"1d": (7, 3), "1d with time": (7, 3, 4), "2d": (7, 3, 4, 5)}


def layer_for(shape, **kwargs):
    layer = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d)(3, **kwargs).double()
    with torch.no_grad():
        for tensor in (*layer.parameters(), layer.running_mean, layer.running_var):
            if tensor is not None:
                tensor.copy_(torch.tensor([0.7, 1.9, 0.2], dtype=torch.float64))
    return layer.eval()


def batches_of(shape, n_batches=6, seed=0):
    """Batches of falling size whose mean and scale drift."""
    rng = np.random.default_rng(seed)
    return [rng.normal(3 + i, 1 + i, (shape[0] - i, *shape[1:])) for i in range(n_batches)]


def by_hand(batches, tau, weight, bias, eps):
    """UniFed Eq. (4), one channel at a time."""
    mu = var = None
    outputs = []
    for x in batches:
        out = np.empty_like(x)
        mu = np.zeros(x.shape[1]) if mu is None else mu
        var = np.zeros(x.shape[1]) if var is None else var
        for c in range(x.shape[1]):
            old = tau if outputs else 0.0
            mu[c] = old * mu[c] + (1 - old) * x[:, c].mean()
            var[c] = old * var[c] + (1 - old) * ((x[:, c] - mu[c]) ** 2).mean()
            out[:, c] = weight[c] * (x[:, c] - mu[c]) / np.sqrt(var[c] + eps) + bias[c]
        outputs.append(out)
    return outputs


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_each_batch_is_normalised_by_the_moving_statistics(shape, tau):
    """μ and σ² follow Eq. (4): τ weighs the old value, and σ² is taken about the updated μ."""
    layer, batches = layer_for(shape), batches_of(shape)
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    with adapted_batch_norm(layer, tau), torch.no_grad():
        outputs = [layer(torch.from_numpy(x)).numpy() for x in batches]
    for output, expected in zip(
        outputs, by_hand(batches, tau, weight, bias, layer.eps), strict=True
    ):
        np.testing.assert_allclose(output, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_without_memory_each_batch_is_normalised_as_in_training(shape, affine):
    """τ = 0 gives PyTorch's training mode, and leaves the running statistics alone."""
    layer = layer_for(shape, affine=affine)
    training = copy.deepcopy(layer).train()
    before = copy.deepcopy(layer.state_dict())
    for x in map(torch.from_numpy, batches_of(shape)):
        with adapted_batch_norm(layer, 0.0):
            output = layer(x)
        torch.testing.assert_close(output, training(x), rtol=1e-12, atol=1e-12)
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("tau", TAUS)
def test_the_first_batch_is_normalised_by_itself_whatever_tau(tau):
    """The running statistics of training have no part in it."""
    layer = layer_for(SHAPES["2d"])
    x = torch.from_numpy(batches_of(SHAPES["2d"])[0])
    with adapted_batch_norm(layer, tau):
        output = layer(x)
    torch.testing.assert_close(output, copy.deepcopy(layer).train()(x), rtol=1e-12, atol=1e-12)


def test_every_use_starts_anew():
    """Two clients, one after the other, have nothing to do with each other."""
    layer, batches = layer_for(SHAPES["1d"]), batches_of(SHAPES["1d"])
    outputs = []
    for _ in range(2):
        with adapted_batch_norm(layer, 0.9):
            outputs.append([layer(torch.from_numpy(x)) for x in batches])
    assert all(torch.equal(first, second) for first, second in zip(*outputs, strict=True))


class Residual(nn.Module):
    """BN under a name without `bn`, in a shortcut."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU())
        self.downsample = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
        self.classifier = nn.Linear(5, 3)

    def forward(self, x):
        return self.classifier(self.body(x) + self.downsample(x))


def residual():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Residual().double()


def test_all_layers_of_a_model_adapt_also_in_shortcuts():
    """One batch at any τ gives what a model in training mode computes."""
    model, x = residual().eval(), torch.from_numpy(batches_of((8, 4))[0])
    with adapted_batch_norm(model, 0.9):
        adapted = model(x)
    torch.testing.assert_close(adapted, copy.deepcopy(model).train()(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bad", [False, True], ids=["done", "failed"])
def test_afterwards_the_model_is_bit_for_bit_as_it_was(bad):
    """Its tensors, the attributes of its layers, and what it computes; also after an error."""
    model = residual().eval()
    x, y = torch.from_numpy(batches_of((40, 4))[0]), torch.zeros(40, dtype=torch.int64)
    before = copy.deepcopy(model.state_dict())
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    expected = model(x)
    data = TensorDataset(x.index_fill(0, torch.tensor([20]), torch.nan) if bad else x, y)
    error = pytest.raises(DataError, match="not finite") if bad else nullcontext()
    with error, adapted_batch_norm(model, 0.9):
        evaluate(model, samples(data, "test"), nn.functional.cross_entropy, batch_size=16)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(x), expected)


def test_a_later_batch_of_one_sample_counts_like_any_other():
    """With τ > 0 its own variance need not be known; alone, it has none."""
    layer = layer_for(SHAPES["1d"])
    first, last = (torch.from_numpy(x) for x in (batches_of((6, 3))[0], batches_of((1, 3), 1)[0]))
    expected = by_hand([first.numpy(), last.numpy()], 0.5, *[np.array([0.7, 1.9, 0.2])] * 2, 1e-5)
    with adapted_batch_norm(layer, 0.5):
        layer(first)
        output = layer(last).detach().numpy()
        np.testing.assert_allclose(output, expected[1], rtol=1e-12, atol=1e-12)
    for tau, batches in ((0.0, (first, last)), (0.9, (last,))):
        with adapted_batch_norm(layer, tau):
            for x in batches[:-1]:
                layer(x)
            with pytest.raises(DataError, match="at least two samples"):
                layer(batches[-1])


@pytest.mark.parametrize("tau", [-0.1, 1.0, 2.0, float("nan")])
def test_a_tau_that_is_no_share_is_refused(tau):
    """τ = 1 would keep the first batch's statistics for ever."""
    with (
        pytest.raises(ConfigError, match="at least 0 and below 1"),
        adapted_batch_norm(layer_for(SHAPES["1d"]), tau),
    ):
        pass


def test_a_model_without_batch_norm_has_nothing_to_adapt():
    """The message says what to do."""
    with (
        pytest.raises(DataError, match=r"has no BN layer.*without adaptation"),
        adapted_batch_norm(nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4)), 0.9),
    ):
        pass


class Doubled(nn.BatchNorm1d):
    def forward(self, x):
        return 2 * super().forward(x)


def test_a_layer_with_a_forward_of_its_own_is_refused_before_any_is_touched():
    """What it computes is not known; the layers before it keep their forward."""
    model = nn.Sequential(nn.BatchNorm1d(3), Doubled(3))
    with pytest.raises(DataError, match="'1' is a Doubled"), adapted_batch_norm(model, 0.9):
        pass
    assert "forward" not in vars(model[0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_do_not_poison_the_statistics_in_silence(bad):
    """A Dataset is read batch by batch; its NaN is found where it would enter."""
    layer = layer_for(SHAPES["1d"])
    x = torch.from_numpy(batches_of(SHAPES["1d"])[0])
    x[2, 1] = bad
    with adapted_batch_norm(layer, 0.9), pytest.raises(DataError, match="not finite"):
        layer(x)
