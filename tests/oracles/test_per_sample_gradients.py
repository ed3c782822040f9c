"""Opacus' gradients of each record are those of a loop over the records."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from securefl.models.build import build_model
from securefl.models.mlp import mlp
from securefl.norms.find import batch_norm_layers
from securefl.norms.frozen import at_rest
from securefl.privacy.coupling import require_uncoupled
from securefl.privacy.gradients import per_sample_gradients

WIDTHS = {"mlp": 8, "cnn": 4, "resnet20": 4, "alexnet": 4}
KINDS = [
    *((model, norm) for model in WIDTHS for norm in ("group", "layer", "group-ws", "at rest")),
    *((model, "scaled-ws") for model in ("mlp", "cnn", "alexnet")),
    ("cnn", "instance"),
    ("resnet20", "instance"),
    ("resnet20", "fixup"),
    ("mlp", "none"),
]


def made(name, norm):
    """The model and five records for it; batch norm at rest has statistics of its own."""
    rng = torch.Generator().manual_seed(0)
    sizes = {"in_channels": 3, "n_features": 6, "n_classes": 3, "width": WIDTHS[name]}
    x = torch.randn((5, 6) if name == "mlp" else (5, 3, 24, 24), generator=rng)
    y = torch.arange(5) % 3
    if norm == "none":
        return mlp(lambda _: nn.Identity(), (6, 8, 3)), x, y
    model = build_model(name, "batch" if norm == "at rest" else norm, **sizes)
    if norm == "at rest":
        for place, layer in batch_norm_layers(model).items():
            layer.running_mean.normal_(generator=rng)
            layer.running_var.uniform_(0.5, 2, generator=rng)
            parent, _, attribute = place.rpartition(".")
            setattr(model.get_submodule(parent), attribute, at_rest(place, layer))
    if norm == "fixup":  # whose zeros would leave most gradients zero
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=rng)
    return model, x, y


def by_loop(model, x, y):
    """Each record's gradients, in the place of a batch's."""
    parameters, found = dict(model.named_parameters()), []
    for record in range(len(x)):
        here = slice(record, record + 1)
        loss = cross_entropy(model(x[here]), y[here])
        found.append(torch.autograd.grad(loss, list(parameters.values())))
    return {n: torch.stack(of) for n, of in zip(parameters, zip(*found, strict=True), strict=True)}


def largest_difference(found, expected):
    """Relative to the largest value of a record's gradient."""
    assert found.keys() == expected.keys()
    sizes = torch.stack([g.flatten(1).abs().amax(1) for g in expected.values()]).amax(0)
    assert (sizes > 0).all()
    apart = [(found[n] - g).flatten(1).abs().amax(1) / sizes for n, g in expected.items()]
    return torch.stack(apart).max().item()


@pytest.mark.parametrize(("name", "norm"), KINDS)
def test_each_model_is_accepted_and_its_gradients_are_those_of_a_loop(name, norm):
    """To 1e-6 in float32, or twice what the loop in float32 is off the one in float64 itself.

    Which depends on the processor's kernels; in float64 to rounding.
    """
    model, x, y = made(name, norm)
    require_uncoupled(model, x, y, cross_entropy)
    found, expected = per_sample_gradients(model, x, y, cross_entropy), by_loop(model, x, y)
    model, x = model.double(), x.double()
    exact = by_loop(model, x, y)
    bound = max(1e-6, 2 * largest_difference(expected, exact))
    assert largest_difference(found, expected) < bound < 1e-5
    assert largest_difference(per_sample_gradients(model, x, y, cross_entropy), exact) < 1e-13


def test_the_model_stays_as_it_was():
    """No hook, no gradient, no attribute of Opacus' is left behind."""
    model, x, y = made("cnn", "group")
    per_sample_gradients(model, x, y, cross_entropy)
    assert all(p.grad is None and not hasattr(p, "grad_sample") for p in model.parameters())
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())


def test_a_parameter_that_the_loss_does_not_reach_has_zeros():
    """One row for each record all the same."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x):
            return self.used(x)

    _, x, y = made("mlp", "group")
    found = per_sample_gradients(Net(), x, y, cross_entropy)
    assert found["unused.weight"].shape == (5, 3, 6)
    assert not found["unused.weight"].any()
