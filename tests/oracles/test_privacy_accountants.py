"""ε by three implementations and by closed forms."""

from __future__ import annotations

import math

import pytest
from opacus.accountants import RDPAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from securefl.errors import ConfigError
from securefl.privacy.accountants import Accountant, epsilon, prv_epsilon
from securefl.privacy.calibration import sigma_for
from securefl.privacy.events import Gaussian, SampledGaussian, WithoutPrivacy

CONFIGURATIONS = {
    "MNIST in Abadi et al.": ([SampledGaussian(1.1, 256 / 60000, 14100)], 1e-5),
    "a percent a step": ([SampledGaussian(1.0, 0.01, 1000)], 1e-5),
    "little noise": ([SampledGaussian(0.6, 0.004, 1000)], 1e-5),
    "small delta": ([SampledGaussian(0.8, 0.02, 500)], 1e-6),
    "large samples": ([SampledGaussian(1.0, 0.25, 20)], 1e-4),
    "large samples, much noise": ([SampledGaussian(4.0, 0.2, 2000)], 1e-5),
    "many steps": ([SampledGaussian(2.0, 0.1, 1000)], 1e-5),
    "plain releases": ([Gaussian(5.0, 30)], 1e-5),
    "both kinds": ([SampledGaussian(1.2, 0.02, 800), Gaussian(10.0, 3)], 1e-5),
    "noise that changes": (
        [SampledGaussian(1.5, 0.03, 300), SampledGaussian(0.9, 0.03, 100), Gaussian(20.0)],
        1e-5,
    ),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_pld_is_opacus_prv_and_rdp_lies_above_both(name):
    """Google's PLD within 0.5 % of Opacus' PRV, whose own error is set to 0.2 %."""
    events, delta = CONFIGURATIONS[name]
    by_pld = epsilon(events, delta)
    by_prv = prv_epsilon(events, delta, error=0.002 * by_pld)
    assert by_pld == pytest.approx(by_prv, rel=0.005)
    by_rdp = epsilon(events, delta, Accountant.RDP)
    assert by_rdp > max(by_pld, by_prv)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_rdp_is_opacus_rdp(name):
    """Two implementations of the same sums, on grids of orders that are not quite the same."""
    events, delta = CONFIGURATIONS[name]
    theirs, orders = RDPAccountant(), [*RDPAccountant.DEFAULT_ALPHAS, 64, 128, 256]
    theirs.history = [(e.noise_multiplier, getattr(e, "sample_rate", 1), e.steps) for e in events]
    expected = theirs.get_epsilon(delta, alphas=orders)
    assert epsilon(events, delta, Accountant.RDP) == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize("sigma", [0.8, 2.0, 10.0])
def test_one_gaussian_release_is_the_closed_form(sigma):
    """Balle and Wang, ICML 2018, Theorem 8: δ(ε) by the normal distribution, with sensitivity 1."""

    def delta(eps):
        tail = norm.cdf(-eps * sigma - 0.5 / sigma)
        return norm.cdf(-eps * sigma + 0.5 / sigma) - math.exp(eps) * tail

    expected = brentq(lambda eps: delta(eps) - 1e-5, 0, 100)
    found = epsilon([Gaussian(sigma)], 1e-5)
    assert expected <= found <= expected * 1.0005


def test_t_releases_are_one_with_less_noise():
    """T Gaussian releases of σ compose into one of σ/√T, exactly."""
    many, one = epsilon([Gaussian(6.0, 36)], 1e-5), epsilon([Gaussian(1.0)], 1e-5)
    assert many == pytest.approx(one, rel=1e-4)


def steps_at(rate, steps):
    """So many releases, by σ."""
    return lambda sigma: [
        Gaussian(sigma, steps) if rate == 1 else SampledGaussian(sigma, rate, steps)
    ]


def test_a_full_sample_is_the_limit_of_large_ones():
    """Where nearly everybody is in the sample, sampling hides nearly nothing."""
    plain = epsilon([Gaussian(2.0, 10)], 1e-5)
    assert epsilon([SampledGaussian(2.0, 0.9999, 10)], 1e-5) == pytest.approx(plain, rel=1e-3)


def test_what_costs_little_adds_little():
    """A release of statistics at σ = 10 adds at most 1 % to DP-SGD's ε of 8 (issue 6)."""
    training = SampledGaussian(1.19, 0.05, 1000)
    alone, both = epsilon([training], 1e-5), epsilon([training, Gaussian(10.0)], 1e-5)
    assert alone == pytest.approx(8, abs=0.01)
    assert alone < both < 1.01 * alone


def test_hardly_any_noise_gives_a_large_number_and_takes_no_time():
    """The grid widens with ε, which stays below RDP's and within a per mille of a fine grid's."""
    events = [SampledGaussian(0.5, 0.5, 1000)]
    found = epsilon(events, 1e-5)
    assert found == pytest.approx(878.618, rel=1e-3)  # measured on a grid of 1e-4
    assert found < epsilon(events, 1e-5, Accountant.RDP)
    assert math.isfinite(epsilon([SampledGaussian(0.01, 0.5, 10**6)], 1e-5))


def test_nothing_released_is_zero_and_a_stage_without_noise_is_infinite():
    """By every accountant, whatever stands beside it."""
    bare = [SampledGaussian(10.0, 0.01), WithoutPrivacy("warm-up"), Gaussian(10.0)]
    for found in (epsilon, prv_epsilon, lambda e, d: epsilon(e, d, Accountant.RDP)):
        assert found([], 1e-5) == 0
        assert found(bare, 1e-5) == math.inf


@pytest.mark.parametrize("delta", [0.0, -1.0, 0.5, 1e-14, math.nan])
def test_a_delta_that_means_nothing_is_refused(delta):
    """It is between 1e-12, which the accountants resolve, and 0.1."""
    for found in (epsilon, prv_epsilon):
        with pytest.raises(ConfigError, match=r"must be 1e-12\.\.0\.1, and below 1 / records"):
            found([Gaussian(1.0)], delta)


@pytest.mark.parametrize(
    ("target", "delta", "rate", "steps"),
    [
        (3.0, 1e-5, 0.02, 500),
        pytest.param(1.0, 1e-5, 0.0128, 1000, marks=pytest.mark.full),
        pytest.param(8.0, 1e-6, 0.2, 100, marks=pytest.mark.full),
        (0.5, 1e-5, 1, 10),
    ],
)
def test_the_noise_for_an_epsilon_is_enough_and_hardly_more(target, delta, rate, steps):
    """At σ, ε by PLD is at most the target; at 0.1 % less noise it is above."""

    def spent(sigma):
        return epsilon(steps_at(rate, steps)(sigma), delta)

    sigma = sigma_for(target, delta, steps_at(rate, steps))
    assert spent(sigma) <= target < spent(0.999 * sigma)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1e-5, 0.1, 10), "target epsilon = 0: must be"),
        ((math.nan, 1e-5, 0.1, 10), "target epsilon = nan: must be"),
        ((math.inf, 1e-5, 0.1, 10), "target epsilon = inf: must be"),
        ((3.0, 1.0, 0.1, 10), "delta = 1: must be"),
        ((3.0, 1e-5, 1.5, 10), "sample rate q = 1.5: must be"),
        ((3.0, 1e-5, 0.1, 0), "steps = 0: must be"),
        ((0.01, 1e-5, 0.9, 10**9), "no noise multiplier up to 1e\\+06 reaches it"),
    ],
)
def test_a_target_that_cannot_be_met_says_why(arguments, message):
    """With the key, the value and the way out."""
    target, delta, rate, steps = arguments
    with pytest.raises(ConfigError, match=message):
        sigma_for(target, delta, steps_at(rate, steps))
