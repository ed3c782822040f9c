"""Under differential privacy no record of a batch may act on another: what does is refused."""

from __future__ import annotations

import pytest
import torch
from opacus import GradSampleModule
from opacus.validators import ModuleValidator
from torch import nn
from torch.nn import functional

from securefl.errors import ConfigError, CouplingFound, DataError, SecureFLError
from securefl.models.build import build_model
from securefl.norms.convert import convert_norm
from securefl.norms.frozen import at_rest, frozen_batch_norm
from securefl.norms.pooled import pooled_batch_norm
from securefl.privacy.coupling import require_uncoupled
from securefl.types import Freeze, Gradients, Moments, Total

pytestmark = pytest.mark.shapes


def flat():
    """Eight records of four features, three classes."""
    rng = torch.Generator().manual_seed(0)
    return torch.randn(8, 4, generator=rng), torch.arange(8) % 3


def images():
    """Six pictures of 8 × 8."""
    rng = torch.Generator().manual_seed(0)
    return torch.randn(6, 1, 8, 8, generator=rng), torch.arange(6) % 3


def around(*layers):
    """A perceptron with these in its middle; its values are the same in every test."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), *layers, nn.ReLU(), nn.Linear(6, 3))


def probe(model, data=None, loss=functional.cross_entropy):
    require_uncoupled(model, *(data or flat()), loss)


def without_learning(layer):
    """γ and β that stay as they are; the batch still normalises."""
    return layer.requires_grad_(False)


class OwnBatchNorm(nn.BatchNorm1d):
    """A subclass that changes nothing."""


class BatchNormInForward(nn.Module):
    """Batch normalisation without a layer of it."""

    def forward(self, x):
        return functional.batch_norm(x, None, None, training=True)


class LessBatchMean(nn.Module):
    """What a user may write by hand."""

    def forward(self, x):
        return x - x.mean(0)


OPACUS_LETS_PASS = {
    "no affine parameters": lambda: nn.BatchNorm1d(6, affine=False),
    "frozen affine parameters": lambda: without_learning(nn.BatchNorm1d(6)),
    "a subclass": lambda: OwnBatchNorm(6),
    "in a forward": BatchNormInForward,
}
"""The four shapes; Opacus 1.6.0 looks at the exact class of layers with something to train."""


@pytest.mark.parametrize("shape", OPACUS_LETS_PASS)
def test_what_opacus_validator_lets_pass_is_refused(shape):
    """Its validator finds nothing in any of the four; the guard names the layer."""
    model = around(OPACUS_LETS_PASS[shape]())
    assert ModuleValidator.validate(model, strict=True) == []
    with pytest.raises(CouplingFound, match=r"^layer '1' ") as caught:
        probe(model)
    assert caught.value.layer == "1"


@pytest.mark.parametrize(
    "shape", ["no affine parameters", "frozen affine parameters", "in a forward"]
)
def test_opacus_gives_gradients_of_three_of_them_without_a_word(shape):
    """Nothing else in Opacus would have noticed: per-sample "gradients" come out."""
    x, y = flat()
    model = GradSampleModule(around(OPACUS_LETS_PASS[shape]()), strict=True)
    functional.cross_entropy(model(x.requires_grad_()), y).backward()
    assert model.get_parameter("_module.0.weight").grad_sample.shape == (8, 6, 4)


class Detached(nn.Module):
    """Its output is its input, its gradient is not: only the backward pass couples."""

    def forward(self, x):
        mean = x.mean(0)
        return x + mean - mean.detach()


class Remembering(nn.Module):
    """Couples a batch with the next, by an attribute that is no buffer."""

    def __init__(self):
        super().__init__()
        self.seen = torch.zeros(6)

    def forward(self, x):
        before, self.seen = self.seen, x.mean(0).detach()
        return x + before


class Watching(nn.Module):
    """Treats each record alone and counts what it sees."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(6), persistent=False)

    def forward(self, x):
        self.seen += x.detach().mean(0)
        return x


class PerBatchSize(nn.Module):
    """Tells how many records there are."""

    def forward(self, x):
        return x / len(x)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(6),
        nn.BatchNorm1d(6, track_running_stats=False),
        nn.BatchNorm1d(6, momentum=0.0),
        LessBatchMean(),
        Remembering(),
        Watching(),
        PerBatchSize(),
        nn.Softmax(dim=0),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_what_couples_is_refused_with_its_name(layer):
    """By outputs, buffers, memory or the mere number of records."""
    with pytest.raises(CouplingFound) as caught:
        probe(around(layer))
    assert caught.value.layer == "1"


def test_a_coupling_of_gradients_alone_is_refused():
    """No output shows it, and the message says which gradient did."""
    with pytest.raises(CouplingFound, match=r"with respect to '0.weight' moved"):
        probe(around(Detached()))


@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("moments", Moments)
def test_fedtans_pooled_batch_norm_is_refused(moments, tracked):
    """Its sums over clients are sums over records first, forward and backward."""

    class Alone:
        weight = 1.0

        def sum(self, name, values):
            return Total(values, weight=1.0, n_clients=1)

    model = around(nn.BatchNorm1d(6, track_running_stats=tracked))
    references = {"1": torch.zeros(6)} if moments is Moments.FUSED else {}
    pooled = pooled_batch_norm(model, Alone(), references, Gradients.SHARED)
    with pooled, pytest.raises(CouplingFound, match=r"'1' .*\(securefl.convert_norm"):
        probe(model)


class Block(nn.Module):
    """A residual block that normalises at one place: at first, at last, or in the shortcut."""

    def __init__(self, place):
        super().__init__()
        norms = {name: nn.GroupNorm(2, 6) for name in ("norm1", "norm2")}
        norms["shortcut"] = nn.Identity()
        norms[place] = nn.BatchNorm2d(6)
        self.conv0 = nn.Conv2d(1, 6, 1)
        self.conv1, self.conv2 = (nn.Conv2d(6, 6, 3, padding=1) for _ in range(2))
        self.norm1, self.norm2 = norms["norm1"], norms["norm2"]
        self.downsample = nn.Sequential(nn.Conv2d(6, 6, 1), norms["shortcut"])

    def forward(self, x):
        x = self.conv0(x)
        inner = self.conv2(functional.relu(self.norm1(self.conv1(x)), inplace=True))
        return functional.relu(self.norm2(inner) + self.downsample(x), inplace=True)


@pytest.mark.parametrize(
    ("place", "name"),
    [("norm1", "0.norm1"), ("norm2", "0.norm2"), ("shortcut", "0.downsample.1")],
)
def test_batch_norm_in_any_position_is_refused_by_its_name(place, name):
    """Also in a residual shortcut, between layers that work in place."""
    model = nn.Sequential(Block(place), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    with pytest.raises(CouplingFound, match=rf"layer '{name}' \(BatchNorm2d\)") as caught:
        probe(model, images())
    assert caught.value.layer == name


def test_a_coupling_behind_zeros_is_refused():
    """A branch that starts at zero hides its batch norm until the first step of training."""
    hidden = nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 6))
    for parameter in hidden[1].parameters():
        nn.init.zeros_(parameter)
    nn.init.zeros_(hidden[0].weight)

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.branch = hidden

        def forward(self, x):
            return x + self.branch(x)

    with pytest.raises(CouplingFound) as caught:
        probe(around(Residual()))
    assert caught.value.layer == "1.branch.0"


def test_a_coupling_in_the_models_own_forward_is_the_models():
    """Where no submodule mixes records, the message says so."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x):
            return self.inner(x - x.mean(0))

    with pytest.raises(CouplingFound, match="the model's own forward") as caught:
        probe(Net())
    assert caught.value.layer == "model"


def test_a_loss_that_couples_is_refused():
    """Class weights are divided by their sum over the batch, so a record's term hangs on others."""
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 5.0]))
    with pytest.raises(CouplingFound, match=r"^the loss mixes the records"):
        probe(around(), loss=weighted)


def test_a_loss_that_adds_up_is_refused():
    """Opacus would scale its gradients as those of a mean."""
    with pytest.raises(CouplingFound, match=r"or adds them up"):
        probe(around(), loss=nn.CrossEntropyLoss(reduction="sum"))


BATCH_NORM = build_model("cnn", "batch", in_channels=1, n_features=0, n_classes=3, width=4)


@pytest.mark.parametrize("to", ["group", "layer", "instance", "group-ws"])
def test_the_remedy_that_is_named_is_one(to):
    """A model that is refused for its batch norm is accepted once it is converted."""
    with pytest.raises(CouplingFound, match="convert_norm"):
        probe(BATCH_NORM, images())
    probe(convert_norm(BATCH_NORM, to), images())


def test_batch_norm_at_rest_is_accepted():
    """FixBN's second stage: as layers of their own, in place for a while, and in eval mode."""
    norm = nn.BatchNorm1d(6)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    probe(around(at_rest("1", norm)))
    model = around(norm)
    with frozen_batch_norm(model, Freeze.STATISTICS):
        probe(model)
    norm.eval()
    probe(model)


def test_frozen_scales_alone_are_refused():
    """What FixBN's table H also tries still normalises by the batch."""
    model = around(nn.BatchNorm1d(6))
    with frozen_batch_norm(model, Freeze.AFFINE), pytest.raises(CouplingFound):
        probe(model)


class Noisy(nn.Module):
    """A random layer of the user's."""

    def forward(self, x):
        return x + torch.randn_like(x)


@pytest.mark.parametrize(
    "layer",
    [nn.Dropout(0.5), nn.AlphaDropout(0.3), nn.LayerNorm(6), nn.GroupNorm(3, 6), Noisy()],
    ids=lambda layer: type(layer).__name__,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_treats_each_record_alone_is_accepted(layer, dtype):
    """In every precision; what is random is not taken for coupling."""
    x, y = flat()
    probe(around(layer).to(dtype), (x.to(dtype), y))


def test_instance_norm_is_accepted_only_without_running_statistics():
    """Those are of all records, and are released with the model."""

    def model(norm):
        pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
        return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), *pooled)

    probe(model(nn.InstanceNorm2d(4, affine=True)), images())
    with pytest.raises(CouplingFound, match="track_running_stats=False"):
        probe(model(nn.InstanceNorm2d(4, track_running_stats=True)), images())


def test_whole_numbers_are_probed_too():
    """Words by their index, and a layer that mixes them over the batch."""
    words = torch.randint(9, (6, 5), generator=torch.Generator().manual_seed(0))
    y = torch.arange(6) % 3
    embedded = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 6))
    probe(nn.Sequential(embedded, nn.LayerNorm(6), nn.Linear(6, 3)), (words, y))
    with pytest.raises(CouplingFound) as caught:
        probe(nn.Sequential(embedded, LessBatchMean(), nn.Linear(6, 3)), (words, y))
    assert caught.value.layer == "1"


def test_a_regression_is_probed_too():
    """Labels that are real numbers."""
    x, _ = flat()
    probe(nn.Linear(4, 2), (x, torch.randn(8, 2)), nn.functional.mse_loss)


def test_the_probe_leaves_model_and_generators_as_they_were():
    """Parameters, buffers, gradients, hooks and torch's random numbers."""
    model = around(nn.Dropout(), nn.BatchNorm1d(6))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    with pytest.raises(CouplingFound):
        probe(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_probe_draws_from_the_generator_that_it_is_given():
    """Other batches each time, and the same verdict."""
    rng = torch.Generator().manual_seed(5)
    for _ in range(3):
        require_uncoupled(around(nn.LayerNorm(6)), *flat(), functional.cross_entropy, rng)
        with pytest.raises(CouplingFound):
            require_uncoupled(around(nn.BatchNorm1d(6)), *flat(), functional.cross_entropy, rng)


X, Y = flat()


@pytest.mark.parametrize(
    ("model", "data", "error", "message"),
    [
        (around().eval(), flat(), ConfigError, "call model.train()"),
        (around(), (X[:1], Y[:1]), DataError, "two different records"),
        (around(), (X[:1].repeat(4, 1), Y[:4]), DataError, "two different records"),
        (around(), (X, Y[:3]), DataError, "8 records and 3 labels"),
        (around().requires_grad_(False), flat(), DataError, "no parameter"),
        (around(nn.Flatten(0)), flat(), RuntimeError, "shapes cannot be multiplied"),
        (nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), flat(), DataError, r"of shape \(6,\)"),
        (nn.LSTM(4, 3), flat(), DataError, "it is a tuple"),
        (around(), (X * torch.inf, Y), DataError, "not finite"),
    ],
)
def test_what_cannot_be_probed_says_why(model, data, error, message):
    """Each with the way out; an error of the model's own stays what it is."""
    with pytest.raises(error, match=message):
        probe(model, data)


def test_a_model_that_cannot_be_copied_says_why():
    """A layer that holds what cannot be copied, such as a file."""
    layer = nn.Identity()
    layer.log = open(__file__)  # noqa: SIM115, PTH123
    with layer.log, pytest.raises(DataError, match="cannot be copied to be probed"):
        probe(around(layer))


def test_the_error_is_a_setting_that_is_wrong():
    """So the command line answers with exit code 2."""
    assert issubclass(CouplingFound, ConfigError)
    assert issubclass(CouplingFound, SecureFLError)
