"""Low-quality data come at stated shares, are what they say, and hang on the seed alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from securefl.data.digits import load_digits
from securefl.data.partition import parse_partition, split_clients
from securefl.data.quality import (
    DENSITY,
    ClientQualities,
    Quality,
    assign_qualities,
    spoilt_clients,
    spoilt_images,
    spoilt_readings,
)
from securefl.data.sizes import Dominant, dominant_sizes
from securefl.errors import ConfigError, DataError

pytestmark = pytest.mark.shapes

OF_IMAGES = (Quality.IRRELEVANT, Quality.BLURRED, Quality.SALT_AND_PEPPER)
SENSORS = (Quality.POLLUTED, Quality.NOISY)
seeds = st.integers(0, 2**32)


def rng(seed=0):
    return np.random.default_rng(seed)


def images(n=200, channels=1, side=12):
    return torch.rand(n, channels, side, side, generator=torch.Generator().manual_seed(0))


def some_clients(n_clients, shape):
    """Of five to fourteen samples, in [0, 1]."""
    drawn = torch.Generator().manual_seed(2)
    sizes = [5 + i for i in range(n_clients)]
    return [(torch.rand(n, *shape, generator=drawn), torch.arange(n)) for n in sizes]


# --- shares of clients ---


@st.composite
def some_shares(draw):
    """Of any kinds, together at most 1."""
    parts = draw(st.lists(st.floats(0, 1), min_size=6, max_size=6))
    kinds = draw(st.lists(st.sampled_from(list(Quality)[1:]), unique=True))
    total = max(1.0, sum(parts))
    return {kind: part / total for kind, part in zip(kinds, parts, strict=False)}


@given(st.integers(1, 500), some_shares(), seeds)
def test_every_quality_has_its_share_of_the_clients(n_clients, shares, seed):
    """To less than one client; what is left over is normal."""
    found = assign_qualities(n_clients, shares, rng(seed))
    assert len(found) == n_clients
    for quality, share in shares.items():
        assert abs(found.count(quality) - share * n_clients) <= 1
    assert abs(found.count(Quality.NORMAL) - (1 - sum(shares.values())) * n_clients) <= 1
    assert found == assign_qualities(n_clients, shares, rng(seed))


def test_which_clients_are_of_low_quality_is_drawn():
    """Another seed has other ones; the first clients are not favoured."""
    first = [assign_qualities(20, {Quality.BLURRED: 0.5}, rng(seed))[0] for seed in range(40)]
    assert 10 <= first.count(Quality.BLURRED) <= 30


@pytest.mark.parametrize("shares", [(0.6, 0.5), (-0.1, 0.5), (float("nan"), 0.1)])
def test_shares_of_more_than_all_clients_are_refused(shares):
    """The message lists them."""
    with pytest.raises(ConfigError, match=r"irrelevant .*, blurred 0\.. ?; each from 0 on"):
        assign_qualities(10, dict(zip(OF_IMAGES, shares, strict=False)), rng())


# --- what a quality does ---


@settings(deadline=None)  # the first irrelevant ones are read from scikit-learn's files
@given(st.sampled_from(list(OF_IMAGES)), st.sampled_from([1, 3]), st.integers(8, 40), seeds)
def test_spoilt_images_are_images_and_hang_on_the_seed(quality, channels, side, seed):
    """Of the same shape and type, in [0, 1], other than before, the same for the same seed."""
    x = images(3, channels, side)
    spoilt = spoilt_images(x, quality, rng(seed))
    assert spoilt.shape == x.shape
    assert spoilt.dtype == x.dtype
    assert 0 <= spoilt.min() <= spoilt.max() <= 1
    assert not torch.equal(spoilt, x)
    assert torch.equal(spoilt, spoilt_images(x, quality, rng(seed)))


def test_salt_and_pepper_hit_three_pixels_in_ten():
    """Half of them white, half black; no other pixel changes."""
    x = images(400) * 0.8 + 0.1
    spoilt = spoilt_images(x, Quality.SALT_AND_PEPPER, rng())
    hit = spoilt != x
    assert hit.double().mean().item() == pytest.approx(DENSITY, abs=0.01)
    assert set(spoilt[hit].unique().tolist()) == {0.0, 1.0}
    assert spoilt[hit].mean().item() == pytest.approx(0.5, abs=0.02)


def test_a_hit_pixel_of_a_colour_image_is_black_or_white():
    """Not red or green: all its channels go together."""
    spoilt = spoilt_images(images(20, 3) * 0.8 + 0.1, Quality.SALT_AND_PEPPER, rng())
    extreme = (spoilt == 0) | (spoilt == 1)
    assert torch.equal(extreme.all(1), extreme.any(1))
    assert (spoilt.amin(1) == spoilt.amax(1))[extreme.all(1)].all()


def test_blur_keeps_brightness_and_takes_edges():
    """The mean stays; neighbouring pixels differ by less than a third as much."""
    x = images(50, side=16)
    blurred = spoilt_images(x, Quality.BLURRED, rng())
    assert blurred.mean().item() == pytest.approx(x.mean().item(), abs=0.01)
    assert blurred.diff(dim=3).abs().mean() < x.diff(dim=3).abs().mean() / 3


def test_irrelevant_images_have_nothing_of_the_clients_own():
    """They do not hang on what was there; they differ from each other."""
    one, other = (
        spoilt_images(x, Quality.IRRELEVANT, rng())
        for x in (images(30), torch.zeros(30, 1, 12, 12))
    )
    assert torch.equal(one, other)
    assert len(one.flatten(1).unique(dim=0)) == 30


def test_a_noisy_sensor_errs_by_one_deviation_of_each_feature():
    """Independently for each reading."""
    x = torch.randn(4000, 5, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 6)
    population = ClientQualities.of(x)
    error = spoilt_readings(x, Quality.NOISY, population, rng()) - x
    torch.testing.assert_close(error.std(dim=0), population.std, rtol=0.05, atol=0)
    assert error.mean(dim=0).abs().max() < 0.3


@given(st.integers(2, 20), seeds)
def test_a_polluted_sensor_reads_one_invalid_value_for_half_its_features(d, seed):
    """Beyond anything measured, for all samples alike; the other features are untouched."""
    x = torch.rand(30, d, generator=torch.Generator().manual_seed(1))
    spoilt = spoilt_readings(x, Quality.POLLUTED, ClientQualities.of(x), rng(seed))
    broken = (spoilt != x).any(dim=0)
    assert int(broken.sum()) == d // 2
    assert torch.equal(spoilt[:, ~broken], x[:, ~broken])
    assert (spoilt[:, broken] == spoilt[0, broken]).all()
    assert (spoilt[0, broken] > x.amax(dim=0)[broken]).all()


def test_a_quality_of_the_other_kind_of_data_is_refused():
    """Readings are not blurred, and images have no sensor."""
    x = images(3)
    with pytest.raises(ConfigError, match='"noisy" is of readings'):
        spoilt_images(x, Quality.NOISY, rng())
    flat = x.flatten(1)
    with pytest.raises(ConfigError, match='"blurred" is of images'):
        spoilt_readings(flat, Quality.BLURRED, ClientQualities.of(flat), rng())


def test_data_that_cannot_be_spoilt_are_refused():
    """Pixels in 0..255, and a sensor of one feature."""
    with pytest.raises(DataError, match=r"outside \[0, 1\]"):
        spoilt_images(images(3) * 255, Quality.NORMAL, rng())
    one = torch.rand(4, 1)
    with pytest.raises(DataError, match="1 feature"):
        spoilt_readings(one, Quality.POLLUTED, ClientQualities.of(one), rng())


# --- who has what ---


@given(
    st.lists(st.integers(30, 90), min_size=2, max_size=10),
    st.integers(1, 30),
    st.floats(0.05, 0.95),
)
def test_a_client_has_its_share_of_its_own_class(sizes, n_clients, share):
    """All samples are dealt; own class and size are right to a sample for each class."""
    sizes = np.array(sizes)
    try:
        dealt = dominant_sizes(sizes, n_clients, Dominant(share))
    except ConfigError:
        assume(False)
    size = sizes.sum() / n_clients
    assert (dealt.sum(axis=1) == sizes).all()
    assert dealt.min() >= 0
    client = np.arange(n_clients)
    assert np.abs(dealt[client % len(sizes), client] - share * size).max() <= 2
    assert np.abs(dealt.sum(axis=0) - size).max() <= len(sizes) + 1


@pytest.mark.parametrize(("share", "n_clients"), [(0.6, 50), (0.37, 10)])
def test_digits_are_dealt_at_the_papers_shares(share, n_clients):
    """About 60 % or 37 % of each client's digits are one digit, the commonest."""
    y = load_digits().train_y.numpy()
    parts = split_clients(y, n_clients, parse_partition(f"dominant:{share}"), rng())
    commonest = [np.bincount(y[part]).max() / len(part) for part in parts]
    assert np.mean(commonest) == pytest.approx(share, abs=0.01)
    assert max(abs(c - share) for c in commonest) < 0.1
    assert len(set(np.concatenate(parts).tolist())) == len(y)


@pytest.mark.parametrize(
    ("share", "n_clients", "sizes"), [(0.9, 15, [30] * 10), (0.3, 2, [2] * 3), (0.8, 3, [100, 9])]
)
def test_shares_that_the_classes_do_not_give_are_refused(share, n_clients, sizes):
    """The message names the classes' sizes and the way out."""
    with pytest.raises(ConfigError, match=r"cannot dominate .* take a smaller share"):
        dominant_sizes(np.array(sizes), n_clients, Dominant(share))


@pytest.mark.parametrize("share", ["0", "1", "1.5", "-0.5"])
def test_a_share_outside_0_to_1_is_refused(share):
    """The message shows how to write one."""
    with pytest.raises(ConfigError, match=r'write "dominant:0\.6"'):
        parse_partition(f"dominant:{share}")


# --- all clients at once ---


@given(st.sampled_from([(1, 8, 8), (3, 8, 8), (5,)]), seeds)
def test_a_clients_samples_have_the_quality_that_is_drawn_for_it(shape, seed):
    """Normal ones stay as they are, others change, shapes and labels stay; the seed decides."""
    kinds = [*SENSORS, *(OF_IMAGES if len(shape) == 3 else ())]
    clients = some_clients(10, shape)
    shares = dict.fromkeys(kinds, 0.15)
    (spoilt, qualities), (again, _) = (spoilt_clients(clients, shares, rng(seed)) for _ in range(2))
    assert qualities == assign_qualities(10, shares, rng(seed))
    for (x, y), (before, labels), (repeated, _), quality in zip(
        spoilt, clients, again, qualities, strict=True
    ):
        assert torch.equal(x, before) == (quality is Quality.NORMAL)
        assert torch.equal(x, repeated)
        assert x.shape == before.shape
        assert y is labels


def test_pixels_are_readings_where_a_sensor_is_meant():
    """A polluted camera has half of its pixels at one value each, for all its images."""
    clients = some_clients(4, (1, 8, 8))
    (spoilt, _), population = (
        spoilt_clients(clients, {Quality.POLLUTED: 1.0}, rng()),
        ClientQualities.of(torch.cat([x.flatten(1) for x, _ in clients])),
    )
    for (x, _), (before, _) in zip(spoilt, clients, strict=True):
        broken = (x != before).any(dim=0).flatten()
        assert int(broken.sum()) == 32
        expected = (population.mean + 5 * population.std)[broken]
        torch.testing.assert_close(x.flatten(1)[:, broken], expected.expand(len(x), -1))


def test_a_regressions_readings_keep_their_targets():
    """Two targets a sample go with their readings; readings are not blurred."""
    clients = [(x, x[:, :2] + 0.5) for x, _ in some_clients(4, (3,))]
    spoilt, _ = spoilt_clients(clients, {Quality.NOISY: 0.5}, rng())
    assert all(y is before for (_, y), (_, before) in zip(spoilt, clients, strict=True))
    with pytest.raises(ConfigError, match='"blurred" is of images'):
        spoilt_clients(clients, {Quality.BLURRED: 1.0}, rng())
