"""Each normalisation layer is its equation, and Fixup starts where its paper says."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from safetensors.torch import load, save
from torch import nn
from weighted_layers import WEIGHTED_LAYERS

import securefl
from securefl.errors import DataError
from securefl.models.build import build_model
from securefl.models.fixup import FixupBlock, ScalarBias, ScalarMultiplier, fixup_resnet20
from securefl.models.layers import Shortcut, group_norm, instance_norm, layer_norm
from securefl.norms.weight_standardization import standardise_weights

pytestmark = [pytest.mark.shapes, pytest.mark.usefixtures("quick")]

EPS = 1e-5


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Values of mean 3 and deviation 2, in float64."""
    rng = torch.Generator().manual_seed(seed)
    return 3 + 2 * torch.randn(*shape, dtype=torch.float64, generator=rng)


def normalised_by_hand(y, groups, gamma, beta):
    """γ (y - μ) / √(σ² + ε) + β, with μ and σ² of a group's channels in one sample, by loops."""
    x = torch.empty_like(y)
    size = y.shape[1] // groups
    for b in range(y.shape[0]):
        for g in range(groups):
            channels = range(g * size, (g + 1) * size)
            values = [float(v) for c in channels for v in y[b, c].flatten()]
            mu = sum(values) / len(values)
            var = sum((v - mu) ** 2 for v in values) / len(values)
            for c in channels:
                x[b, c] = gamma[c] * (y[b, c] - mu) / (var + EPS) ** 0.5 + beta[c]
    return x


NORMS = [(group_norm(2), 2), (group_norm(3), 3), (layer_norm, 1), (instance_norm, 6)]
SHAPES = [(3, 6), (3, 6, 5), (3, 6, 4, 5), (2, 6, 2, 3, 2)]


@pytest.mark.parametrize(
    ("norm", "groups", "shape"),
    [
        (norm, groups, shape)
        for norm, groups in NORMS
        for shape in SHAPES[groups == 6 :]  # IN has no flat samples
    ],
)
def test_a_norm_is_its_equation(norm, groups, shape):
    """GN, LN and IN normalise a sample's groups of channels, and scale and shift each channel."""
    layer = norm(6).double()
    gamma, beta = drawn(6, seed=1), drawn(6, seed=2)
    layer.load_state_dict({"weight": gamma, "bias": beta})
    y = drawn(*shape)
    torch.testing.assert_close(layer(y), normalised_by_hand(y, groups, gamma, beta))


def test_layer_norm_of_flat_samples_is_torchs():
    """On (batch, channels) LN is torch's LayerNorm over the channels."""
    y = drawn(4, 6)
    ours = layer_norm(6).double()
    torch.testing.assert_close(ours(y), nn.LayerNorm(6).double()(y))


def test_instance_norm_of_images_is_torchs():
    """On images IN is torch's affine InstanceNorm2d without running statistics."""
    y = drawn(4, 6, 3, 5)
    torch.testing.assert_close(
        instance_norm(6).double()(y), nn.InstanceNorm2d(6, affine=True).double()(y)
    )


@pytest.mark.parametrize("norm", [instance_norm, group_norm(6)])
@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1, 1), (6, 6)])
def test_a_single_value_a_channel_is_refused(norm, shape):
    """One value normalises to zero whatever it is, so flat samples and 1 × 1 maps are refused."""
    with pytest.raises(DataError, match=r"one value a channel.*(group, layer)"):
        norm(6)(torch.rand(*shape))


@pytest.mark.parametrize("norm", [group_norm(2), layer_norm, instance_norm])
def test_a_sample_is_normalised_without_the_others(norm):
    """The output of a sample does not depend on its batch, in training as in evaluation."""
    y, layer = drawn(5, 6, 4, 4), norm(6).double()
    alone = torch.cat([layer(sample[None]) for sample in y])
    torch.testing.assert_close(layer(y), alone)
    torch.testing.assert_close(layer.eval()(y), alone)


@pytest.mark.parametrize(("plain", "shape"), WEIGHTED_LAYERS)
def test_a_standardised_layer_is_the_plain_one_with_standardised_weights(plain, shape):
    """Ŵ = (W - μ)/√(σ² + ε) over an output channel's weights; the rest of the layer stays."""
    plain = plain.double()
    layer, by_hand = copy.deepcopy(plain), copy.deepcopy(plain)
    standardise_weights([("layer", layer)])
    with torch.no_grad():
        for row in by_hand.weight:
            mu = row.sum() / row.numel()
            var = ((row - mu) ** 2).sum() / row.numel()
            row.copy_((row - mu) / (var + EPS) ** 0.5)
    x = drawn(*shape)
    torch.testing.assert_close(layer(x), by_hand(x))
    assert torch.equal(layer.weight, plain.weight)  # the weights that SGD moves are as they were
    assert isinstance(layer, type(plain))


def test_gradients_go_through_the_standardisation():
    """The gradient of W is that of numerical differences, and scaling W has none."""
    layer = nn.Linear(5, 3).double()
    standardise_weights([("layer", layer)])
    x, weight = drawn(4, 5), drawn(3, 5, seed=1).requires_grad_()

    def output(w):
        return torch.func.functional_call(layer, {"weight": w}, (x,))

    assert torch.autograd.gradcheck(output, weight)
    (gradient,) = torch.autograd.grad(output(weight).square().sum(), weight)
    along_scale = (gradient * (weight - weight.mean(1, keepdim=True))).sum(1)
    assert along_scale.abs().max() < 1e-4 * gradient.abs().max()


def test_a_model_with_standardised_weights_is_copied_and_stored_like_any_other():
    """State dicts have the plain model's names; deepcopy, pickle and safetensors keep values."""
    model = build_model("cnn", "group-ws", in_channels=1, n_features=0, n_classes=4, width=4)
    plain = build_model("cnn", "group", in_channels=1, n_features=0, n_classes=4, width=4)
    assert list(model.state_dict()) == list(plain.state_dict())
    x = torch.rand(2, 1, 8, 8)
    plain.load_state_dict(load(save(model.state_dict())))
    assert not torch.allclose(plain(x), model(x), atol=1e-3)
    torch.save(model, file := io.BytesIO())
    file.seek(0)
    for again in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert torch.equal(again(x), model(x))


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet20"])
def test_group_ws_standardises_all_weights_but_the_classifiers(name):
    """Every convolution and hidden linear layer ignores shift and scale of its weights."""
    model = build_model(name, "group-ws", in_channels=1, n_features=64, n_classes=4, width=4)
    x = torch.rand(2, 64) if name == "mlp" else torch.rand(2, 1, 8, 8)
    weights = [m for m in model[:-1].modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert len(weights) == {"mlp": 1, "cnn": 4, "resnet20": 19}[name]
    before = model.double()(x.double())
    with torch.no_grad():
        for layer in weights:
            layer.weight.mul_(1e3).add_(2)
    scaled = model(x.double())
    with torch.no_grad():
        for layer in weights:
            layer.weight.mul_(3).sub_(1)
    torch.testing.assert_close(model(x.double()), scaled, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(scaled, before, atol=0.02, rtol=0.02)  # ε counts at small weights
    with torch.no_grad():
        model[-1].weight.mul_(2)
    assert not torch.allclose(model(x.double()), scaled)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.ConvTranspose2d(3, 3, 2), "'up' is a ConvTranspose2d"),
        (nn.Conv2d(3, 3, 1, groups=3), "'up' has one weight an output channel"),
    ],
)
def test_weights_that_cannot_be_standardised_are_named_before_any_change(layer, message):
    """A refused layer leaves the others as they were."""
    first = nn.Conv2d(3, 3, 3)
    with pytest.raises(DataError, match=message):
        standardise_weights([("first", first), ("up", layer)])
    assert type(first) is nn.Conv2d


def scalars_and_blocks():
    model = fixup_resnet20(in_channels=1, width=4).double()
    return model, [layer for layer in model.modules() if isinstance(layer, FixupBlock)]


def test_fixup_has_47_scalars_in_place_of_1376_scales_and_shifts():
    """Nine branches have 4 biases and a multiplier; stem and classifier have a bias each."""
    model = fixup_resnet20()
    scalars = [m for m in model.modules() if isinstance(m, (ScalarBias, ScalarMultiplier))]
    assert len(scalars) == 9 * 5 + 2
    assert sum(p.numel() for p in model.parameters()) == 269722 - 1376 + 47


def test_a_fixup_branch_adds_nothing_at_first():
    """Before training a residual block is its shortcut, and the model scores every class 0."""
    model, blocks = scalars_and_blocks()
    x = drawn(2, 4, 8, 8).relu()
    for block in blocks[:3]:
        assert torch.equal(block(x), x)
    assert torch.equal(blocks[3](x), Shortcut(n_zero_channels=4, stride=2)(x))
    assert torch.equal(model(drawn(2, 1, 8, 8)), torch.zeros(2, 10, dtype=torch.float64))


def test_fixup_scales_the_first_convolution_of_a_branch_by_a_third():
    """L^(-1/(2m-2)) is 9^(-1/2): the branch's weights start with variance 2 / fan-in / 9."""
    model = fixup_resnet20(width=32)
    blocks = [layer for layer in model.modules() if isinstance(layer, FixupBlock)]
    for block in blocks:
        fan_in = block.conv1.weight[0].numel()
        assert block.conv1.weight.var().item() * fan_in == pytest.approx(2 / 9, rel=0.1)
        assert not block.conv2.weight.any()
    assert model.stem.weight.var().item() * 27 == pytest.approx(2, rel=0.15)
    assert not model.classifier.weight.any()


def test_a_fixup_block_is_its_equation():
    """relu(a · conv2(relu(conv1(x + b1a) + b1b) + b2a) + b2b + x), with every scalar in place."""
    block = FixupBlock(3, 3, 1).double()
    with torch.no_grad():
        for seed, parameter in enumerate(block.parameters()):
            parameter.copy_((drawn(*parameter.shape, seed=seed) - 3) / 4)
    x = drawn(2, 3, 5, 5) - 3
    b1a, b1b, b2a, b2b = (
        getattr(block, name).bias for name in ("bias1a", "bias1b", "bias2a", "bias2b")
    )
    conv = nn.functional.conv2d
    hidden = torch.relu(conv(x + b1a, block.conv1.weight, padding=1) + b1b)
    branch = block.scale.weight * conv(hidden + b2a, block.conv2.weight, padding=1) + b2b
    torch.testing.assert_close(block(x), torch.relu(branch + x))
    assert 0 < (hidden == 0).sum() < hidden.numel()  # the first ReLU counts


@pytest.mark.parametrize(
    ("model", "norm"),
    [
        ("mlp", "layer"),
        ("mlp", "group-ws"),
        ("cnn", "instance"),
        ("cnn", "scaled-ws"),
        ("resnet20", "fixup"),
    ],
)
def test_a_run_trains_and_resumes_with_every_norm(tmp_path, model, norm):
    """The settings reach the model, and an interrupted run goes on to the same bits."""
    settings = [
        "run.rounds=2",
        "algorithm.name=fedavg",
        "algorithm.local_steps=1",
        "exchange.encrypt=none",
        "train.lr=0.1",
        f"model.name={model}",
        f"model.norm={norm}",
        "model.width=4",
    ]
    config = securefl.load_config(None, settings)
    whole = securefl.run(config)

    def stop(metrics):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        securefl.run(config, out=tmp_path / "run", on_round=stop)
    resumed = securefl.resume(tmp_path / "run")
    before = build_model(model, norm, in_channels=1, n_features=64, n_classes=10, width=4)
    after = whole.model.state_dict()
    assert all(
        torch.equal(after[name], value) for name, value in resumed.model.state_dict().items()
    )
    assert any(not torch.equal(after[name], value) for name, value in before.state_dict().items())


def test_the_settings_groups_reach_the_model():
    """model.groups is the number of groups."""
    settings = ["model.norm=group", "model.groups=5", "algorithm.name=fedavg", "run.rounds=1"]
    config = securefl.load_config(None, [*settings, "exchange.encrypt=none"])
    assert securefl.run(config).model[1].num_groups == 5
