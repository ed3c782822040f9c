"""The fast passes of pooled normalisation against their formulas."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from securefl.exchange.moments import along_channels, channel_mean
from securefl.norms.bn_function import batch_moments, normalised

pytestmark = pytest.mark.shapes

SHAPES = [(7, 3), (4, 3, 5), (4, 3, 2, 5), (2, 3, 2, 2, 3)]


def batch(shape, *, last=False):
    y = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 + 1
    if last and len(shape) == 4:
        y = y.contiguous(memory_format=torch.channels_last)
    return y.requires_grad_()


@pytest.mark.parametrize("last", [False, True], ids=["channels second", "channels last"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_moments_and_their_gradients_are_those_of_the_formula(shape, last):
    """μ = mean of y and σ² = mean of (y - μ)², for a batch of any number of axes."""
    y = batch(shape, last=last)
    mu_C, var_C = batch_moments(y)
    mean_C = channel_mean(y)
    square_C = channel_mean((y - along_channels(mean_C, y)).square())
    torch.testing.assert_close(mu_C, mean_C, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(var_C, square_C, rtol=1e-12, atol=1e-12)
    weights = torch.randn(2, shape[1], dtype=torch.float64)
    (fast,) = torch.autograd.grad((weights[0] * mu_C + weights[1] * var_C).sum(), y)
    (slow,) = torch.autograd.grad((weights[0] * mean_C + weights[1] * square_C).sum(), y)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("last", [False, True], ids=["channels second", "channels last"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_five_gradients_of_normalisation_are_those_of_the_formula(shape, last):
    """Of y, μ, σ², γ and β."""
    y, c = batch(shape, last=last), shape[1]
    mu_C, weight_C, bias_C = (torch.randn(c, dtype=torch.float64) for _ in range(3))
    inputs = [y, mu_C, torch.rand(c, dtype=torch.float64) + 0.5, weight_C, bias_C]
    for value in inputs:
        value.requires_grad_()
    y, mu_C, var_C, weight_C, bias_C = inputs
    fast = normalised(y, (mu_C, var_C), (weight_C, bias_C), 1e-5)
    centred = (y - along_channels(mu_C, y)) * along_channels(torch.rsqrt(var_C + 1e-5), y)
    slow = centred * along_channels(weight_C, y) + along_channels(bias_C, y)
    torch.testing.assert_close(fast, slow, rtol=1e-11, atol=1e-11)
    towards = torch.randn(shape, dtype=torch.float64)
    for one, other in zip(
        torch.autograd.grad((fast * towards).sum(), inputs),
        torch.autograd.grad((slow * towards).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_a_tensor_of_another_shape_is_found():
    """At any call in a test that is marked so: here two axes, where one is asked for."""
    with pytest.raises(TypeCheckError, match="x_C"):
        along_channels(torch.ones(2, 3), torch.ones(4, 3))
