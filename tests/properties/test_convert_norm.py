"""Any model's batch normalisation becomes another norm, and nothing else of it changes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import securefl
from securefl import convert_norm
from securefl.errors import ConfigError, DataError
from securefl.models.build import build_model
from securefl.norms.find import batch_norm_layers

pytestmark = pytest.mark.shapes

TARGETS = ["group", "layer", "instance", "group-ws"]


class Block(nn.Module):
    """A residual block as torchvision writes it: BN also in the shortcut, as `downsample.1`."""

    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class Net(nn.Module):
    """A small residual network with torchvision's names; 6 BN layers, one of them in a shortcut."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4, eps=1e-3)
        self.layer1 = nn.Sequential(Block(4, 4, 1))
        self.layer2 = nn.Sequential(Block(4, 8, 2))
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        x = self.layer2(self.layer1(torch.relu(self.bn1(self.conv1(x)))))
        return self.fc(x.mean((2, 3)))


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Net()
        for name, parameter in net.named_parameters():
            if "bn" in name or "downsample.1" in name:
                nn.init.uniform_(parameter, 0.5, 1.5)
    return net


@pytest.mark.parametrize("to", TARGETS)
def test_every_layer_is_converted_and_every_parameter_stays(model, to):
    """All six layers change, the shortcut's too; names and values of all parameters are kept."""
    before = copy.deepcopy(model.state_dict())
    converted = convert_norm(model, to)
    assert not batch_norm_layers(converted)
    norms = {name for name, m in converted.named_modules() if isinstance(m, nn.GroupNorm)}
    assert norms == set(batch_norm_layers(model))
    assert "layer2.0.downsample.1" in norms
    parameters = dict(converted.named_parameters())
    assert list(parameters) == [name for name, _ in model.named_parameters()]
    for name, value in model.named_parameters():
        assert torch.equal(parameters[name], value)
    assert not dict(converted.named_buffers())
    # What was given is as it was, and shares nothing with the copy.
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.zero_()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("to", "by_hand"), [("group", 2), ("layer", 1), ("instance", None)])
def test_a_converted_model_computes_what_one_written_by_hand_does(model, to, by_hand):
    """The result is that of the same network whose author had chosen the other norm."""
    expected = copy.deepcopy(model)
    names = ["bn1", *(f"layer{i}.0.bn{j}" for i in (1, 2) for j in (1, 2)), "layer2.0.downsample.1"]
    for name in names:
        old = model.get_submodule(name)
        new = nn.GroupNorm(by_hand or old.num_features, old.num_features, eps=old.eps)
        new.load_state_dict({"weight": old.weight, "bias": old.bias})
        parent, _, child = name.rpartition(".")
        setattr(expected.get_submodule(parent), child, new)
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(convert_norm(model, to)(x), expected(x))


def test_group_ws_standardises_the_convolutions_and_leaves_the_linear_layer(model):
    """Scaled and shifted convolutions compute the same; a scaled classifier does not."""
    converted = convert_norm(model.double(), "group-ws")
    x = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        for layer in converted.modules():
            if isinstance(layer, nn.Conv2d):
                layer.weight.mul_(1e3)
        before = converted(x)
        for layer in converted.modules():
            if isinstance(layer, nn.Conv2d):
                layer.weight.mul_(5).add_(1)
        torch.testing.assert_close(converted(x), before, atol=1e-6, rtol=1e-6)
        converted.fc.weight.mul_(2)
        assert not torch.allclose(converted(x), before)


def test_groups_are_as_many_as_asked_for(model):
    """Four groups in each layer."""
    converted = convert_norm(model, "group", groups=4)
    norms = [m for m in converted.modules() if isinstance(m, nn.GroupNorm)]
    assert [m.num_groups for m in norms] == [4] * 6


@pytest.mark.parametrize("to", TARGETS)
def test_a_built_in_model_converts_into_its_own_twin(to):
    """Converting the ResNet-20 with BN gives what the settings give with the other norm."""
    sizes = {"in_channels": 1, "n_features": 0, "n_classes": 4, "width": 4}
    converted = convert_norm(build_model("resnet20", "batch", **sizes), to)
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(converted(x), build_model("resnet20", to, **sizes)(x))


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.BatchNorm1d(6), torch.rand(3, 6)),
        (nn.BatchNorm1d(6), torch.rand(3, 6, 4)),
        (nn.BatchNorm2d(6), torch.rand(3, 6, 4, 4)),
        (nn.BatchNorm3d(6), torch.rand(3, 6, 2, 2, 2)),
        (nn.SyncBatchNorm(6), torch.rand(3, 6, 4, 4)),
        (nn.BatchNorm2d(6, momentum=None), torch.rand(3, 6, 4, 4)),
        (nn.BatchNorm2d(6, track_running_stats=False), torch.rand(3, 6, 4, 4)),
    ],
)
def test_every_kind_of_batch_norm_is_converted(layer, x):
    """BN of any number of axes, with or without running statistics; a bare layer too."""
    converted = convert_norm(layer, "group")
    assert torch.equal(converted(x), nn.GroupNorm(2, 6)(x))


def test_a_layer_without_scale_and_shift_stays_without():
    """BN that is not affine gives a norm that is not affine."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False))
    converted = convert_norm(model, "layer")
    assert [name for name, _ in converted.named_parameters()] == ["0.weight", "0.bias"]
    x = torch.rand(2, 3)
    torch.testing.assert_close(converted(x), nn.functional.layer_norm(model[0](x), (4,)))


def test_precision_mode_and_frozen_parameters_are_kept(model):
    """float64 stays float64, an evaluated model stays one, and what is frozen stays frozen."""
    model.double().eval().bn1.weight.requires_grad_(False)
    converted = convert_norm(model, "group")
    assert {p.dtype for p in converted.parameters()} == {torch.float64}
    assert not any(module.training for module in converted.modules())
    frozen = [name for name, p in converted.named_parameters() if not p.requires_grad]
    assert frozen == ["bn1.weight"]


@pytest.mark.parametrize("to", ["group", "group-ws"])
def test_layers_that_are_shared_stay_shared(to):
    """One layer in two places becomes one layer in two places, and so do tied parameters."""
    norm, conv, other = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
    other.weight = norm.weight
    model = nn.ModuleDict({"a": nn.Sequential(conv, norm), "b": nn.Sequential(conv, norm, other)})
    converted = convert_norm(model, to)
    assert converted["a"][1] is converted["b"][1]
    assert converted["a"][0] is converted["b"][0]
    assert converted["b"][2] is not converted["b"][1]
    assert converted["b"][2].weight is converted["b"][1].weight
    assert not batch_norm_layers(converted)


class Activated(nn.BatchNorm1d):
    def forward(self, x):
        return torch.relu(super().forward(x))


class OwnConv(nn.Conv2d):
    def forward(self, x):
        return -super().forward(x)


@pytest.mark.parametrize(
    ("layers", "to", "message"),
    [
        (
            [nn.Linear(3, 4), nn.ReLU()],
            "group",
            "no batch normalisation .*Linear, ReLU, Sequential",
        ),
        ([nn.GroupNorm(2, 4)], "layer", "no batch normalisation .*GroupNorm"),
        ([nn.Linear(3, 5), nn.BatchNorm1d(5)], "group", "'1' has 5 channels, which 2 groups"),
        ([nn.Linear(3, 4), Activated(4)], "group", "'1' is a Activated with a forward of its own"),
        ([nn.LazyBatchNorm1d()], "group", "'0' is lazy: run the model once"),
        ([nn.Linear(3, 4), nn.BatchNorm1d(4)], "group-ws", "no convolution .*: use group"),
        ([OwnConv(3, 4, 3), nn.BatchNorm2d(4)], "group-ws", "'0' is a OwnConv"),
        ([nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4)], "group-ws", "'0' is a ConvTranspose2d"),
    ],
)
def test_a_model_that_cannot_be_converted_is_refused_by_name(layers, to, message):
    """The message names the layer, or the classes where no layer is BN, and what to do."""
    with pytest.raises(DataError, match=message):
        convert_norm(nn.Sequential(*layers), to)


@pytest.mark.parametrize(
    ("to", "groups", "message"),
    [
        ("fixup", 2, r'Fixup needs scalar biases .* resnet20 has them \(model.norm = "fixup"\)'),
        ("batch", 2, "must be one of group, layer, instance, group-ws"),
        ("group", 0, "groups = 0: must be at least 1"),
    ],
)
def test_a_norm_that_nothing_converts_to_is_a_wrong_setting(model, to, groups, message):
    """Fixup, which is no layer, and misspelt names, say what there is."""
    with pytest.raises(ConfigError, match=message):
        convert_norm(model, to, groups)


def test_instance_normalisation_is_for_feature_maps():
    """A BatchNorm1d behind a convolution converts; flat samples are refused when they come."""
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4))
    converted = convert_norm(model, "instance")
    x = torch.rand(3, 2, 8)
    assert torch.equal(converted(x), nn.GroupNorm(4, 4)(model[0](x)))
    flat = convert_norm(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)), "instance")
    with pytest.raises(DataError, match=r"shape \(3, 4\): one value a channel"):
        flat(torch.rand(3, 2))


@pytest.mark.parametrize("to", TARGETS)
def test_a_converted_model_trains_in_a_federation(model, to):
    """FedAvg runs on it, and no statistic is left to send."""
    rng = torch.Generator().manual_seed(0)
    data = [
        (torch.rand(8, 3, 8, 8, generator=rng), torch.randint(5, (8,), generator=rng))
        for _ in range(4)
    ]
    settings = ["algorithm.name=fedavg", "exchange.encrypt=none", "run.rounds=2", "train.lr=0.05"]
    task = securefl.Task(convert_norm(model, to), data[:3], data[3])
    result = securefl.run(securefl.load_config(None, settings), task)
    assert all(p.isfinite().all() for p in result.model.parameters())
    assert {entry.kind for entry in result.ledger.entries} == {"parameters"}
