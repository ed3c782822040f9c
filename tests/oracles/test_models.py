"""The models have the sizes that the papers count, and the shapes that the data need."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from securefl.errors import ConfigError
from securefl.models.alexnet import alexnet
from securefl.models.build import build_model
from securefl.models.cnn import cnn
from securefl.models.layers import Shortcut, batch_norm_1d, batch_norm_2d, group_norm
from securefl.models.mlp import mlp
from securefl.models.resnet import resnet20

pytestmark = pytest.mark.shapes

DIGITS = {"in_channels": 1, "n_features": 64, "n_classes": 10}
NORMS = ["batch", "group", "layer", "instance", "group-ws"]
BUILDABLE = [
    *[("mlp", norm) for norm in NORMS if norm != "instance"],
    *[("cnn", norm) for norm in NORMS],
    *[("resnet20", norm) for norm in [*NORMS, "fixup"]],
]


def n_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def n_statistics(model: nn.Module) -> int:
    return sum(b.numel() for name, b in model.named_buffers() if "running_" in name)


def layers_of(model: nn.Module, kind: type[nn.Module]) -> list[nn.Module]:
    return [layer for layer in model.modules() if isinstance(layer, kind)]


@pytest.mark.parametrize(
    ("norm", "kind", "statistics"),
    [(batch_norm_2d, nn.BatchNorm2d, 1376), (group_norm(2), nn.GroupNorm, 0)],
)
def test_resnet20_has_the_sizes_of_the_fedtan_tables(norm, kind, statistics):
    """ResNet-20 trains 269722 values in 19 norm layers; only batch norm adds 1376 statistics."""
    model = resnet20(norm)
    assert n_parameters(model) == 269722
    assert n_statistics(model) == statistics
    assert len(layers_of(model, kind)) == 19


def test_the_mnist_mlp_has_23980_values():
    """784-30-10 has 23860 linear values, 60 of the affine map and 60 statistics."""
    model = mlp(batch_norm_1d, (784, 30, 10))
    assert sum(n_parameters(layer) for layer in layers_of(model, nn.Linear)) == 23860
    assert n_parameters(model) == 23860 + 60
    assert n_parameters(model) + n_statistics(model) == 23980


def test_every_hidden_layer_of_an_mlp_is_normalised_and_the_last_layer_is_not():
    """An MLP is linear, norm, ReLU for each hidden size, and then linear."""
    kinds = [type(layer) for layer in mlp(batch_norm_1d, (8, 6, 4, 2))]
    hidden = [nn.Linear, nn.BatchNorm1d, nn.ReLU]
    assert kinds == [*hidden, *hidden, nn.Linear]


@pytest.mark.parametrize("norm", ["batch", "group", "group-ws", "scaled-ws"])
def test_an_mlp_without_hidden_units_is_linear(norm):
    """Softmax regression: one layer, plain whatever the norm is."""
    (layer,) = build_model("mlp", norm, **DIGITS, width=0)
    assert (type(layer), tuple(layer.weight.shape)) == (nn.Linear, (10, 64))


def test_alexnet_has_torchvisions_sizes_and_a_norm_behind_each_hidden_layer():
    """57044810 values for ten classes; 1152 biases before norms fewer, and γ and β more."""
    with torch.device("meta"):
        model = alexnet(batch_norm_2d, batch_norm_1d)
    norms = layers_of(model, nn.BatchNorm2d) + layers_of(model, nn.BatchNorm1d)
    channels = [norm.num_features for norm in norms]
    assert channels == [64, 192, 384, 256, 256, 4096, 4096]
    assert n_parameters(model) == 57044810 - sum(channels[:5]) + 2 * sum(channels)
    assert n_statistics(model) == 2 * sum(channels)


@pytest.mark.parametrize("norm", [norm for norm in NORMS if norm != "instance"])
@pytest.mark.parametrize(("channels", "side"), [(1, 8), (3, 32), (3, 256)])
def test_alexnet_takes_images_of_any_size(norm, channels, side):
    """It resizes them to 256 × 256 itself, so that three poolings leave 7 × 7 of any."""
    sizes = {"in_channels": channels, "n_features": 0, "n_classes": 7, "width": 2}
    model = build_model("alexnet", norm, **sizes)
    assert model[:19](torch.rand(2, channels, side, side)).shape == (2, 8, 7, 7)
    scores = model(torch.rand(3, channels, side, side))
    assert scores.shape == (3, 7)
    scores.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_the_cnn_normalises_each_of_its_four_convolutions():
    """The plain network has four convolutions of doubling width, each with its norm."""
    model = cnn(batch_norm_2d, in_channels=3, width=4)
    assert [conv.weight.shape[:2] for conv in layers_of(model, nn.Conv2d)] == [
        (4, 3),
        (4, 4),
        (8, 4),
        (8, 8),
    ]
    assert [norm.num_features for norm in layers_of(model, nn.BatchNorm2d)] == [4, 4, 8, 8]


@pytest.mark.parametrize(("name", "norm"), [pair for pair in BUILDABLE if pair[0] != "mlp"])
@pytest.mark.parametrize(("channels", "side"), [(1, 8), (1, 28), (3, 32)])
def test_a_convolutional_model_takes_images_of_any_usual_size(name, norm, channels, side):
    """Digits, MNIST and CIFAR images all give one score per class, and all weights a gradient."""
    model = build_model(name, norm, in_channels=channels, n_features=0, n_classes=7, width=4)
    scores = model(torch.rand(3, channels, side, side))
    assert scores.shape == (3, 7)
    scores.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("norm", [norm for name, norm in BUILDABLE if name == "mlp"])
def test_an_mlp_takes_flat_samples(norm):
    """The MLP gives one score per class for each row."""
    model = build_model("mlp", norm, in_channels=0, n_features=64, n_classes=7)
    assert model(torch.rand(3, 64)).shape == (3, 7)
    assert model[0].out_features == 30


@pytest.mark.parametrize(("name", "norm"), BUILDABLE)
def test_every_model_learns_with_every_norm(name, norm):
    """Gradient steps with every norm keep all values finite and lower the loss."""
    model = build_model(name, norm, **DIGITS, width=8)
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(12, *((64,) if name == "mlp" else (1, 8, 8)), generator=rng)
    y = torch.arange(12) % 4
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02)
    losses = []
    for _ in range(8):
        optimiser.zero_grad()
        losses.append(nn.functional.cross_entropy(model(x), y))
        losses[-1].backward()
        optimiser.step()
    assert losses[-1] < losses[0]
    assert all(value.isfinite().all() for value in model.state_dict().values())


@pytest.mark.parametrize(
    ("norm", "groups", "counts"),
    [
        ("group", 2, {2}),
        ("group", 4, {4}),
        ("group-ws", 4, {4}),
        ("layer", 2, {1}),
        ("instance", 2, {8, 16, 32}),
    ],
)
def test_a_norm_cuts_the_channels_into_its_groups(norm, groups, counts):
    """All 19 norms have the groups that were asked for: one for LN, one a channel for IN."""
    model = build_model("resnet20", norm, **DIGITS, groups=groups, width=8)
    norms = layers_of(model, nn.GroupNorm)
    assert len(norms) == 19
    assert {layer.num_groups for layer in norms} == counts


@pytest.mark.parametrize("norm", NORMS)
def test_what_normalises_does_not_change_how_much_is_trained(norm):
    """All norms have one scale and one shift a channel, and weight standardisation has nothing."""
    model = build_model("resnet20", norm, in_channels=3, n_features=0, n_classes=10)
    assert n_parameters(model) == 269722
    assert n_statistics(model) == (1376 if norm == "batch" else 0)


@pytest.mark.parametrize(("name", "norm"), BUILDABLE)
def test_the_last_layer_is_the_linear_classifier(name, norm):
    """What comes before the last layer is one flat feature vector per sample."""
    model = build_model(name, norm, **DIGITS, width=4)
    x = torch.rand(5, 64) if name == "mlp" else torch.rand(5, 1, 8, 8)
    assert type(model[-1]) is nn.Linear
    assert model[:-1](x).shape == (5, model[-1].in_features)


def test_an_option_a_shortcut_subsamples_and_adds_channels_of_zeros():
    """A shortcut keeps every second pixel as it is, and its new channels are zero."""
    x = torch.rand(2, 3, 8, 8)
    shortcut = Shortcut(n_zero_channels=3, stride=2)
    assert n_parameters(shortcut) == 0
    y = shortcut(x)
    assert y.shape == (2, 6, 4, 4)
    for row in range(4):
        for column in range(4):
            assert torch.equal(y[:, :3, row, column], x[:, :, 2 * row, 2 * column])
    assert not y[:, 3:].any()


def test_a_shortcut_inside_a_stage_is_the_identity():
    """Where neither size nor width changes, the shortcut gives back what came in."""
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(Shortcut(n_zero_channels=0, stride=1)(x), x)


@pytest.mark.parametrize("name", ["resnet20", "alexnet"])
def test_convolutions_start_with_kaiming_weights(name):
    """Weights start with variance 2 / fan-in, so that ReLU layers keep their scale."""
    model = build_model(name, "batch", **DIGITS, width=16)
    for conv in layers_of(model, nn.Conv2d)[1:]:
        fan_in = conv.weight[0].numel()
        assert conv.weight.var().item() * fan_in == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize(("name", "norm"), BUILDABLE)
def test_the_seed_alone_decides_the_initial_values(name, norm):
    """One seed gives the same model whatever was drawn before, another seed another model."""
    first = build_model(name, norm, **DIGITS, seed=3).state_dict()
    torch.rand(5)
    again = build_model(name, norm, **DIGITS, seed=3).state_dict()
    other = build_model(name, norm, **DIGITS, seed=4).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_building_a_model_leaves_the_callers_random_numbers_alone():
    """The global generator is where it was, after a model is built."""
    before = torch.random.get_rng_state()
    build_model("cnn", "group", **DIGITS, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_building_a_model_does_not_reseed_accelerators(monkeypatch):
    """The seed reaches the CPU's generator only, since only that one is put back."""
    reseeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", reseeded.append)
    build_model("mlp", "batch", **DIGITS, seed=3)
    assert reseeded == []


def test_a_model_is_built_on_the_cpu_whatever_the_default_device():
    """A caller's default device does not change where and how a model is initialised."""
    expected = build_model("mlp", "batch", **DIGITS)[0].weight
    with torch.device("meta"):
        weight = build_model("mlp", "batch", **DIGITS)[0].weight
    assert torch.equal(weight, expected)


@pytest.mark.parametrize(
    ("name", "norm", "sizes", "message"),
    [
        ("resnet18", "batch", {}, "must be one of mlp, cnn, resnet20, alexnet, unet"),
        (
            "cnn",
            "weight",
            {},
            "must be one of batch, group, layer, instance, group-ws, scaled-ws, fixup",
        ),
        ("cnn", "batch", {"width": 0}, "width = 0 with model.name = .cnn"),
        ("mlp", "group", {"width": 15}, "groups = 2 .* or model.width = 16"),
        ("cnn", "group-ws", {"width": 16, "groups": 5}, "groups = 5 .* or model.width = 20"),
        ("cnn", "group", {"groups": 0}, "groups = 0: must be at least 1"),
        ("mlp", "group", {"width": 2}, "a group of each hidden unit"),
        ("mlp", "instance", {}, "one value alone normalises to zero"),
        ("alexnet", "instance", {}, "a group of each hidden unit"),
        ("mlp", "layer", {"width": 1}, "at least two units a group"),
        ("mlp", "fixup", {}, 'this model has none; set model.name = "resnet20"'),
        ("cnn", "fixup", {}, 'this model has none; set model.name = "resnet20"'),
    ],
)
def test_a_model_that_cannot_be_built_says_the_way_out(name, norm, sizes, message):
    """A wrong name or size is a configuration error that names what would do."""
    with pytest.raises(ConfigError, match=message):
        build_model(name, norm, **DIGITS, **sizes)
