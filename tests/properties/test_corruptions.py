"""A corrupted image is the worse, the more severe; it keeps its shape, type and range."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn import datasets

from securefl.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from securefl.errors import ConfigError, DataError

every_corruption = pytest.mark.parametrize("name", CORRUPTIONS)

some_images = hnp.arrays(
    st.sampled_from([np.float16, np.float32, np.float64]),
    st.tuples(
        st.integers(0, 3), st.sampled_from([1, 2, 3]), st.integers(8, 20), st.integers(8, 40)
    ),
    elements=st.floats(0, 1, width=16),
)


@pytest.fixture(scope="module")
def digits():
    """The first 600 of scikit-learn's digits of 8 × 8."""
    return (datasets.load_digits().images[:600] / 16)[:, None]


@pytest.fixture(scope="module")
def photographs():
    """Pieces of a colour photograph, 48 × 32, with edges and flat sky."""
    china = datasets.load_sample_image("china.jpg")[:384, :640] / 255
    tiles = china.reshape(8, 48, 20, 32, 3).transpose(0, 2, 4, 1, 3)
    return tiles.reshape(-1, 3, 48, 32)


def distance(images, name, severity, seed=0):
    corrupted = corrupt(images, name, severity, np.random.default_rng(seed))
    return float(((corrupted - images) ** 2).mean())


def test_there_are_four_families():
    """Noise, blur, weather and digital corruptions, three or more each."""
    families = [corruption.family for corruption in CORRUPTIONS.values()]
    assert set(families) == {"noise", "blur", "weather", "digital"}
    assert min(families.count(family) for family in families) >= 3
    assert len(CORRUPTIONS) >= 10


@every_corruption
def test_a_higher_severity_is_further_from_the_clean_digits(name, digits):
    """The mean squared distance grows with every step, whatever is drawn."""
    for seed in (0, 1):
        distances = [distance(digits, name, severity, seed) for severity in SEVERITIES]
        assert distances[0] > 0
        assert (np.diff(distances) > 0).all(), distances


@every_corruption
def test_a_higher_severity_is_further_from_a_clean_photograph(name, photographs):
    """The same holds for colour images that are higher than wide."""
    distances = [distance(photographs, name, severity) for severity in SEVERITIES]
    assert distances[0] > 0
    assert (np.diff(distances) > 0).all(), distances


@every_corruption
def test_the_worst_severity_leaves_a_digit(name, digits):
    """At severity 5 the digits still correlate with the clean ones by more than a half."""
    corrupted = corrupt(digits[:200], name, 5, np.random.default_rng(0))
    pairs = zip(corrupted, digits[:200], strict=True)
    assert np.mean([np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in pairs]) > 0.5


@every_corruption
@settings(max_examples=15, deadline=None)
@given(images=some_images, severity=st.sampled_from(SEVERITIES), seed=st.integers(0, 2**32))
def test_shape_type_and_range_are_kept(name, images, severity, seed):
    """Any images of at least 8 × 8 come back as they were, in [0, 1], and are not changed."""
    before = images.copy()
    corrupted = corrupt(images, name, severity, np.random.default_rng(seed))
    assert corrupted.shape == images.shape
    assert corrupted.dtype == images.dtype
    assert np.isfinite(corrupted).all()
    assert ((corrupted >= 0) & (corrupted <= 1)).all()
    np.testing.assert_array_equal(images, before)


@every_corruption
@pytest.mark.parametrize("channels", [1, 3])
def test_the_seed_decides_the_result(name, channels, digits):
    """The same generator state gives the same images again."""
    images = digits[:20].repeat(channels, axis=1)
    first, again = (corrupt(images, name, 3, np.random.default_rng(7)) for _ in range(2))
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize(
    "name",
    ["gaussian_noise", "shot_noise", "impulse_noise", "motion_blur", "fog", "snow", "frost"],
)
def test_every_image_has_its_own_draw(name, digits):
    """Two copies of a digit are not corrupted alike, and another seed does it differently."""
    images = digits[:1].repeat(2, axis=0)
    first, second = corrupt(images, name, 5, np.random.default_rng(0))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, corrupt(images, name, 5, np.random.default_rng(1))[0])


@every_corruption
def test_the_float_type_makes_no_difference(name, digits):
    """Float32 images are corrupted as float64 ones are, to the rounding."""
    images = digits[:20]
    double = corrupt(images, name, 4, np.random.default_rng(0))
    single = corrupt(images.astype(np.float32), name, 4, np.random.default_rng(0))
    np.testing.assert_allclose(single, double, atol=1e-6)


@pytest.mark.parametrize("name", ["gaussian_blur", "defocus_blur", "motion_blur", "zoom_blur"])
def test_a_blur_leaves_a_flat_image(name):
    """What is the same everywhere has nothing to smear, up to its edges."""
    flat = np.full((2, 3, 16, 24), 0.3)
    np.testing.assert_allclose(corrupt(flat, name, 5, np.random.default_rng(0)), flat, atol=1e-12)


def test_lengths_grow_with_the_image(photographs):
    """A blurred image of three times the size is the blurred one, three times as large."""
    small = photographs[:10, :, :32]
    large = small.repeat(3, axis=2).repeat(3, axis=3)
    rng = np.random.default_rng(0)
    blurred = corrupt(small, "gaussian_blur", 5, rng)
    of_large = corrupt(large, "gaussian_blur", 5, rng)[:, :, 1::3, 1::3]
    assert np.abs(blurred - of_large).mean() < 0.2 * np.abs(blurred - small).mean()


def test_brightness_keeps_the_hue():
    """The channels of a pixel keep their ratio; black turns grey."""
    image = np.zeros((1, 3, 8, 8))
    image[0, :, 0, 0] = (0.5, 0.25, 0.0)
    bright = corrupt(image, "brightness", 5, np.random.default_rng(0))
    np.testing.assert_allclose(bright[0, :, 0, 0], (0.8, 0.4, 0.0))
    np.testing.assert_allclose(bright[0, :, 1, 1], (0.3, 0.3, 0.3))


def test_impulses_hit_the_share_that_the_level_names():
    """At severity 5 seven percent of all values are lost, half to black, half to white."""
    grey = np.full((50, 1, 32, 32), 0.5)
    hit = corrupt(grey, "impulse_noise", 5, np.random.default_rng(0))
    assert (hit == 0).mean() == pytest.approx(0.035, abs=0.003)
    assert (hit == 1).mean() == pytest.approx(0.035, abs=0.003)


def test_an_unknown_corruption_is_refused_with_those_there_are():
    """The message lists the names."""
    with pytest.raises(ConfigError, match=r'corruption = "rain": must be one of gaussian_noise, '):
        corrupt(np.zeros((1, 1, 8, 8)), "rain", 1, np.random.default_rng(0))


@pytest.mark.parametrize("severity", [0, 6, -1, 2.5])
def test_an_unknown_severity_is_refused_with_its_range(severity):
    """Severities are 1 to 5."""
    with pytest.raises(ConfigError, match=r"must be a whole number from 1 \(mild\) to 5"):
        corrupt(np.zeros((1, 1, 8, 8)), "fog", severity, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("images", "rule"),
    [
        (np.zeros((1, 8, 8)), r"shape \(n, c, h, w\)"),
        (np.zeros((1, 1, 8, 8), dtype=np.uint8), "pass floats"),
        (np.zeros((1, 1, 7, 9)), "sides of at least 8"),
        (np.zeros((1, 0, 8, 8)), "need a channel"),
        (np.full((1, 1, 8, 8), 255.0), "divide 8-bit pixels by 255"),
        (np.full((1, 1, 8, 8), np.nan), r"outside \[0, 1\]"),
    ],
)
def test_what_is_no_batch_of_images_is_refused(images, rule):
    """Wrong shapes, types and ranges are data errors."""
    with pytest.raises(DataError, match=rule):
        corrupt(images, "fog", 1, np.random.default_rng(0))
