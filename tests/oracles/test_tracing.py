"""Tracing records in statistics: the score by hand, closed forms, what SecureFL releases."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal, norm

from securefl.algorithms.profiling import View, profile
from securefl.audit.findings import Findings
from securefl.audit.rules import Verdict, decided
from securefl.audit.statistics import Interval
from securefl.audit.tracing import setup
from securefl.audit.tracing.differencing import Setting, differenced
from securefl.audit.tracing.likelihood import (
    FEWEST_PUBLIC,
    IMPOSSIBLE,
    Coordinates,
    Others,
    Population,
    drawn,
    impossible,
    private_limit,
)
from securefl.audit.tracing.report_section import tracing_section
from securefl.audit.tracing.setup import traced
from securefl.audit.tracing.traceable import (
    LayerStatistics,
    Means,
    PrivateSums,
    Profiles,
    SeenLayers,
    TraceableMoments,
    seen_by_batch_norm,
    seen_by_profiles,
)
from securefl.audit.tracing.verdict import RULES, SentStatistics, Traced, Visibility
from securefl.data.digits import load_digits
from securefl.errors import DataError
from securefl.models.build import build_model
from securefl.norms.find import batch_norm_layers
from securefl.privacy.private_profiles import PrivateProfiler
from securefl.privacy.randomness import Seeded

SPLIT = load_digits(0)
LABELS = SPLIT.train_y.numpy()


def expected_auc(n_values, n):
    """Φ(√(V / 2n)): of records whose V values are normal, known exactly, and neither is small."""
    return float(norm.cdf(sqrt(n_values / (2 * n))))


@cache
def model_of(name, width=None):
    return build_model(
        name, "batch", in_channels=1, n_features=64, n_classes=10, width=width, seed=0
    ).eval()


@cache
def digits_seen(name, width=None, seen=seen_by_profiles):
    """Of the training digits and, as the public, of the test digits."""
    split = SPLIT if name == "mlp" else SPLIT.as_images()
    both = split.train_x, split.test_x
    arguments = () if seen is seen_by_batch_norm else (None,)
    return tuple(seen(model_of(name, width), *arguments, x) for x in both)


def auc_of(release, n=16, trials=600, seed=0, **keywords):
    rng = np.random.default_rng(seed)
    return traced(release, LABELS, n, rng, trials=trials, **keywords).auc(rng)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def seen_of(h):
    return SeenLayers(h, h**2)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_score_is_the_log_likelihood_ratio_by_hand(noise):
    """Of two normal densities, by scipy."""
    rng = np.random.default_rng(0)
    public, n = rng.normal(size=(200, 5)) @ rng.normal(size=(5, 5)), 7
    population = Population.of(public)
    mean, covariance = population.mean_V, population.covariance_VV
    released, records = rng.normal(size=5), rng.normal(size=(3, 5))
    noise_VV = noise**2 * np.eye(5)
    found = population.ratio(n, noise_VV)(released, records)
    out = multivariate_normal(mean, covariance / n + noise_VV)
    for v, score in zip(records, found, strict=True):
        within = multivariate_normal(mean + (v - mean) / n, covariance * (n - 1) / n**2 + noise_VV)
        expected = within.logpdf(released) - out.logpdf(released)
        assert score == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("n_values", "n"), [(64, 64), (64, 32), (100, 16)])
def test_of_gaussian_records_the_auc_is_the_closed_form(n_values, n):
    """Φ(√(V / 2n)), within its interval, to what V and n are too small for."""
    rng = np.random.default_rng(1)
    pool, public = rng.normal(size=(4000, n_values)), rng.normal(size=(6000, n_values))
    release = Means.of(seen_of(pool), seen_of(public))
    labels = np.zeros(len(pool), np.int64)
    found = traced(release, labels, n, rng, trials=2000).auc(rng)
    slack = 0.01
    assert found.low - slack <= expected_auc(n_values, n) <= found.high + slack


def test_noise_alone_gives_one_half():
    """And so do members and others of a release that neither is in."""
    found = auc_of(PrivateSums.of(*digits_seen("mlp"), 1.5, 1e3))
    assert found.low <= 0.5 <= found.high
    assert private_limit(1e3) == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize(
    "release",
    [
        pytest.param(lambda: Profiles.of(*digits_seen("mlp", 128)), id="a profile of 128 units"),
        pytest.param(
            lambda: LayerStatistics.of(*digits_seen("cnn", None, seen_by_batch_norm)),
            id="all BN statistics of the cnn",
        ),
    ],
)
def test_at_16_records_a_plain_profile_tells_95_of_100(release):
    """With so many values; the next test has fewer."""
    assert auc_of(release()).value >= 0.95


MODELS = [("mlp", 128), ("cnn", None), pytest.param("mlp", None, marks=pytest.mark.full)]
"""The narrow mlp tells less than the wide one."""


def test_the_default_mlp_has_too_few_units_for_that():
    """30 of them: 0.89, below Φ(√(60/32)) = 0.91; told from the same class it is less still."""
    release = Profiles.of(*digits_seen("mlp"))
    found, same = auc_of(release), auc_of(release, others=Others.SAME_CLASS)
    assert 0.86 <= found.value <= expected_auc(60, 16) + 0.01
    assert 0.78 <= same.value < found.value


@pytest.mark.parametrize(("name", "width"), MODELS)
def test_a_sum_of_ten_clients_of_16_tells_at_most_75_of_100(name, width):
    release = Profiles.of(*digits_seen(name, width))
    assert auc_of(release, n_clients=10).value <= 0.75


@pytest.mark.parametrize(("name", "width"), MODELS)
def test_with_noise_of_4_clips_a_profile_tells_at_most_58_of_100(name, width):
    """And no more than any attack can, at any σ."""
    seen = digits_seen(name, width)
    assert auc_of(PrivateSums.of(*seen, 1.5, 4.0), trials=1000).value <= 0.58
    for sigma in (1.0, 2.0, 4.0):
        assert auc_of(PrivateSums.of(*seen, 1.5, sigma)).low <= private_limit(sigma)


def test_more_records_hide_each_better_and_variances_tell_more_than_means():
    seen = digits_seen("mlp")
    profiles, means = Profiles.of(*seen), Means.of(*seen)
    found = [auc_of(profiles, n).value for n in (4, 16, 64)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.99
    assert auc_of(means).value < found[1]


def test_members_and_others_are_of_the_same_classes_as_often():
    """And an other is in no release of its trial; of the same class each time where asked for."""
    for others in Others:
        pairs = []
        for members, pair in drawn(LABELS, 32, 500, np.random.default_rng(0), others):
            assert len(set(members.tolist())) == 32
            assert pair[0] in members
            assert pair[1] not in members
            pairs.append(pair)
        of_members, of_others = (LABELS[np.stack(pairs)[:, side]] for side in (0, 1))
        assert sorted(of_members) == sorted(of_others)
        assert (of_members == of_others).all() == (others is Others.SAME_CLASS)


def test_a_class_of_two_is_compared_too():
    """One of them is in, and the other is not, however many are in."""
    labels = np.array([0] * 20 + [1] * 2 + [2])
    pairs = [
        pair for _, pair in drawn(labels, 11, 300, np.random.default_rng(0), Others.SAME_CLASS)
    ]
    assert {tuple(labels[pair]) for pair in pairs} == {(0, 0), (1, 1)}


def test_too_few_records_are_refused():
    release = Profiles.of(*digits_seen("mlp"))
    rng = np.random.default_rng(0)
    with pytest.raises(DataError, match="50% of it at most"):
        traced(release, LABELS[:31], 16, rng, trials=1)
    with pytest.raises(DataError, match="tracing needs two at least"):
        traced(release, LABELS, 1, rng, trials=1)
    with pytest.raises(DataError, match=f"{FEWEST_PUBLIC} at least"):
        Population.of(np.zeros((FEWEST_PUBLIC - 1, 3)))
    with pytest.raises(DataError, match="not finite"):
        Population.of(np.full((FEWEST_PUBLIC, 3), np.nan))
    with pytest.raises(DataError, match="no two are of one class"):
        list(drawn(np.arange(4), 2, 3, rng, Others.SAME_CLASS))


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 20), st.integers(0, 2**32 - 1))
def test_a_member_is_never_impossible(n, seed):
    """Whatever the values; a record far outside is, where few are in."""
    rng = np.random.default_rng(seed)
    h = rng.standard_t(2, size=(n, 4)) * 10 ** rng.uniform(-3, 3, size=4)
    at = Coordinates.of(h, h**2)
    vectors = at.moments(h, h**2)
    assert not impossible(vectors.mean(axis=0), vectors, n, at.tolerance_Q).any()
    far = h.mean(axis=0) + 100 * (h.std(axis=0) + 1) * n
    v_far = at.moments(far, far**2)
    assert impossible(vectors.mean(axis=0), v_far[None], n, at.tolerance_Q).all()


def test_an_impossible_record_scores_below_all():
    moments = TraceableMoments.of(*digits_seen("mlp"))
    members = np.arange(4)
    released = moments.pool_NV[members].mean(axis=0)
    scores = moments.scores(moments.population.ratio(4), released, np.arange(len(LABELS)))
    assert (scores == IMPOSSIBLE).mean() > 0.9
    assert scores[members].min() > IMPOSSIBLE


def test_profiles_are_the_librarys_of_the_images_themselves():
    """Though the layer's outputs are computed once; in a total, of all clients' records."""
    release, model = Profiles.of(*digits_seen("mlp")), model_of("mlp")
    groups = np.split(np.arange(48), 3)
    found = release.statistic(groups, Seeded(generator()))
    by_hand = profile(model, None, [SPLIT.train_x[g] for g in groups], 0)
    mean = by_hand.mean_Q.numpy()
    expected = release.moments.at.moments(mean, by_hand.variance_Q.numpy() + mean**2)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found, release.moments.pool_NV[:48].mean(axis=0), atol=1e-4)


def test_layer_statistics_are_those_of_what_bn_layers_get_at_rest():
    """Of all four layers of the cnn, over all pixels."""
    model, x = model_of("cnn"), SPLIT.as_images().train_x[:16]
    seen = seen_by_batch_norm(model.train(), x)
    assert model.training
    moments = []

    def note(_layer, inputs):
        variance, mean = torch.var_mean(inputs[0], (0, 2, 3), correction=0)
        moments.append((mean, variance))

    with ExitStack() as hooks, torch.no_grad():
        for layer in batch_norm_layers(model).values():
            hooks.callback(layer.register_forward_pre_hook(note).remove)
        model.eval()(x)
    assert len(moments) == 4
    mean, variance = (torch.cat(side).numpy() for side in zip(*moments, strict=True))
    np.testing.assert_allclose(seen.first_NQ.mean(axis=0), mean, atol=1e-5)
    square = seen.second_NQ.mean(axis=0) - seen.first_NQ.mean(axis=0) ** 2
    np.testing.assert_allclose(square, variance, atol=1e-4)


def test_private_sums_are_those_that_private_profiles_are_made_of():
    """With hardly any noise: the library's profile, back from the sum's moments."""
    seen = digits_seen("mlp")
    release = PrivateSums.of(*seen, 1.5, 1e-9)
    members = np.arange(200)
    sum_V = release.statistic([members], Seeded(generator())) * len(members)
    count, m, s = sum_V[0], *np.split(sum_V[1:], 2)
    kappa = release.release.kappa
    mean = m * kappa / count

    at = Coordinates.of(seen[1].first_NQ, seen[1].second_NQ)
    layer = torch.nn.Linear(64, 30).double()
    with torch.no_grad():
        first = model_of("mlp")[0]
        layer.weight.copy_(first.weight / torch.from_numpy(at.unit_Q)[:, None])
        layer.bias.copy_((first.bias - torch.from_numpy(at.mean_Q)) / torch.from_numpy(at.unit_Q))
    view = View(torch.nn.Sequential(layer), "0", 0, 1.0)
    x = SPLIT.train_x[:200].double()
    private = PrivateProfiler(1.5, 1e-9)(view, [x], Seeded(generator()))
    np.testing.assert_allclose(mean, private.mean_Q.numpy(), atol=1e-4)
    variance = s * kappa / count - mean**2
    np.testing.assert_allclose(variance, private.variance_Q.numpy(), atol=1e-4)


def test_the_difference_of_two_sums_shows_the_client_unless_there_is_noise():
    """The authority refuses a name twice and too few; another round with one client less it opens.

    The difference is then as good as that client's plain profile.
    """
    release, rng = Profiles.of(*digits_seen("mlp")), np.random.default_rng(0)
    found = differenced(release, LABELS, Setting(trials=200), rng)
    assert "asked for once already" in found.again
    assert "2 contributions, at least 3" in found.few
    assert found.error < 1e-6
    exact, redrawn, private = (
        side.auc(rng) for side in (found.exact, found.redrawn, found.private)
    )
    plain = auc_of(release, trials=200)
    assert exact.low <= plain.high
    assert plain.low <= exact.high
    assert redrawn.high < exact.low
    assert private.low <= 0.5 <= private.high


def test_expected_forms():
    assert expected_auc(2, 1) == pytest.approx(norm.cdf(1))
    assert private_limit(sqrt(2)) == pytest.approx(norm.cdf(1))


def interval(value):
    return Interval(value, value - 0.02, value + 0.02)


SENT = SentStatistics(Visibility.TOTALS, Visibility.NOT_SENT, n_clients=5, n_records=32)


@pytest.mark.parametrize(
    ("sent", "auc", "difference", "verdict"),
    [
        (replace(SENT, statistics=Visibility.NOT_SENT), None, 0.9, Verdict.OPEN),
        (
            replace(SENT, statistics=Visibility.NOT_SENT, profiles=Visibility.HIDDEN),
            None,
            0.9,
            Verdict.HOLDS,
        ),
        (replace(SENT, statistics=Visibility.EACH), 0.9, 0.9, Verdict.LEAKS),
        (replace(SENT, profiles=Visibility.EACH), 0.7, 0.9, Verdict.WEAK),
        (SENT, 0.55, 0.9, Verdict.WEAK),
        (SENT, 0.9, 0.9, Verdict.LEAKS),
        (replace(SENT, sigma=10.0), 0.5, 0.9, Verdict.OPEN),
        (replace(SENT, client_sigma=1.0), None, 0.9, Verdict.HOLDS),
    ],
)
def test_verdicts(sent, auc, difference, verdict):
    """By what the run lets be seen, and how well records are traced in it."""
    run = None if auc is None else interval(auc)
    found, words, _ = decided(RULES, Traced(sent, run, interval(difference), interval(0.5)))
    assert found is verdict
    assert words.endswith(".")
    assert ("least number" in words) == (sent is SENT and auc is not None)


@pytest.mark.slow
def test_the_section_is_the_same_for_the_same_seed(monkeypatch):
    """And names what was measured; the model is left as it was."""
    monkeypatch.setitem(setup.EFFORTS, "quick", setup.TracingEffort(80, (4, 16), 600, 600))
    model = build_model("mlp", "batch", in_channels=1, n_features=64, n_classes=10, seed=0)
    pool = SPLIT.train_x, SPLIT.train_y
    sections = [tracing_section(model, pool, SPLIT.test_x, SENT, 3) for _ in range(2)]
    one, two = (Findings("run", "quick", 3, {}, [c]).to_json() for c in sections)
    assert one == two
    found = {number.name: number.value for number in sections[0].numbers}
    assert found["AUC, a profile of 16"] > 0.8
    assert any(name.startswith("AUC, this run: all BN layers' statistics") for name in found)
    assert sections[0].verdict is Verdict.WEAK
    assert sections[0].pictures[0].png.startswith(b"\x89PNG")
    assert model.training


def test_a_section_of_too_few_records_is_refused():
    pool = SPLIT.train_x[:24], SPLIT.train_y[:24]
    with pytest.raises(DataError, match="50% of it at most"):
        tracing_section(model_of("mlp"), pool, SPLIT.test_x, SENT, 0)
