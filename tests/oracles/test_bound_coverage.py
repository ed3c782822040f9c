"""Bounds on ε of a trade-off curve and of scores: by hand, and by mechanisms whose ε is known."""

from __future__ import annotations

import sys
from math import inf, sqrt
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from made_findings import records_showing
from scipy.optimize import linprog
from scipy.stats import binom, nct, norm

from securefl.audit.bounds import fdp_bound
from securefl.audit.bounds.canary_bounds import one_run_bound, refuted_by_either, refuted_epsilon
from securefl.audit.bounds.gaussian_dp import gaussian_epsilon
from securefl.audit.bounds.record_bounds import Method, Noise, record_bounds
from securefl.audit.bounds.score_bound import FEWEST, score_bound

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import bound_coverage

DELTA = 1e-5


def tangent(mu, epsilon):
    """δ of the Gaussian mechanism at ε, of either sign."""
    return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def likeliest(tangents, canaries, guesses, right):
    """Return the largest probability of so many right guesses, by a linear program.

    Its unknowns are the probabilities of each number of right guesses; no event of (right, and at
    least i of them) is likelier than min(a x + b) of (wrong, and at least i - 1).
    """
    number = np.arange(guesses + 1)
    rows, limits = [], []
    for i in number[1:]:
        with_it = np.where(number >= i, number, 0) / canaries
        without = np.where(number >= i - 1, guesses - number, 0) / canaries
        rows += [with_it - a * without for a, _ in tangents]
        limits += [b for _, b in tangents]
    gain, whole = -(number >= right).astype(float), np.ones((1, guesses + 1))
    return -linprog(gain, A_ub=rows, b_ub=limits, A_eq=whole, b_eq=[1], method="highs").fun


@pytest.mark.parametrize(("canaries", "guesses", "right"), [(20, 20, 15), (40, 20, 16), (30, 9, 9)])
def test_the_recursion_is_the_best_that_its_rule_allows(canaries, guesses, right):
    """Below a linear program's optimum nothing is refuted, above it everything."""
    slope = np.exp(0.8)
    lines = [(slope, 1e-2), (1 / slope, 1 - (1 - 1e-2) / slope)]
    most = likeliest(lines, canaries, guesses, right)
    curve = fdp_bound.approximate(0.8, 1e-2)
    mu, grid = 0.5, np.linspace(-1, 1, 101) * gaussian_epsilon(0.5, 1e-3)
    of_gaussian = likeliest([(np.exp(e), tangent(mu, e)) for e in grid], canaries, guesses, right)
    for best, family in ((most, curve), (of_gaussian, fdp_bound.gaussian(mu, 1e-3))):
        assert not fdp_bound.refutes(family, canaries, guesses, right, 0.999 * best)
        assert fdp_bound.refutes(family, canaries, guesses, right, 1.001 * best)


def test_a_large_delta_costs_the_curve_less_than_a_sum_over_canaries():
    """At δ = 1e-3 Steinke's loses most of it to 2 m δ; at 1e-5 both are alike."""
    numbers, confidence = (300, 150, 120), 0.9875
    by_sum = refuted_epsilon(*numbers, 1e-3, confidence)
    by_curve = fdp_bound.refuted_approximate(*numbers, 1e-3, confidence)
    assert refuted_by_either(*numbers, 1e-3, confidence) == by_curve > 3 * by_sum
    by_sum = refuted_epsilon(*numbers, DELTA, confidence)
    assert fdp_bound.refuted_approximate(*numbers, DELTA, confidence) == pytest.approx(
        by_sum, rel=0.02
    )
    assert fdp_bound.refuted_gaussian(*numbers, DELTA, confidence) > 1.5 * by_sum
    assert fdp_bound.refuted_gaussian(300, 150, 70, DELTA, confidence) == 0


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta"),
    [(1.0, 1.0, 1, 1e-5), (2.0, 0.5, 20, 1e-5), (1.0, 0.01, 200, 1e-3), (0.7, 0.1, 3, 1e-6)],
)
def test_what_gaussian_noise_claims_is_within_the_gaussian_of_the_same_epsilon(
    sigma, rate, steps, delta
):
    """At every ε' below: so a Gaussian curve that is refuted refutes the claim."""
    spent = from_gaussian_mechanism(
        sigma, sampling_prob=rate, value_discretization_interval=1e-3
    ).self_compose(steps)
    claimed = spent.get_epsilon_for_delta(delta)
    low, high = 1e-3, 50.0
    while high - low > 1e-9:
        mu = (low + high) / 2
        low, high = (mu, high) if gaussian_epsilon(mu, delta) < claimed else (low, mu)
    grid = np.linspace(0, claimed, 20)
    assert (np.array(spent.get_delta_for_epsilon(grid)) <= 1.01 * tangent(low, grid)).all()


def test_the_bound_of_scores_is_where_so_large_a_t_has_the_probability():
    rng = np.random.default_rng(0)
    coins = np.arange(240) < 110
    scores = rng.normal(size=240) + 1.5 * coins
    found = score_bound(scores, coins, DELTA, 0.9)
    inside, outside = scores[coins], scores[~coins]
    pooled = sqrt((inside.var(ddof=1) * 109 + outside.var(ddof=1) * 129) / 238)
    unit = sqrt(1 / 110 + 1 / 130)
    t = (inside.mean() - outside.mean()) / (pooled * unit)
    assert nct.sf(t, 238, found.mu / unit) == pytest.approx(0.1, abs=1e-4)
    assert found.epsilon == gaussian_epsilon(found.mu, DELTA)
    assert found.gaussian
    assert score_bound(3 - 7 * scores, ~coins, DELTA, 0.9).mu == pytest.approx(found.mu)


def test_scores_that_are_not_gaussian_do_not_lead():
    """Neither heavy tails nor two values; nor do too few to tell, or equal ones."""
    rng = np.random.default_rng(0)
    coins = np.arange(2 * FEWEST) % 2 == 0
    shapes = rng.laplace(size=len(coins)), rng.integers(2, size=len(coins)) + 0.0
    for scores in (*shapes, coins + 0.0):
        assert not score_bound(scores + coins, coins, DELTA, 0.95).gaussian
    few = slice(0, 2 * FEWEST - 2)
    normal = np.repeat(norm.ppf((np.arange(FEWEST) + 0.5) / FEWEST), 2)
    assert score_bound(normal, coins, DELTA, 0.95).gaussian
    assert not score_bound(normal[few], coins[few], DELTA, 0.95).gaussian


def test_the_tightest_of_those_that_hold_leads():
    """Without Gaussian noise that is the one that assumes nothing, at the whole confidence."""
    unknown = records_showing(1.0, curve=2.0, scores=3.0)
    assert (unknown.leading, unknown.epsilon, unknown.ceiling) == (Method.ANY, 1.0, 5.0)
    known = records_showing(1.0, curve=2.0, scores=3.0, noise=Noise.GAUSSIAN)
    assert (known.leading, known.epsilon, known.ceiling) == (Method.SCORES, 3.0, inf)
    rng = np.random.default_rng(0)
    coins = rng.random(300) < 0.5
    heavy = rng.laplace(size=300) + 3 * coins
    found = record_bounds(heavy, coins, DELTA, Noise.GAUSSIAN)
    assert found.leading is Method.CURVE
    assert found.any.confidence == found.scores.confidence == pytest.approx(0.975)
    alone = record_bounds(heavy, coins, DELTA, Noise.UNKNOWN)
    assert alone.any == one_run_bound(heavy, coins, DELTA)


@pytest.mark.parametrize("number", [0, 2, 4, 5])
def test_bounds_cover_where_they_hold(number):
    """And where they do not, they are too high: 30 repetitions, where docs/results has 2000."""
    mechanism = bound_coverage.MECHANISMS[number]
    every = bound_coverage.repeated(mechanism, 30, seed=number)
    for name in bound_coverage.NAMES:
        share = bound_coverage.coverage(every, name, mechanism.epsilon)
        if bound_coverage.valid(name, mechanism.noise):
            assert share >= 0.9
        else:
            assert share < 0.7
    mean = {name: np.mean([each.epsilons[name] for each in every]) for name in bound_coverage.NAMES}
    before, now = mean[bound_coverage.STEINKE], mean[bound_coverage.LEADING]
    if mechanism.noise is Noise.GAUSSIAN and mechanism.epsilon:
        assert now > 2 * before
    elif mechanism.epsilon:
        assert now >= before


def test_the_page_says_of_each_bound_that_holds_what_was_asked_of_it():
    """Of 4 repetitions; and chance's range is that of the binomial distribution."""
    rows = bound_coverage.known(4).splitlines()
    of_mu = [row for row in rows if row.startswith("| Gaussian, μ = 1: ")]
    assert len(of_mu) == len(bound_coverage.NAMES)
    level = {row.split(" | ")[0].split(": ")[1]: row.split(" | ")[1] for row in of_mu}
    assert [level[name] for name in bound_coverage.NAMES] == ["5.0%", *["2.5%"] * 3, "5.0%"]
    assert not [row for row in rows if row.startswith("| Laplace: guesses, Gaussian noise")]
    (chance,) = (row for row in rows if row.startswith("| 5.0% |"))
    assert "| 4 to 16 (2.0% to 8.0%) |" in chance
    assert float(binom.cdf(16, 200, 0.05) - binom.cdf(3, 200, 0.05)) >= 0.95


def test_canary_clients_are_right_where_the_noise_is_as_promised(monkeypatch):
    """The page's table, of one σ and two repetitions."""
    monkeypatch.setattr(bound_coverage, "CLIENT_SIGMAS", (1.0,))
    (row,) = bound_coverage.clients(2).splitlines()[2:]
    assert row.count("100.0% (15.8% to 100.0%)") == 4
