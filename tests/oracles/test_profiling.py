"""Profiles against two passes over all samples at once, and divergence against the integral."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from scipy import integrate
from torch import nn

from securefl.algorithms.profiling import default_layer, profile, profile_length
from securefl.data.digits import load_digits
from securefl.errors import DataError
from securefl.exchange.profile_match import VARIANCE_FLOOR, Profile, divergence
from securefl.models.build import build_model

pytestmark = pytest.mark.shapes

IDENTITY = nn.Sequential(nn.Identity()).double()


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def two_passes(y):
    """The mean, then the mean square about it, over all samples in extended precision."""
    values = y.numpy().astype(np.longdouble)
    mean = values.mean(axis=0)
    return mean.astype(float), ((values - mean) ** 2).mean(axis=0).astype(float)


def layered(name, seed=0):
    return build_model(
        name, "batch", in_channels=1, n_features=64, n_classes=10, groups=2, width=4, seed=seed
    ).double()


@pytest.mark.parametrize("sizes", [[1000], [1] * 40, [7, 1, 300, 64], [500, 500]], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
def test_one_pass_over_batches_is_two_passes_over_all_samples(sizes, offset):
    """Also where means lie 10⁴ standard deviations from 0, however the samples are batched."""
    x = offset + normal(sum(sizes), 6)
    made = profile(IDENTITY, "0", x.split(sizes), version=3)
    mean, variance = two_passes(x)
    np.testing.assert_allclose(made.mean_Q, mean, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(made.variance_Q, variance, rtol=1e-9)
    assert made.version == 3


def test_the_test_above_would_catch_the_mean_of_squares_in_single_precision():
    """E[x²] - E[x]² in float32 is no variance at all, 10⁴ deviations from 0."""
    x = (1e4 + normal(1000, 1)).float()
    naive = (x.square().mean() - x.mean().square()).item()
    assert abs(naive - two_passes(x)[1].item()) > 0.1


@pytest.mark.parametrize(("layer", "index"), [("0", 1), ("1", 2), ("3", 4)])
def test_a_dense_layer_is_profiled_by_its_output_in_evaluation_mode(layer, index):
    """Running statistics normalise, whatever mode the model came in."""
    model, x = layered("mlp"), normal(50, 64)
    model(x)  # moves the running statistics
    expected = copy.deepcopy(model).eval()[:index](x).detach()
    made = profile(model.train(), layer, x.split(16), 0)
    mean, variance = two_passes(expected)
    np.testing.assert_allclose(made.mean_Q, mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(made.variance_Q, variance, rtol=1e-10)


def test_an_activation_in_place_does_not_reach_back_into_the_profile():
    """What is profiled is what the layer gave, before it was overwritten."""
    model, x = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True)).double(), normal(50, 3)
    mean, _ = two_passes(x)
    made = profile(model, "0", [x.clone()], 0)
    np.testing.assert_allclose(made.mean_Q, mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["cnn", "resnet20"])
def test_images_are_fused_by_channel_before_they_are_averaged(name):
    """An element is one sample's sum over its image: its variance is over samples, not pixels."""
    model, x = layered(name).eval(), normal(20, 1, 8, 8)
    layer = default_layer(model)
    outputs = []
    model.get_submodule(layer).register_forward_hook(lambda *hooked: outputs.append(hooked[2]))
    model(x)
    mean, variance = two_passes(outputs[0].detach().flatten(2).sum(dim=2))
    made = profile(model, None, x.split(6), 0)
    np.testing.assert_allclose(made.mean_Q, mean, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(made.variance_Q, np.maximum(variance, VARIANCE_FLOOR), rtol=1e-9)
    assert profile_length(model, None, x[:2]) == len(made) == outputs[0].shape[1]


class Wrapped(nn.Module):
    """A residual block and its classifier under a name of their own."""

    def __init__(self):
        super().__init__()
        self.backbone = layered("resnet20")

    def forward(self, x):
        return self.backbone(x)


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        (layered("mlp"), "0"),
        (layered("resnet20"), "stage3.2"),
        (Wrapped(), "backbone.stage3.2"),
        (layered("cnn"), "10"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 5), nn.Linear(5, 2)), "2"),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), "1"),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), "0"),
    ],
    ids=["mlp", "resnet", "wrapped", "cnn", "lenet", "linear", "convolution"],
)
def test_the_default_is_the_first_dense_layer_or_the_last_block(model, layer):
    """A classifier behind convolutions is not a representation."""
    assert default_layer(model) == layer


def test_a_model_is_left_as_it_was():
    """No hook, no gradient, no mode and no statistic stays changed, after an error too."""
    model = layered("mlp").train()
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    x = normal(8, 64)
    for batch in (x, x.index_fill(0, torch.tensor([3]), math.nan)):
        try:
            profile(model, "0", [batch], 0)
        except DataError:
            assert batch.isnan().any()
        assert [module.training for module in model] == [True, False, True, True]
        assert all(not module._forward_hooks for module in model.modules())
        assert all(parameter.grad is None for parameter in model.parameters())
        assert all(torch.equal(v, before[name]) for name, v in model.state_dict().items())


def test_single_precision_models_have_profiles_in_double_precision():
    """What is far from 0 is not rounded a second time."""
    made = profile(layered("mlp").float(), None, [normal(5, 64).float()], 0)
    assert made.mean_Q.dtype == made.variance_Q.dtype == torch.float64


def test_an_element_that_never_moves_has_the_least_variance():
    """One sample has no variance either."""
    made = profile(IDENTITY, "0", [torch.ones(1, 3, dtype=torch.float64)], 0)
    assert made.variance_Q.tolist() == [VARIANCE_FLOOR] * 3


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.unused, self.lstm = nn.Linear(2, 2), nn.Linear(2, 2), nn.LSTM(2, 2)

    def forward(self, x):
        return self.lstm(self.layer(self.layer(x)))[0]


@pytest.mark.parametrize(
    ("model", "layer", "x", "message"),
    [
        (layered("mlp"), "bn1", normal(2, 64), "'bn1': no such layer; the model has 0, 1, 2, 3"),
        (layered("cnn"), "99", normal(2, 1, 8, 8), "no such layer"),
        (nn.Identity(), "", normal(2, 3, 4), r"gives \(2, 3, 4\) for 2 samples"),
        (nn.Flatten(0), "", normal(2, 3), r"gives \(6,\) for 2 samples"),
        (nn.Identity(), "", normal(2, 3).long(), "must be"),
        (nn.Identity(), "", normal(2, 0), "must be"),
        (Twice().double(), "layer", normal(2, 2), "ran 2 times"),
        (Twice().double(), "unused", normal(2, 2), "ran 0 times"),
        (Twice().double(), "lstm", normal(2, 2), "a tuple for 2 samples"),
        (IDENTITY, "0", torch.tensor([[1.0, math.nan]]).double(), "not finite"),
        (IDENTITY, "0", torch.tensor([[math.inf], [1.0]]).double(), "not finite"),
    ],
)
def test_what_has_no_profile_is_refused_by_name(model, layer, x, message):
    """The message names the layer."""
    with pytest.raises(DataError, match=message):
        profile(model, layer, [x], 0)


def test_no_data_is_no_profile_and_no_layer_no_default():
    """Both are said."""
    with pytest.raises(DataError, match="no batch"):
        profile(IDENTITY, "0", [], 0)
    with pytest.raises(DataError, match="no dense layer"):
        default_layer(IDENTITY)


def stated(mean, variance, version=0):
    mean_Q, variance_Q = (torch.tensor(v, dtype=torch.float64) for v in (mean, variance))
    return Profile(mean_Q, variance_Q, version)


@pytest.mark.parametrize(
    ("mine", "baseline"), [((0.3, 1.7), (-1.0, 0.6)), ((2.0, 0.05), (0.0, 4.0)), ((0, 1), (0, 1))]
)
def test_divergence_is_the_integral_that_defines_it(mine, baseline):
    """KL = ∫ p log(p / q), averaged over the elements."""

    def density(x, mean, variance):
        return math.exp(-((x - mean) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)

    def integrand(x):
        return density(x, *mine) * math.log(density(x, *mine) / density(x, *baseline))

    width = 9 * math.sqrt(mine[1])
    kl, _ = integrate.quad(integrand, mine[0] - width, mine[0] + width, epsabs=1e-12)
    same = (0.5, 2.0)
    made = divergence(
        stated([mine[0], same[0]], [mine[1], same[1]]),
        stated([baseline[0], same[0]], [baseline[1], same[1]]),
    )
    assert made == pytest.approx(kl / 2, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: stated([math.nan], [1.0]), "NaN or infinity"),
        (lambda: stated([0.0], [math.inf]), "NaN or infinity"),
        (lambda: stated([0.0], [-1e-9]), "variance -1e-09"),
        (lambda: stated([0.0], [1.0], version=-1), "version = -1"),
        (lambda: stated([], []), "one at least"),
        (lambda: divergence(stated([0.0], [1.0]), stated([0.0, 0], [1.0, 1])), "same layer"),
        (lambda: divergence(stated([0.0], [1.0], 3), stated([0.0], [1.0], 4)), "same model"),
    ],
)
def test_profiles_that_cannot_be_are_refused(make, message):
    """And so are two that cannot be compared."""
    with pytest.raises(DataError, match=message):
        make()


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_client_of_other_pictures_is_further_away_than_any_client_of_digits(name):
    """Twenty clients of forty digits each, and five of noise, against digits at the server."""
    digits = load_digits(dtype=torch.float64).train_x[:1000]
    noise = torch.rand(5, 40, 64, generator=torch.Generator().manual_seed(0)).double()
    shape = (-1, 64) if name == "mlp" else (-1, 1, 8, 8)
    baseline = profile(model := layered(name), None, [digits[:200].reshape(shape)], 0)
    clients = [*digits[200:].split(40), *noise]
    far = [divergence(profile(model, None, [x.reshape(shape)], 0), baseline) for x in clients]
    assert max(far[:20]) < min(far[20:])
