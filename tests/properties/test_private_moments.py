"""Sums over records that one record hardly changes, and the moments that are read off them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import stats
from silent import Silent

from securefl.errors import DataError
from securefl.privacy.randomness import Secret, Seeded, noisy
from securefl.privacy.record_moments import ChannelMoments, MomentRelease

pytestmark = pytest.mark.shapes

CLIP, WIDE = 1.5, 1e4
SHAPES = {"2d": (40, 3), "3d": (40, 3, 5), "4d": (40, 3, 4, 2)}
ODD = st.sampled_from([0.0, 1e-300, 1e20, -1e100, 1e154, -1e200, np.nan, np.inf, -np.inf])
VALUES = st.one_of(st.floats(-20, 20), st.floats(width=64), ODD)
BATCHES = array_shapes(min_dims=2, max_dims=4, max_side=4).flatmap(
    lambda shape: arrays(np.float64, shape, elements=VALUES)
)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def drawn(shape, seed=0):
    """Channels of different mean and scale."""
    y = torch.randn(shape, generator=generator(seed), dtype=torch.float64)
    along = (1, shape[1], *(1,) * (len(shape) - 2))
    return y * torch.linspace(0.5, 2, shape[1]).view(along) + torch.arange(shape[1]).view(along)


def exact(y):
    """Pooled mean and biased variance of each channel."""
    axes = [axis for axis in range(y.dim()) if axis != 1]
    return y.mean(axes), y.var(axes, correction=0)


def reference_of(n_channels):
    return ChannelMoments(
        torch.linspace(-1, 1, n_channels).double(), torch.linspace(0.1, 3, n_channels).double()
    )


def influence(release, y):
    """By how much the first record changes the sum, in L2."""
    reference = reference_of(y.shape[1])
    change_V = release.sum_of(y, reference) - release.sum_of(y[1:], reference)
    return torch.linalg.vector_norm(change_V).item()


@settings(deadline=None)
@given(BATCHES)
def test_a_record_changes_a_sum_by_no_more_than_the_bound(values):
    """Whatever it is, and whatever the others are; there or not there."""
    y = torch.from_numpy(values)
    release = MomentRelease(y.shape[1], CLIP, 1.0)
    assert influence(release, y) <= release.bound * (1 + 1e-12)


@settings(deadline=None)
@given(BATCHES)
def test_a_sum_is_finite_and_a_record_that_is_not_adds_nothing(values):
    """No NaN reaches what others' sums are added to."""
    y = torch.from_numpy(values.copy())
    release, reference = MomentRelease(y.shape[1], CLIP, 1.0), reference_of(y.shape[1])
    total_V = release.sum_of(y, reference)
    assert total_V.isfinite().all()
    y[0].view(-1)[-1] = np.nan
    torch.testing.assert_close(release.sum_of(y, reference), release.sum_of(y[1:], reference))


def test_a_sum_without_the_clip_would_be_found_out():
    """The bound is the clip's doing: a far record reaches it, and unclipped goes far beyond."""
    y = drawn((5, 3))
    y[0] *= 30
    clipped, bare = MomentRelease(3, CLIP, 1.0), MomentRelease(3, WIDE, 1.0)
    assert influence(clipped, y) == pytest.approx(clipped.bound)
    assert torch.linalg.vector_norm(bare.sum_of(y[:1], reference_of(3))[1:]) > 100 * clipped.bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e30, 3e38])
def test_a_record_at_the_end_of_float32_counts_almost_nothing(dtype, size):
    """Its vector is of the bound's length, all in the second moment: the count shrinks, too."""
    y = torch.full((1, 2), size, dtype=dtype)
    release = MomentRelease(2, CLIP, 1.0)
    sum_V = release.sum_of(y, ChannelMoments.standard(2))
    assert 0 <= sum_V[0] < 1e-20
    assert torch.linalg.vector_norm(sum_V).item() == pytest.approx(release.bound)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_without_noise_and_clip_the_moments_are_exact(shape):
    """Pooled over two batches of different length, to 1e-12, about any reference."""
    y = drawn(shape)
    mean_C, var_C = exact(y)
    release = MomentRelease(shape[1], WIDE, 1.0)
    for reference in (reference_of(3), ChannelMoments.standard(3)):
        total_V = release.sum_of(y[:13], reference) + release.sum_of(y[13:], reference)
        found = release.moments_of(total_V, reference, 0.0)
        torch.testing.assert_close(found.mean_C, mean_C, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found.var_C, var_C, rtol=1e-12, atol=1e-12)


def test_a_clipped_record_counts_less_and_leaves_a_mean_a_weighted_mean():
    """By hand: of two records, one of them scaled down to the bound."""
    y = torch.tensor([[0.5], [8.0]], dtype=torch.float64)
    reference = ChannelMoments(torch.zeros(1).double(), torch.ones(1).double() - 1e-5)
    release = MomentRelease(1, CLIP, 1.0)
    bound = CLIP * 2**0.5
    share = bound / (bound**2 / 4 + 8.0**2 + 64.0**2) ** 0.5
    found = release.moments_of(release.sum_of(y, reference), reference, 0.0)
    mean = (0.5 + share * 8) / (1 + share)
    second = (0.25 + share * 64) / (1 + share)
    assert found.mean_C.item() == pytest.approx(mean)
    assert found.var_C.item() == pytest.approx(second - mean**2)


def test_no_variance_lies_below_what_its_noise_hides():
    """Twice the deviation of the noisy second moment, in the reference's units."""
    n, sigma = 1000, 2.0
    release, reference = MomentRelease(1, CLIP, sigma), ChannelMoments.standard(1)
    sum_V = release.sum_of(torch.full((n, 1), 0.3), reference)
    (var,) = release.moments_of(sum_V, reference, release.deviation).var_C.tolist()
    assert var == pytest.approx(2 * release.deviation / n, rel=1e-4)
    silent = release.moments_of(sum_V, reference, 0.0)
    assert 0 <= silent.var_C.item() < 1e-12


@pytest.mark.parametrize("n_channels", [1, 64])
def test_fewer_records_than_eight_sigma_drown(n_channels):
    """The noise on a count is 2σ records, however many channels there are."""
    sigma = 5.0
    release = MomentRelease(n_channels, CLIP, sigma)
    reference = ChannelMoments.standard(n_channels)
    for n, drowns in ((39, True), (40, True), (41, False)):
        sum_V = release.sum_of(torch.zeros(n, n_channels), reference)
        if drowns:
            with pytest.raises(DataError, match=r"drowned in noise.*more records.*statistics_clip"):
                release.moments_of(sum_V, reference, release.deviation)
        else:
            release.moments_of(sum_V, reference, release.deviation)


@pytest.mark.parametrize("count", [0.0, -3.0, float("nan")])
def test_what_counts_nothing_has_no_moments(count):
    """Noise or none."""
    release, reference = MomentRelease(2, CLIP, 1.0), ChannelMoments.standard(2)
    total_V = torch.tensor([count, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    with pytest.raises(DataError, match="drowned"):
        release.moments_of(total_V, reference, 0.0)


def as_noisy_as_said(release, sigma, randomness, share=1.0, alpha=1e-3):
    """Whether noise has the variance (σ · bound · share)², of the count and of moments, by χ²."""
    zero_V = torch.zeros(release.n_values, dtype=torch.float64)
    deviation = share * release.deviation
    draws = torch.stack([noisy(zero_V, randomness, deviation) for _ in range(400)])
    scaled = draws / (sigma * release.bound * share)
    for part in (scaled[:, :1], scaled[:, 1:], scaled):  # the count's, the moments', all
        low, high = stats.chi2(part.numel()).interval(1 - alpha)
        if not low <= part.square().sum().item() <= high:
            return False
    return True


def test_noise_has_the_deviation_that_is_said():
    """And half of it, or none, is found out; so is a share that is none."""
    release = MomentRelease(8, CLIP, 2.0)
    assert as_noisy_as_said(release, 2.0, Seeded(generator(0)))
    assert as_noisy_as_said(release, 2.0, Seeded(generator(1)), share=0.25)
    assert as_noisy_as_said(release, 2.0, Secret(), alpha=1e-9)
    assert not as_noisy_as_said(MomentRelease(8, CLIP, 1.0), 2.0, Seeded(generator(2)))
    assert not as_noisy_as_said(MomentRelease(8, CLIP / 2, 2.0), 4.0, Seeded(generator(3)))
    assert not as_noisy_as_said(release, 2.0, Silent())


def test_noise_is_added_to_the_sum_and_nothing_is_lost():
    """The noise of a seed taken off again, the sum is there."""
    release, reference = MomentRelease(3, CLIP, 2.0), ChannelMoments.standard(3)
    sum_V = release.sum_of(drawn((9, 3)), reference)
    noise = Seeded(generator(4)).gaussian(release.n_values, release.deviation)
    noisy_V = noisy(sum_V, Seeded(generator(4)), release.deviation)
    torch.testing.assert_close(noisy_V - torch.from_numpy(noise), sum_V)


def test_noisy_moments_are_near_the_exact_ones():
    """With records enough: within five deviations of the noise on each."""
    y = drawn((20000, 3))
    mean_C, var_C = exact(y)
    reference = ChannelMoments(mean_C, var_C)
    release = MomentRelease(3, 5.0, 3.0)
    noisy_V = noisy(release.sum_of(y, reference), Seeded(generator(5)), release.deviation)
    found = release.moments_of(noisy_V, reference, release.deviation)
    within_C = 5 * release.deviation / len(y) * var_C.clamp(min=1)
    assert ((found.mean_C - mean_C).abs() <= within_C).all()
    assert ((found.var_C - var_C).abs() <= 3 * within_C + 0.05 * var_C).all()
