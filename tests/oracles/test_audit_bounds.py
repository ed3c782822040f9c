"""Lower bounds on ε: pinned values, coverage, and few false alarms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefl.audit.bounds.canary_bounds import (
    canary_bound,
    one_run_bound,
    probability_of,
    refuted_epsilon,
)
from securefl.audit.bounds.gaussian_dp import gaussian_epsilon
from securefl.errors import DataError
from securefl.privacy.accountants import epsilon
from securefl.privacy.events import Gaussian


@pytest.mark.parametrize(
    ("canaries", "guesses", "right", "delta", "expected"),
    [(1000, 100, 75, 1e-4, 0.673), (100_000, 1510, 1439, 1e-5, 2.675)],
)
def test_the_one_run_bound_is_the_papers(canaries, guesses, right, delta, expected):
    """At 95 % confidence."""
    found = refuted_epsilon(canaries, guesses, right, delta)
    assert found == pytest.approx(expected, abs=1e-3)
    assert probability_of(found, canaries, guesses, right, delta) == pytest.approx(0.05, abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 500), st.data())
def test_more_right_guesses_refute_more(canaries, data):
    """And a larger δ refutes less; half of them right refute nothing."""
    guesses = data.draw(st.integers(2, canaries))
    right = data.draw(st.integers(1, guesses))
    found = refuted_epsilon(canaries, guesses, right, 1e-5)
    assert 0 <= refuted_epsilon(canaries, guesses, right - 1, 1e-5) <= found
    assert refuted_epsilon(canaries, guesses, right, 1e-3) <= found
    assert refuted_epsilon(canaries, guesses, guesses // 2, 1e-5) == 0


def test_pure_noise_alarms_in_at_most_five_of_a_hundred_runs():
    """Over 400 runs; the best of twenty numbers of guesses, uncorrected, alarms more often."""
    rng = np.random.default_rng(0)
    m, alarms, uncorrected = 400, 0, 0
    for _ in range(400):
        scores, included = rng.normal(size=m), rng.random(m) < 0.5
        alarms += one_run_bound(scores, included, 1e-5).epsilon > 0
        uncorrected += any(
            one_run_bound(scores, included, 0.0, guesses=[r]).epsilon > 0
            for r in range(20, m + 1, 20)
        )
    assert alarms / 400 <= 0.05
    assert uncorrected / 400 > 0.1


def test_a_perfect_attack_reaches_the_ceiling_and_no_more():
    """Which grows with the number of canaries."""
    rng = np.random.default_rng(0)
    ceilings = []
    for m in (20, 200, 2000):
        included = rng.random(m) < 0.5
        found = one_run_bound(included.astype(float), included, 1e-5)
        assert 0 < found.epsilon <= found.ceiling
        ceilings.append(found.ceiling)
    assert ceilings == sorted(ceilings)


def test_randomised_response_is_not_refuted_beyond_its_own_epsilon():
    """Each bit is told with probability e^ε / (1 + e^ε): of 200 runs at most 5 % are too high."""
    rng, truth, too_high = np.random.default_rng(0), 1.0, 0
    q = math.exp(truth) / (1 + math.exp(truth))
    for _ in range(200):
        included = rng.random(1000) < 0.5
        told = np.where(rng.random(1000) < q, included, ~included)
        found = one_run_bound(told + 1e-3 * rng.normal(size=1000), included, 0.0)
        too_high += found.epsilon > truth
    assert too_high <= 10


@pytest.mark.parametrize(
    ("scores", "included"),
    [([1.0], [True]), ([1.0, 2.0], [True]), ([1.0, math.nan], [True, False])],
)
def test_scores_that_say_nothing_are_refused(scores, included):
    """Too few, of another number, or no numbers."""
    with pytest.raises(DataError):
        one_run_bound(scores, included, 1e-5)


@pytest.mark.parametrize("mu", [0.2, 1.0, 4.0])
def test_the_epsilon_of_a_mu_is_the_accountants(mu):
    """The closed form against PLD, which lies above it by its grid."""
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(epsilon([Gaussian(1 / mu)], 1e-5), rel=2e-3)
    assert gaussian_epsilon(0.0, 1e-5) == 0


def cosines(rng, sigma, canaries=200, d=10_000):
    """Of canaries with a sum of them and noise of σ, each canary clipped to 1."""
    directions = rng.normal(size=(canaries, d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    total = directions.sum(0) + sigma * rng.normal(size=d)
    return directions @ total / np.linalg.norm(total)


@pytest.mark.parametrize(("sigma", "share"), [(1.0, 0.8), (2.0, 0.7)])
def test_client_canaries_find_most_of_the_noises_epsilon(sigma, share):
    """200 canaries in 10 000 dimensions, on average over ten runs; never much above it."""
    rng = np.random.default_rng(0)
    truth = gaussian_epsilon(1 / sigma, 1e-5)
    found = [canary_bound(cosines(rng, sigma), 10_000, 1e-5).epsilon for _ in range(10)]
    assert share * truth <= np.mean(found) <= truth
