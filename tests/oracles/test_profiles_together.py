"""Profiles of many clients in shared forward passes are those of each client alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from securefl.algorithms.profiling import View, profile, profiles
from securefl.data.samples import BATCH, samples
from securefl.errors import DataError


class Centred(nn.Module):
    """It looks at all samples of a batch, in evaluation too."""

    def forward(self, x):
        return x - x.mean(dim=0)


def model(*layers):
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), *layers, nn.Linear(5, 3)).double()


def clients(*sizes):
    rng = torch.Generator().manual_seed(0)
    return {
        f"client-{i}": (torch.randn(n, 6, generator=rng).double() + i, torch.zeros(n).long())
        for i, n in enumerate(sizes, 1)
    }


def both_ways(trained, data, layer="0"):
    found = profiles(
        View(trained, layer, 3, 2.0), {name: samples(of, name) for name, of in data.items()}
    )
    assert list(found) == list(data)
    return found, {
        name: profile(trained, layer, [x], 3).in_unit(2.0) for name, (x, _) in data.items()
    }


def require_equal(one, other):
    assert one.version == other.version
    torch.testing.assert_close(one.mean_Q, other.mean_Q, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(one.variance_Q, other.variance_Q, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sizes", [(4, 9, 2), (500, 500, 500, 7), (BATCH + 5, 3, 3), (3,)])
def test_each_client_has_the_profile_that_it_has_alone(sizes):
    """In the unit asked for, however many share a pass."""
    together, alone = both_ways(model(), clients(*sizes))
    for name, own in together.items():
        require_equal(own, alone[name])


def test_passes_are_shared(monkeypatch):
    """Seven small clients take five passes to be tried, and one."""
    trained, passes = model(), []
    trained[0].register_forward_hook(lambda *_: passes.append(1))
    both = {name: samples(of, name) for name, of in clients(*[4] * 7).items()}
    profiles(View(trained, "0", 0, 1.0), both)
    assert len(passes) == 6


def test_a_model_that_looks_at_several_samples_at_once_sees_one_clients():
    """What a client sends says nothing of another's data."""
    data = clients(4, 9, 2)
    together, alone = both_ways(model(Centred()), data, layer="3")
    for name, own in together.items():
        require_equal(own, alone[name])


def test_samples_that_are_doubled_do_not_hide_that_others_are_looked_at():
    """Two that are alike are represented alike, together and alone."""
    data = clients(4, 9, 2)
    data["client-1"][0][1] = data["client-1"][0][0]
    together, alone = both_ways(model(Centred()), data, layer="3")
    for name, own in together.items():
        require_equal(own, alone[name])


class Scaled(nn.Module):
    """By the largest value of a batch."""

    def forward(self, x):
        return x / x.abs().max()


def test_a_largest_value_that_all_samples_share_hides_nothing():
    """Pictures whose brightest pixel is 1."""
    data = {name: (x.abs().clamp(max=1), y) for name, (x, y) in clients(4, 9, 2).items()}
    for name in ("client-1", "client-2"):
        data[name][0][:, 0] = 1
    data["client-3"][0].mul_(0.5)
    together, alone = both_ways(nn.Sequential(Scaled(), model()), data, layer="1.0")
    for name, own in together.items():
        require_equal(own, alone[name])


def test_a_client_whose_values_are_not_finite_costs_itself_alone():
    """Its reason stands in the place of its profile."""
    data = clients(4, 9, 2)
    good = {name: of for name, of in data.items() if name != "client-1"}
    _, alone = both_ways(model_ := model(), good)
    data["client-1"][0].mul_(1e200)  # finite, and its variance is not
    found = profiles(
        View(model_, "0", 3, 2.0), {name: samples(of, name) for name, of in data.items()}
    )
    assert isinstance(found["client-1"], DataError)
    for name in good:
        require_equal(found[name], alone[name])


def test_clients_of_other_shapes_have_passes_of_their_own():
    """Pictures of any size."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    rng = torch.Generator().manual_seed(0)
    data = {
        f"client-{n}": (torch.randn(6, 1, n, n, generator=rng).double(), torch.zeros(6).long())
        for n in (5, 6, 7)
    }
    together, alone = both_ways(net.double(), data)
    for name, own in together.items():
        require_equal(own, alone[name])
