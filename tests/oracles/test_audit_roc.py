"""ROC of attacks: closed forms, intervals that cover, and rates that there are too few for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from securefl.audit.statistics import Roc
from securefl.errors import DataError


def drawn(rng, n, shift):
    return Roc.of(rng.normal(shift, 1, n), rng.normal(0, 1, n))


def test_two_normals_have_the_area_of_the_closed_form():
    """Φ(shift / √2), and Φ(shift + Φ⁻¹(fpr)) members found."""
    rng = np.random.default_rng(0)
    found = drawn(rng, 5_000, 1.0)
    assert found.auc(rng).value == pytest.approx(norm.cdf(1 / math.sqrt(2)), abs=0.01)
    expected = norm.cdf(1.0 + norm.ppf(0.01))
    assert found.tpr_at(0.01, rng).value == pytest.approx(expected, abs=0.01)


def test_an_interval_covers_the_truth_in_nine_of_ten_draws():
    """Of 95 %, over 60 draws; it holds its own value."""
    rng, truth = np.random.default_rng(0), norm.cdf(1 / math.sqrt(2))
    found = [drawn(rng, 100, 1.0).auc(rng) for _ in range(60)]
    assert all(auc.low <= auc.value <= auc.high for auc in found)
    assert sum(auc.low <= truth <= auc.high for auc in found) >= 54


def test_an_attack_that_knows_nothing_has_half_the_area():
    """And one that knows everything all of it."""
    rng = np.random.default_rng(0)
    blind = drawn(rng, 1000, 0.0).auc(rng)
    assert blind.low <= 0.5 <= blind.high
    perfect = Roc.of(np.ones(100), np.zeros(100))
    assert perfect.auc(rng).value == 1
    assert perfect.tpr_at(0.01, rng).value == 1
    assert Roc.of(np.zeros(100), np.zeros(100)).tpr_at(0.01, rng).value == 0


def test_a_rate_that_rests_on_one_record_is_refused():
    """Of a thousandth there must be a thousand non-members."""
    rng = np.random.default_rng(0)
    with pytest.raises(DataError, match="needs 1,000 non-members, and there are 999"):
        drawn(rng, 999, 1.0).tpr_at(0.001, rng)
    assert 0 <= drawn(rng, 1000, 1.0).tpr_at(0.001, rng).value <= 1


@pytest.mark.parametrize("sides", [([], [1.0]), ([1.0], []), ([math.nan], [1.0])])
def test_scores_of_nobody_are_refused(sides):
    """Nor is a NaN a score."""
    with pytest.raises(DataError):
        Roc.of(*sides)
