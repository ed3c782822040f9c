"""The sum of clipped gradients is that of a loop over the records, which clips each and adds."""

from __future__ import annotations

import copy
import math
import threading

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils._python_dispatch import TorchDispatchMode

from securefl.algorithms.algorithm import trained_parameters
from securefl.errors import ConfigError, DataError
from securefl.models.build import build_model
from securefl.norms.find import batch_norm_layers
from securefl.norms.frozen import Affine, at_rest_twin, frozen_batch_norm
from securefl.privacy.clipping import ClippedGradients, Clipping
from securefl.types import Freeze

pytestmark = pytest.mark.shapes

WIDTHS = {"mlp": 8, "cnn": 4, "resnet20": 4}
KINDS = [
    *(
        (model, norm)
        for model in WIDTHS
        for norm in ("batch", "group", "layer", "group-ws", "scaled-ws")
    ),
    ("cnn", "instance"),
    ("resnet20", "instance"),
    ("resnet20", "fixup"),
]


def made(name="cnn", norm="batch", n=6):
    """The model and its records; BN has running statistics of its own, no scalar is at zero."""
    rng = torch.Generator().manual_seed(0)
    sizes = {"in_channels": 3, "n_features": 6, "n_classes": 3, "width": WIDTHS[name]}
    model = build_model(name, norm, **sizes)
    for layer in batch_norm_layers(model).values():
        layer.running_mean.normal_(generator=rng)
        layer.running_var.uniform_(0.5, 2, generator=rng)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=rng)
    x = torch.randn((n, 6) if name == "mlp" else (n, 3, 16, 16), generator=rng)
    return model, x, torch.arange(n) % 3


def made_for(model, clipping):
    return ClippedGradients(model, cross_entropy, clipping)


def of_each(model, x, y, loss=cross_entropy):
    """Each record's gradient, by a loop over the records, with BN in evaluation mode."""
    model = copy.deepcopy(model).eval()
    parameters = trained_parameters(model)
    gradients = []
    for record in range(len(x)):
        here = slice(record, record + 1)
        term = loss(model(x[here]), y[here])
        found = torch.autograd.grad(term, list(parameters.values()), allow_unused=True)
        pairs = zip(parameters.items(), found, strict=True)
        gradients.append({n: torch.zeros_like(p) if g is None else g for (n, p), g in pairs})
    return gradients


def norm_of(gradient):
    return math.sqrt(sum(g.double().square().sum().item() for g in gradient.values()))


def by_hand(gradients, clipping, clip_norm):
    """Their sum once clipped, and how many were within."""
    sums = {name: torch.zeros_like(g) for name, g in gradients[0].items()}
    n_within = 0
    for gradient in gradients:
        norms = dict.fromkeys(sums, norm_of(gradient))
        bound = clip_norm
        if clipping is Clipping.PER_LAYER:
            norms = {name: norm_of({name: g}) for name, g in gradient.items()}
            bound = clip_norm / math.sqrt(len(sums))
        for name, g in gradient.items():
            sums[name] += g * min(1, bound / norms[name]) if norms[name] else 0
        n_within += max(norms.values()) <= bound
    return sums, n_within


def middle(gradients, clipping):
    """A clip norm that is exceeded by half the records."""
    if clipping is Clipping.PER_LAYER:
        scale = math.sqrt(len(gradients[0]))
        sizes = [scale * max(norm_of({n: g}) for n, g in one.items()) for one in gradients]
    else:
        sizes = [norm_of(one) for one in gradients]
    return sum(sorted(sizes)[len(sizes) // 2 - 1 :][:2]) / 2


def difference(found, expected):
    """The largest, relative to the largest value."""
    assert found.keys() == expected.keys()
    size = max(g.abs().max() for g in expected.values())
    assert size > 0
    return max(((found[n] - g).abs().max() / size).item() for n, g in expected.items())


@pytest.mark.parametrize("clipping", Clipping)
@pytest.mark.parametrize(("name", "norm"), KINDS)
def test_the_sum_is_that_of_a_loop_over_the_records(name, norm, clipping):
    """To 1e-12 in float64; half the records are clipped, and counted.

    In float32 to 3e-6, as the loop's own rounding is up to 1.2e-6 of the largest value. The sum
    without the clip, and the one with half of it, are a hundredth of that value off.
    """
    model, x, y = made(name, norm)
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 3e-6)):
        model, x = model.to(dtype), x.to(dtype)
        gradients = of_each(model, x, y)
        clip_norm = middle(gradients, clipping)
        expected, n_within = by_hand(gradients, clipping, clip_norm)
        found = made_for(model, clipping).sum_of(x, y, clip_norm)
        assert difference(found.sums, expected) < bound
        assert found.n_within == n_within == len(x) // 2
        for other in (math.inf, clip_norm / 2):
            assert difference(found.sums, by_hand(gradients, clipping, other)[0]) > 0.01


@pytest.mark.parametrize("clipping", Clipping)
@pytest.mark.parametrize("norm", ["batch", "group-ws"])
def test_one_maker_serves_batches_of_every_size_as_the_model_moves(norm, clipping):
    """The empty one, a single record, several; each in the parameters' values of the moment."""
    model, x, y = made("cnn", norm)
    model, x = model.double(), x.double()
    clipped = made_for(model, clipping)
    for n in (0, 1, 4, 0, 6):
        found = clipped.sum_of(x[:n], y[:n], 0.5)
        assert found.sums.keys() == trained_parameters(model).keys()
        if n:
            expected, n_within = by_hand(of_each(model, x[:n], y[:n]), clipping, 0.5)
            assert difference(found.sums, expected) < 1e-12
            assert found.n_within == n_within
        else:
            assert not any(value.any() for value in found.sums.values())
            assert found.n_within == 0
        with torch.no_grad():
            for key, p in model.named_parameters():
                p.sub_(0.1 * found.sums[key])


@pytest.mark.parametrize("clipping", Clipping)
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38])
def test_a_record_without_a_finite_gradient_adds_nothing(value, clipping):
    """The others add what they do without it."""
    model, x, y = made("mlp", "batch")
    clipped = made_for(model, clipping)
    others = clipped.sum_of(x[1:], y[1:], 0.5)
    x[0] = value
    found = clipped.sum_of(x, y, 0.5)
    assert difference(found.sums, others.sums) < 1e-6
    assert found.n_within == others.n_within
    alone = clipped.sum_of(x[:1], y[:1], 0.5)
    assert not any(g.any() for g in alone.sums.values())
    assert alone.n_within == 0


@pytest.mark.parametrize("clipping", Clipping)
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e10, 1e18, 1e25, 1e35])
def test_no_record_adds_more_than_the_clip_norm(size, clipping):
    """Nor does the square of a large float32 that overflows, or of a small one that vanishes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
    x, y = torch.randn(4, 5), size * torch.randn(4, 2)

    def loss(output, y):
        return (output * y).sum(dim=1).mean()

    clipped = ClippedGradients(model, loss, clipping)
    for record in range(4):
        here = slice(record, record + 1)
        true = norm_of(of_each(model, x[here], y[here], loss)[0])
        found = clipped.sum_of(x[here], y[here], 0.1)
        assert norm_of(found.sums) <= 0.1 * (1 + 1e-6)
        assert norm_of(found.sums) >= (0 if clipping is Clipping.PER_LAYER else 0.0999) or size < 1
        assert found.n_within == (true <= 0.1)


@pytest.mark.parametrize("clipping", Clipping)
def test_nothing_is_left_on_the_model(clipping):
    """No hook, no attribute, no other gradient; nor when a record is refused, or the loss fails."""
    model, x, y = made("cnn", "batch")
    model[0].weight.grad = torch.full_like(model[0].weight, 3.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    clipped = made_for(model, clipping)
    clipped.sum_of(x, y, 0.5)
    x[0] = math.nan
    clipped.sum_of(x, y, 0.5)
    with pytest.raises((IndexError, RuntimeError)):
        clipped.sum_of(x, y + 10, 0.5)
    found, fresh = (c.sum_of(x[1:4], y[1:4], 0.5) for c in (clipped, made_for(model, clipping)))
    assert difference(found.sums, fresh.sums) < 1e-6
    assert (model[0].weight.grad == 3).all()
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["0.weight"]
    assert not any(vars(p) for p in model.parameters())
    for module in model.modules():
        assert not any(kept for name, kept in vars(module).items() if "hooks" in name and kept)
        assert not {"activations", "max_batch_len", "forward"} & vars(module).keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation within gives."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, torch.Tensor):
                self.numel = max(self.numel, value.numel())
        return result


@pytest.mark.parametrize("shape", [(16, 64), (16, 4, 64)])
def test_ghost_clipping_has_no_linear_layers_gradients_of_records_in_memory(shape):
    """No tensor is larger than the weight; flat has one that is larger by the batch's size."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    x, y = torch.randn(shape), torch.randn(shape)
    sizes = {}
    for clipping in (Clipping.FLAT, Clipping.GHOST):
        clipped = ClippedGradients(model, mse_loss, clipping)
        with Largest() as largest:
            clipped.sum_of(x, y, 0.1)
        sizes[clipping] = largest.numel
    assert sizes == {Clipping.FLAT: 16 * 64 * 64, Clipping.GHOST: 64 * 64}


@pytest.mark.parametrize("axes", [(), (5,), (2, 3), (2, 2, 2)])
def test_ghost_norms_hold_for_inputs_of_any_number_of_axes(axes):
    """Also where a record's positions cancel, as far as float32 has not done so before."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3, bias=False)).double()
    x, y = torch.randn(5, *axes, 4).double(), torch.randn(5, *axes, 3).double()
    gradients = of_each(model, x, y, mse_loss)
    expected, _ = by_hand(gradients, Clipping.GHOST, 0.3)
    found = ClippedGradients(model, mse_loss, Clipping.GHOST).sum_of(x, y, 0.3)
    assert difference(found.sums, expected) < 1e-12


class Net(nn.Module):
    """A forward of two layers around a function; `third` is not called."""

    def __init__(self, run):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))
        self.run = run

    def forward(self, x):
        return self.run(self, x)


def tied(net, x):
    return net.second(net.first(net.first(x).tanh()))


def dead_call(net, x):
    net.first(x * 100)
    return net.second(net.first(x))


def dead_layer(net, x):
    net.third(x)
    return net.second(net.first(x))


def bypassed(net, x):
    return net.second(net.first(x)) @ net.first.weight


def turned(net, x):
    return net.second(net.first(x[:, None].expand(-1, 3, -1).transpose(0, 1)).transpose(0, 1))[:, 0]


def broadcast(net, x):
    return net.second(net.first(x)) + net.third(torch.ones(1, 4).to(x))


def sampled(model, clipping):
    """The sum of three records, and the one by hand."""
    model = model.double()
    rng = torch.Generator().manual_seed(1)
    x, y = (torch.randn(3, 4, generator=rng).double() for _ in range(2))
    found = ClippedGradients(model, mse_loss, clipping).sum_of(x, y, 0.3)
    return found.sums, by_hand(of_each(model, x, y, mse_loss), clipping, 0.3)[0]


@pytest.mark.parametrize("clipping", Clipping)
def test_a_layer_that_the_loss_does_not_reach_has_zeros(clipping):
    """Nor does a later batch meet what its call has left."""
    model = Net(dead_layer).double()
    found, expected = sampled(model, clipping)
    assert difference(found, expected) < 1e-12
    assert not found["third.weight"].any()
    clipped = ClippedGradients(model, mse_loss, clipping)
    x, y = torch.randn(3, 4).double(), torch.randn(3, 4).double()
    sums = [clipped.sum_of(x, y, 0.3).sums for _ in range(2)]
    assert difference(*sums) == 0


def in_two_places():
    net = Net(lambda net, x: net.third(net.second(net.first(x).tanh())))
    net.second, net.third = nn.Sequential(net.first), nn.Sequential(net.second)
    return net


def with_one_tensor():
    net = Net(lambda net, x: net.third(net.second(net.first(x).tanh())))
    net.third.weight = net.first.weight
    return net


@pytest.mark.parametrize("make", [lambda: Net(tied), in_two_places, with_one_tensor])
def test_a_parameter_used_twice_is_clipped_as_one_or_refused(make):
    """By the norm of its summed gradient; of ghost clipping it is refused, with the way out."""
    for clipping in (Clipping.FLAT, Clipping.PER_LAYER):
        assert difference(*sampled(make(), clipping)) < 1e-12
    with pytest.raises(ConfigError, match=r'more than once .* set privacy.clipping = "flat"'):
        sampled(make(), Clipping.GHOST)


@pytest.mark.parametrize("clipping", Clipping)
@pytest.mark.parametrize("run", [dead_call, bypassed, turned, broadcast])
def test_a_model_of_which_opacus_gives_other_gradients_is_refused(run, clipping):
    """Without a look at them it would give these without a word."""
    refused = "more than once|is not the gradient of single records"
    with pytest.raises(ConfigError, match=refused):
        sampled(Net(run), clipping)


@pytest.mark.parametrize("clipping", Clipping)
def test_a_convolution_that_opacus_takes_for_another_is_refused(clipping):
    """It pads with zeros, whatever the layer pads with."""
    model = nn.Sequential(
        nn.Unflatten(1, (1, 4)),
        nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular"),
        nn.Flatten(),
    )
    with pytest.raises(ConfigError, match="padding_mode"):
        sampled(model, clipping)


def test_an_activation_in_place_is_none_in_the_twin():
    """Torch forbids it behind the hooks; the model keeps its own."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    assert difference(*sampled(model, Clipping.FLAT)) < 1e-12
    assert model[1].inplace


@pytest.mark.parametrize("clipping", Clipping)
def test_what_opacus_cannot_do_is_refused_and_leaves_nothing(clipping):
    """Layers in evaluation mode, and trained layers with buffers."""
    model, *_ = made("cnn", "batch")
    with pytest.raises(ConfigError, match="evaluation mode"):
        ClippedGradients(model.eval(), cross_entropy, clipping)
    buffered = nn.Sequential(nn.Linear(4, 4), nn.InstanceNorm1d(4, True, track_running_stats=True))
    buffered[1].weight = nn.Parameter(torch.ones(4))
    with pytest.raises(ConfigError, match="buffers"):
        ClippedGradients(buffered, cross_entropy, clipping)
    assert not any(vars(p) for net in (model, buffered) for p in net.parameters())


@pytest.mark.parametrize("clipping", Clipping)
def test_frozen_parameters_have_no_part(clipping):
    """Neither in the sum nor in the norm; γ and β of BN at rest among them."""
    model, x, y = made("cnn", "batch")
    model, x = model.double(), x.double()
    with frozen_batch_norm(model, Freeze.BOTH):
        clipped = made_for(model, clipping)
        gradients = of_each(at_rest_twin(model), x, y)
        clip_norm = middle(gradients, clipping)
        found = clipped.sum_of(x, y, clip_norm)
        expected, n_within = by_hand(gradients, clipping, clip_norm)
    frozen = {
        f"{layer}.{kind}" for layer in batch_norm_layers(model) for kind in ("weight", "bias")
    }
    assert found.sums.keys() == dict(model.named_parameters()).keys() - frozen
    assert difference(found.sums, expected) < 1e-12
    assert found.n_within == n_within


def shared(model, twin):
    """Whether they have the same parameters, and the twin no buffers but the model's."""
    parameters, buffers = ({id(t) for t in one} for one in (twin.parameters(), twin.buffers()))
    here = {id(p) for p in model.parameters()}
    return parameters == here and buffers <= {id(b) for b in model.buffers()}


@pytest.mark.parametrize(("name", "norm"), KINDS)
def test_the_twin_is_the_model_in_evaluation_mode(name, norm):
    """Around the same tensors: what moves one moves the other."""
    model, x, _ = made(name, norm)
    twin = at_rest_twin(model)
    assert twin.training
    assert shared(model, twin)
    assert not batch_norm_layers(twin)
    torch.testing.assert_close(twin(x), model.eval()(x), rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        for tensor in (*twin.parameters(), *model.buffers()):
            tensor.mul_(1.1) if tensor.is_floating_point() else None
    torch.testing.assert_close(twin(x), model(x), rtol=1e-5, atol=1e-6)
    assert not any(module.training for module in at_rest_twin(model).modules())


class Held:
    """Has a method for a hook, and cannot be copied."""

    def __init__(self):
        self.lock = threading.Lock()
        self.n_calls = 0

    def hook(self, *_):
        self.n_calls += 1


def test_hooks_gradients_and_replaced_forwards_stay_with_the_model():
    """The twin has none of them, and is made all the same."""
    model, x, y = made("cnn", "batch")
    cross_entropy(model.eval()(x), y).backward()
    held = Held()
    for module in model.modules():
        module.register_forward_hook(held.hook)
        module.register_forward_pre_hook(held.hook, with_kwargs=True)
        module.register_full_backward_hook(held.hook)
        module.register_state_dict_pre_hook(held.hook)
    expected = model(x)
    n_calls = held.n_calls
    with frozen_batch_norm(model, Freeze.STATISTICS):
        twin = at_rest_twin(model)
    torch.testing.assert_close(twin(x), expected, rtol=1e-5, atol=1e-6)
    twin.state_dict()
    assert held.n_calls == n_calls
    assert shared(model, twin)
    assert all(p.grad is not None for p in model.parameters())


def test_a_bn_layer_is_at_rest_wherever_it_stands():
    """As the whole model; in two places, where it is one layer in the twin too."""
    layer = nn.BatchNorm1d(4)
    layer.running_var.fill_(4.0)
    alone = at_rest_twin(layer)
    assert isinstance(alone[1], Affine)
    assert shared(layer, alone)
    others = nn.ModuleList([layer, nn.InstanceNorm1d(4, track_running_stats=True)])
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(layer), nn.Tanh(), others)
    twin = at_rest_twin(model)
    assert twin[1][0] is twin[3][0]
    assert shared(model, twin)
    both = nn.Sequential(model[:3], nn.Sequential(layer))
    for clipping in (Clipping.FLAT, Clipping.PER_LAYER):
        assert difference(*sampled(both, clipping)) < 1e-12
    with pytest.raises(ConfigError, match="more than once"):
        ClippedGradients(both, mse_loss, Clipping.GHOST).sum_of(
            torch.randn(3, 4).double(), torch.randn(3, 4).double(), 1.0
        )


def test_a_layer_that_cannot_be_at_rest_is_refused():
    """One without statistics, and one whose forward is not known."""

    class Own(nn.BatchNorm1d):
        def forward(self, x):
            return 2 * super().forward(x)

    with pytest.raises(DataError, match="no running statistics"):
        at_rest_twin(nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)))
    with pytest.raises(DataError, match="'0' is a Own with a forward of its own"):
        at_rest_twin(nn.Sequential(Own(4)))


def test_a_random_layer_draws_anew_for_every_batch():
    """Which the first look at Opacus' norms takes from the very same pass."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(), nn.Linear(64, 4))
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    for clipping in Clipping:
        clipped = ClippedGradients(model, mse_loss, clipping)
        first, second = (clipped.sum_of(x, y, 1e3).sums for _ in range(2))
        assert difference(first, second) > 0.01
