"""Gaussian noise from the operating system: normal, independent, and never the same twice."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from securefl.exchange.noise import gaussian


def test_noise_is_gaussian():
    """Kolmogorov and Smirnov see no difference to a normal distribution in 200 000 draws."""
    drawn = gaussian(200_000, 3.0)
    assert stats.kstest(drawn, stats.norm(scale=3.0).cdf).pvalue > 1e-4
    assert np.abs(drawn).max() > 12  # the tails are there, too
    assert drawn.mean() == pytest.approx(0, abs=0.05)


def test_draws_are_independent():
    """No draw tells of the next."""
    drawn = gaussian(100_000, 1.0)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.02
    assert len(np.unique(drawn)) == len(drawn)


@given(size=st.integers(0, 3000), deviation=st.floats(0, 1e6))
def test_noise_has_the_size_asked_for(size, deviation):
    """And every draw is a number."""
    drawn = gaussian(size, deviation)
    assert drawn.shape == (size,)
    assert drawn.dtype == np.float64
    assert np.isfinite(drawn).all()


def test_without_deviation_there_is_no_noise():
    """Where nothing is flooded, nothing is added."""
    np.testing.assert_array_equal(gaussian(1000, 0.0), np.zeros(1000))


def test_two_calls_differ_whatever_was_seeded():
    """Noise that a seed gives could be taken off again."""
    drawn = []
    for _ in range(2):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 -- what a run might do
        torch.manual_seed(0)
        drawn.append(gaussian(1000, 1.0))
    assert not np.isin(drawn[0], drawn[1]).any()


@pytest.mark.parametrize("sign", [0, 1])
def test_the_extreme_words_are_finite_noise(monkeypatch, sign):
    """The least of 63 bits is the far end of a tail, the largest the middle."""
    far, middle = sign, 2**64 - 2 + sign
    for word, low, high in ((far, 9, 10), (middle, 0, 1e-12)):
        monkeypatch.setattr("os.urandom", lambda n, w=word: w.to_bytes(8, "little") * (n // 8))
        assert low <= abs(gaussian(1, 1.0)[0]) <= high
