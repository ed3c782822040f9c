"""Quantity skew is in the sizes, feature skew in the sensors, and the mixes have both."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from securefl.data.partition import (
    Dirichlet,
    Iid,
    LabelQuantitySkew,
    QuantitySkew,
    parse_partition,
    split_clients,
)
from securefl.data.skew import FeatureNoise, add_noise, noise_ladder, skewed_clients
from securefl.errors import ConfigError, DataError

pytestmark = pytest.mark.shapes

some_labels = st.builds(
    lambda sizes, seed: np.random.default_rng(seed).permutation(
        np.repeat(np.arange(len(sizes)), sizes)
    ),
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.integers(0, 2**32),
)
alphas = st.floats(0.5, 1e6)
skews = st.one_of(st.builds(QuantitySkew, alphas), st.builds(LabelQuantitySkew, alphas))
seeds = st.integers(0, 2**32)
some_noise = st.builds(FeatureNoise, st.floats(0, 5), st.floats(-5, 5), st.floats(0, 1))


def split_or_skip(labels, n_clients, partition, seed):
    try:
        return split_clients(labels, n_clients, partition, np.random.default_rng(seed))
    except ConfigError:
        assume(False)


def spread_of_sizes(partition, seed):
    """The largest client's size over the mean size."""
    labels = np.repeat(np.arange(10), 500)
    clients = split_clients(labels, 5, partition, np.random.default_rng(seed))
    return max(map(len, clients)) / 1000


def spread_of_classes(partition, seed):
    """How far the clients' class shares lie from the federation's tenth, at the furthest."""
    labels = np.repeat(np.arange(10), 500)
    clients = split_clients(labels, 5, partition, np.random.default_rng(seed))
    counts = np.array([np.bincount(labels[held], minlength=10) for held in clients])
    return float(np.abs(counts / counts.sum(axis=1, keepdims=True) - 0.1).max())


@given(some_labels, st.integers(1, 6), skews, seeds)
def test_every_sample_goes_to_exactly_one_client(labels, n_clients, partition, seed):
    """Clients hold disjoint samples, two or more each, and all samples between them."""
    clients = split_or_skip(labels, n_clients, partition, seed)
    assert len(clients) == n_clients
    assert min(map(len, clients)) >= 2
    np.testing.assert_array_equal(np.sort(np.concatenate(clients)), np.arange(len(labels)))
    assert all((np.diff(held) > 0).all() for held in clients)


@given(some_labels, st.integers(1, 6), skews, seeds)
def test_the_seed_decides_who_holds_what(labels, n_clients, partition, seed):
    """The same seed gives every client the same samples again."""
    clients = split_or_skip(labels, n_clients, partition, seed)
    again = split_or_skip(labels, n_clients, partition, seed)
    for held, held_again in zip(clients, again, strict=True):
        np.testing.assert_array_equal(held, held_again)


@given(some_labels, st.integers(1, 6), alphas, seeds)
def test_quantity_skew_gives_a_client_the_same_share_of_every_class(labels, n_clients, alpha, seed):
    """A client's shares of two classes differ by the rounding of one sample of each at most."""
    sizes = np.bincount(labels)
    for held in split_or_skip(labels, n_clients, QuantitySkew(alpha), seed):
        shares = np.bincount(labels[held], minlength=len(sizes)) / sizes
        low, high = (shares - 1 / sizes).max(), (shares + 1 / sizes).min()
        assert low <= high + 1e-9  # there is one share that all of them round


@pytest.mark.parametrize("seed", range(5))
def test_a_small_alpha_skews_the_sizes_and_a_large_one_does_not(seed):
    """Sizes are near n/K for a large alpha, and far from it for a small one."""
    for skew in (QuantitySkew, LabelQuantitySkew):
        assert spread_of_sizes(skew(1e5), seed) < 1.05
        assert spread_of_sizes(skew(0.3), seed) > 1.4


@pytest.mark.parametrize("seed", range(5))
def test_only_the_mix_skews_the_classes(seed):
    """With quantity skew every client has all classes alike; with the mix it has not."""
    assert spread_of_classes(QuantitySkew(1.0), seed) < 0.02
    assert spread_of_classes(LabelQuantitySkew(1.0), seed) > 0.1


def test_the_mix_skews_sizes_more_than_label_skew_does():
    """Over many draws the largest client of the mix is larger than that of label skew alone."""
    mix = np.mean([spread_of_sizes(LabelQuantitySkew(0.5), seed) for seed in range(50)])
    labels_alone = np.mean([spread_of_sizes(Dirichlet(0.5), seed) for seed in range(50)])
    assert mix > 1.3 * labels_alone


@given(
    st.one_of(
        st.builds(skew, st.floats(0, exclude_min=True, allow_infinity=False))
        for skew in (QuantitySkew, LabelQuantitySkew)
    )
)
def test_a_skew_is_read_back_from_its_text(partition):
    """What a partition is written as, is what it is read from."""
    assert parse_partition(str(partition)) == partition


@pytest.mark.parametrize("text", ["quantity:0.5", "quantity:1", "label-quantity:0.5"])
def test_a_text_is_given_back_by_its_partition(text):
    """A configuration's text survives being read and written."""
    assert str(parse_partition(text)) == text


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("quantity", "must have the form"),
        ("quantity:", "must have the form"),
        ("quantity:nan", "must have the form"),
        ("label-quantity:half", "must have the form"),
        ("label:0.5", "must have the form"),
        ("quantity:0", 'above 0; write "quantity:0.5"'),
        ("label-quantity:-1", 'above 0; write "label-quantity:0.5"'),
    ],
)
def test_a_wrong_text_is_refused_with_the_text_and_the_rule(text, rule):
    """The message shows a text that would do."""
    with pytest.raises(ConfigError, match=rule) as refused:
        parse_partition(text)
    assert f'partition = "{text}"' in str(refused.value)
    assert "quantity:0.5" in str(refused.value)


@pytest.mark.parametrize("skew", [QuantitySkew, LabelQuantitySkew])
@pytest.mark.parametrize("alpha", [1e-300, 1e-8, 1e-3])
def test_a_skew_that_leaves_clients_empty_says_the_way_out(skew, alpha):
    """A vanishing alpha gives everything to one client, which is refused."""
    labels = np.repeat(np.arange(10), 23)
    with pytest.raises(ConfigError, match="raise alpha, or have fewer clients"):
        split_clients(labels, 5, skew(alpha), np.random.default_rng(0))


@given(st.integers(1, 30), st.floats(0, 10), st.floats(-10, 10), st.floats(0, 1))
def test_the_ladder_climbs_to_sigma_and_keeps_the_mean(n_clients, sigma, mean, mask_share):
    """Every client has a sigma of its own, the last one all of it; the means cancel."""
    noises = noise_ladder(n_clients, sigma, mean, mask_share)
    sigmas = [noise.sigma for noise in noises]
    np.testing.assert_allclose(sigmas, sigma * np.arange(1, n_clients + 1) / n_clients)
    assert sum(noise.mean for noise in noises) == pytest.approx(0, abs=1e-9)
    assert max(abs(noise.mean) for noise in noises) <= abs(mean)
    assert {noise.mask_share for noise in noises} == {mask_share}


@given(some_noise, seeds, st.sampled_from([torch.float32, torch.float64]))
def test_noise_moves_only_what_the_mask_leaves_open(noise, seed, dtype):
    """Outside the mask x' = x + mean; inside, as many positions as the share says have noise."""
    x = torch.linspace(0, 1, 5 * 3 * 4, dtype=dtype).reshape(5, 3, 4)
    before = x.clone()
    moved = add_noise(x, noise, np.random.default_rng(seed))
    assert torch.equal(x, before)
    assert moved.shape == x.shape
    assert moved.dtype == dtype
    noisy = (moved - x - noise.mean).abs() > 1e-5
    assert int(noisy.any(dim=0).sum()) <= round(noise.mask_share * 12)
    if noise.sigma > 0.01:
        assert int(noisy.any(dim=0).sum()) == round(noise.mask_share * 12)


def test_noise_has_the_clients_sigma_and_mean():
    """Over many samples the moments of x' - x are those that the noise names."""
    x = torch.zeros(4000, 10)
    moved = add_noise(x, FeatureNoise(0.3, mean=0.7), np.random.default_rng(0))
    assert float(moved.std()) == pytest.approx(0.3, rel=0.02)
    assert float(moved.mean()) == pytest.approx(0.7, rel=0.02)


@pytest.mark.parametrize("partition", [Iid(), Dirichlet(0.5), LabelQuantitySkew(1.0)], ids=str)
def test_without_noise_clients_hold_what_the_partition_deals(partition):
    """Sigma 0 leaves the samples as they are, each with its label."""
    y = torch.arange(10).repeat(30)
    x = torch.arange(300, dtype=torch.float64)[:, None] + 1000 * y[:, None]
    clients = skewed_clients(x, y, partition, noise_ladder(4, 0.0), np.random.default_rng(3))
    held = split_clients(y.numpy(), 4, partition, np.random.default_rng(3))
    for (own_x, own_y), index in zip(clients, held, strict=True):
        assert torch.equal(own_x, x[index])
        assert torch.equal(own_y, y[index])


def test_label_and_feature_skew_mix():
    """Each client has few classes and the noise of its own sensor."""
    y = torch.arange(10).repeat(200)
    x = torch.zeros(2000, 20)
    noises = noise_ladder(4, 0.8)
    clients = skewed_clients(x, y, Dirichlet(0.1), noises, np.random.default_rng(0))
    for (own_x, own_y), noise in zip(clients, noises, strict=True):
        assert float(own_x.std()) == pytest.approx(noise.sigma, rel=0.05)
        shares = own_y.bincount(minlength=10) / len(own_y)
        assert float(shares.max()) > 0.2


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"sigma": -0.1}, "sigma"),
        ({"sigma": float("nan")}, "sigma"),
        ({"sigma": 0.1, "mean": float("inf")}, "mean"),
        ({"sigma": 0.1, "mask_share": 1.1}, "mask_share"),
        ({"sigma": 0.1, "mask_share": float("nan")}, "mask_share"),
    ],
)
def test_noise_out_of_range_is_refused_by_name(arguments, name):
    """The message names the number and its rule."""
    with pytest.raises(ConfigError, match=f"^{name} = .*must be"):
        FeatureNoise(**arguments)


def test_no_clients_no_floats_and_missing_labels_are_refused():
    """What cannot be skewed is an error before anything is drawn."""
    rng = np.random.default_rng(0)
    with pytest.raises(ConfigError, match="clients = 0"):
        noise_ladder(0, 0.1)
    with pytest.raises(DataError, match="convert them to float32"):
        add_noise(torch.zeros(4, 2, dtype=torch.uint8), FeatureNoise(0.1), rng)
    with pytest.raises(DataError, match="4 inputs but 3 labels"):
        skewed_clients(
            torch.zeros(4, 2), torch.zeros(3, dtype=torch.int64), Iid(), noise_ladder(2, 0.1), rng
        )
