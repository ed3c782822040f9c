"""Membership attacks against loops by hand, closed forms, and what chance can do."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn import functional

from securefl.audit.membership.attacks import (
    Shadows,
    against_others,
    likelihood_ratio,
    lira,
    loss_attack,
    over_rounds,
    own_models,
    rmia,
)
from securefl.audit.membership.candidates import confidences, losses, of_losses
from securefl.audit.membership.strata import strata
from securefl.audit.statistics import Roc, least_visible_area, p_value_of_area, p_value_of_rate
from securefl.data.samples import samples
from securefl.errors import DataError


def drawn_shadows(rng, n_models=6, n_samples=30):
    """φ of models that know nothing, and which samples trained each; two models without each."""
    trained = rng.random((n_models, n_samples)) < 0.5
    trained[:2] = False
    return Shadows.of(rng.normal(1, 2, (n_models, n_samples)), trained)


def area(scores, member):
    return Roc.of(scores[member], scores[~member]).auc(np.random.default_rng(0))


@pytest.mark.parametrize("model_type", ["logits", "losses"])
def test_confidences_are_log_odds_of_the_true_label(model_type):
    """As log(p / (1 - p)) of softmax by hand; the loss follows, and gives φ back."""
    logits = np.random.default_rng(0).normal(0, 3, (50, 4))
    y = torch.arange(50) % 4
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    own = p[np.arange(50), y]
    model = nn.Linear(4, 4).double()
    with torch.no_grad():
        model.weight.copy_(torch.eye(4)), model.bias.zero_()
    found = confidences(
        model, samples((torch.tensor(logits), y), "a test"), functional.cross_entropy
    )
    if model_type == "losses":
        found = of_losses(-np.log(own))
    assert found == pytest.approx(np.log(own / (1 - own)), abs=1e-9)
    assert losses(found) == pytest.approx(-np.log(own), abs=1e-12)
    assert of_losses(losses(found)) == pytest.approx(found)


def test_confidences_near_one_and_at_zero_stay_numbers():
    """1 - 1e-12 has φ = 27.6 to nine digits, though 1 - p has lost four of them; 0 has -700."""
    phi = of_losses([-math.log1p(-1e-12), math.inf, 0.0, 800.0])
    assert phi == pytest.approx([math.log(1e12), -700, 700, -700], rel=1e-9)
    shadows = Shadows.of(np.tile(phi, (3, 1)), np.zeros((3, 4), bool))
    for found in (
        loss_attack(phi),
        lira(phi, shadows, shadows.own_deviation_S()),
        rmia(phi, shadows, (phi, shadows)),
        rmia(phi, shadows, (phi, shadows), a=1),
        rmia(phi, shadows, (phi, shadows), a=0),
        over_rounds(np.tile(phi, (2, 1)), shadows.mean_out_S()),
    ):
        assert np.isfinite(found).all()
    assert loss_attack(phi)[0] == pytest.approx(-1e-12, rel=1e-3)
    saturated = torch.tensor([[400.0, 0.0], [0.0, 400.0], [40.0, 0.0]])
    model = nn.Identity()
    model.scale = nn.Parameter(torch.ones(()))
    data = samples((saturated, torch.zeros(3, dtype=torch.int64)), "a test")
    assert confidences(model, data, functional.cross_entropy) == pytest.approx([400, -400, 40])


def test_a_regression_goes_by_its_loss():
    """e^-(squared error / variance) of each sample, mean over its targets: in any unit of them."""
    x, y = torch.randn(5, 2, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    model = nn.Identity()
    model.scale = nn.Parameter(torch.ones(()))
    found = confidences(model, samples((x, y), "a test"), functional.mse_loss)
    variance = ((y - y.mean(0)) ** 2).mean()
    errors = (((x - y) ** 2).mean(dim=1) / variance).numpy()
    assert losses(found) == pytest.approx(errors)
    in_grams = confidences(model, samples((1e6 * x, 1e6 * y), "a test"), functional.mse_loss)
    assert in_grams == pytest.approx(found)


def test_several_labels_go_by_their_loss_and_pairs_have_none():
    """By hand: the mean over labels of log(1 + e^∓z); a loss over pairs is none of one sample."""
    z, y = torch.tensor([[2.0, -1.0], [0.5, 3.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    model = nn.Identity()
    model.scale = nn.Parameter(torch.ones(()))
    data = samples((z, y), "a test")
    found = confidences(model, data, functional.binary_cross_entropy_with_logits)
    by_hand = np.log1p(np.exp(np.where(y == 1, -z, z))).mean(axis=1)
    assert losses(found) == pytest.approx(by_hand, rel=1e-5)

    def cox(risk, time):
        later = time[:, None, 0] <= time[None, :, 0]
        return -(risk[:, 0] - (later * risk[:, 0].exp()).sum(1).log()).mean()

    with pytest.raises(DataError, match="no loss of its own"):
        confidences(model, data, cox)


def test_strata_are_labels_their_combinations_or_fifths():
    """Fifths of numbers hold as many each, and rise with them."""
    labels = torch.tensor([2, 0, 2])
    assert strata([labels[:2], labels[2:]]).of_S.tolist() == [2, 0, 2]
    several = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    of = strata([several]).of_S
    assert of[0] == of[2] != of[1]
    numbers = torch.randn(100, 1, generator=torch.Generator().manual_seed(0))
    found = strata([numbers]).of_S
    assert np.bincount(found).tolist() == [20] * 5
    assert (np.diff(found[numbers[:, 0].argsort()]) >= 0).all()
    assert strata([torch.zeros(3, 4, 4, dtype=torch.int64)]).of_S.tolist() == [0, 0, 0]


def test_a_model_that_diverged_has_no_confidence():
    """Nor has a loss below zero."""
    model = nn.Linear(3, 3)
    nn.init.constant_(model.weight, math.nan)
    data = samples((torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)), "a test")
    with pytest.raises(DataError, match="diverged"):
        confidences(model, data, functional.cross_entropy)
    with pytest.raises(DataError, match="negative"):
        of_losses([0.1, -0.1])


def test_the_loss_attack_by_hand():
    phi = np.random.default_rng(0).normal(size=20)
    assert loss_attack(phi) == pytest.approx([math.log(1 / (1 + math.exp(-f))) for f in phi])


def test_lira_by_hand():
    """(φ - mean) / deviation over the models without a sample; one deviation, or each its own."""
    rng = np.random.default_rng(1)
    shadows, phi = drawn_shadows(rng), rng.normal(size=30)
    out = [[f for f, t in zip(*of, strict=True) if not t] for of in columns(shadows)]
    own = [np.std(each, ddof=1) for each in out]
    free = sum(len(each) - 1 for each in out)
    pooled = math.sqrt(sum((f - np.mean(each)) ** 2 for each in out for f in each) / free)
    assert shadows.own_deviation_S() == pytest.approx(own)
    assert shadows.pooled_deviation() == pytest.approx(pooled)
    for given, deviation in ((own, own), (pooled, [pooled] * 30)):
        by_hand = [(phi[s] - np.mean(out[s])) / deviation[s] for s in range(30)]
        assert lira(phi, shadows, given) == pytest.approx(by_hand)
    probability = [norm.cdf(phi[s], np.mean(out[s]), own[s]) for s in range(30)]
    assert (np.argsort(lira(phi, shadows, own)) == np.argsort(probability)).all()


def columns(shadows):
    return list(zip(shadows.phi_NS.T, shadows.trained_NS.T, strict=True))


@pytest.mark.parametrize(("gamma", "a"), [(1.0, 0.3), (2.0, 0.0), (1.5, 1.0)])
def test_rmia_by_hand(gamma, a):
    """The share of z over which a likelihood ratio of x is γ or more."""
    rng = np.random.default_rng(2)
    shadows, phi = drawn_shadows(rng), rng.normal(size=30)
    z_shadows, z_phi = drawn_shadows(rng, n_samples=17), rng.normal(size=17)

    def ratios(phi, shadows):
        found = []
        for f, (each, trained) in zip(phi, columns(shadows), strict=True):
            out = np.mean([1 / (1 + math.exp(-o)) for o in each[~trained]])
            found.append(1 / (1 + math.exp(-f)) / ((1 + a) / 2 * out + (1 - a) / 2))
        return found

    x, z = ratios(phi, shadows), ratios(z_phi, z_shadows)
    by_hand = [sum(r / other >= gamma for other in z) / 17 for r in x]
    assert rmia(phi, shadows, (z_phi, z_shadows), gamma, a) == pytest.approx(by_hand)
    assert likelihood_ratio(phi, shadows, a) == pytest.approx(np.log(x))


def test_rmia_orders_samples_by_their_own_ratio():
    """Whatever the z and γ: so its ROC is the likelihood ratio's but for ties."""
    rng = np.random.default_rng(3)
    shadows, phi = drawn_shadows(rng), rng.normal(size=30)
    z_shadows, z_phi = drawn_shadows(rng, n_samples=40), rng.normal(size=40)
    order, shuffled = np.argsort(likelihood_ratio(phi, shadows)), rng.permutation(40)
    for gamma in (0.5, 1, 2):
        found = rmia(phi, shadows, (z_phi, z_shadows), gamma)
        assert (np.diff(found[order]) >= 0).all()
        again = rmia(phi, shadows, (z_phi[shuffled], z_shadows.only(shuffled)), gamma)
        assert (found == again).all()
    assert (
        rmia(phi, shadows, (z_phi, z_shadows), 2) <= rmia(phi, shadows, (z_phi, z_shadows))
    ).all()


def test_non_members_may_be_rmias_population():
    """Being a z is no advantage: among them each has its own rank, with no ties to the others."""
    rng = np.random.default_rng(4)
    shadows, phi = drawn_shadows(rng), rng.normal(size=30)
    member = np.arange(30) < 15
    found = rmia(phi, shadows, (phi[~member], shadows.only(~member)))
    ratio = likelihood_ratio(phi, shadows)
    assert area(found, member).value == pytest.approx(area(ratio, member).value)


@pytest.mark.parametrize(("gamma", "a"), [(0, 0.3), (1, -0.1), (1, 1.1)])
def test_rmia_refuses_what_is_no_ratio(gamma, a):
    shadows = drawn_shadows(np.random.default_rng(0))
    with pytest.raises(DataError, match="gamma"):
        rmia(np.zeros(30), shadows, (np.zeros(30), shadows), gamma, a)


def test_attacks_over_rounds_by_hand():
    """The mean over the rounds there are, less a least-squares line through what is expected."""
    rng = np.random.default_rng(5)
    phi, expected = rng.normal(size=(4, 30)), rng.normal(size=30)
    phi[1, :10] = np.nan
    mean = [np.mean([f for f in each if not math.isnan(f)]) for each in phi.T]
    assert over_rounds(phi) == pytest.approx(mean)
    slope, offset = np.polyfit(expected, mean, 1)
    assert over_rounds(phi, expected) == pytest.approx(mean - slope * expected - offset)
    phi[:, 3] = np.nan
    assert np.isnan(over_rounds(phi, expected)).nonzero()[0].tolist() == [3]


def test_single_clients_against_others_by_hand():
    """In rounds with two others: (own - mean) / deviation, pooled over samples."""
    rng = np.random.default_rng(6)
    phi, client = rng.normal(size=(5, 4, 12)), np.arange(12) % 4
    phi[0, 1], phi[1, :2] = np.nan, np.nan  # one client away; then two, and no null of two others

    by_hand = np.zeros(12)
    rounds = np.zeros(12)
    for of_round in phi:
        others = [
            [of_round[k, s] for k in range(4) if k != client[s] and not np.isnan(of_round[k, s])]
            for s in range(12)
        ]
        squares = sum((f - np.mean(each)) ** 2 for each in others for f in each)
        deviation = math.sqrt(squares / sum(len(each) - 1 for each in others))
        for s in range(12):
            own = of_round[client[s], s]
            if len(others[s]) >= 2 and not np.isnan(own):
                by_hand[s] += (own - np.mean(others[s])) / deviation
                rounds[s] += 1
    assert (rounds > 0).all()
    assert against_others(phi, client) == pytest.approx(by_hand / rounds)
    assert own_models(phi, client)[2, 5] == phi[2, 1, 5]


@pytest.mark.parametrize("n_models", [8, 128])
def test_lira_reaches_the_optimum_of_normal_confidences(n_models):
    """Φ(shift / √2) with many models; with n without each sample, Φ(shift / √(2 (1 + 1/n)))."""
    rng, n, shift = np.random.default_rng(7), 20_000, 1.5
    hardness, member = rng.normal(0, 5, n), np.arange(n) < n // 2
    phi = hardness + rng.normal(size=(n_models, n))
    trained = np.zeros((n_models, n), bool)
    trained[: n_models // 2] = True
    shadows = Shadows.of(np.where(trained, phi + shift, phi), trained)
    target = hardness + rng.normal(size=n) + shift * member
    found = roc_auc_score(member, lira(target, shadows, shadows.pooled_deviation()))
    expected = norm.cdf(shift / math.sqrt(2 * (1 + 2 / n_models)))
    assert found == pytest.approx(expected, abs=0.01)
    assert shadows.pooled_deviation() == pytest.approx(1, abs=0.01)
    assert roc_auc_score(member, loss_attack(target)) < 0.6 < found


def test_noise_is_no_membership():
    """Of attacks on noise the interval holds 1/2 in nine of ten draws at least."""
    rng, held = np.random.default_rng(8), {}
    for _ in range(20):
        member = rng.permutation(np.arange(80) < 40)
        shadows, phi = drawn_shadows(rng, n_samples=80), rng.normal(size=80)
        rounds = rng.normal(size=(5, 4, 80))
        scores = {
            "loss": loss_attack(phi),
            "lira": lira(phi, shadows, shadows.pooled_deviation()),
            "rmia": rmia(phi, shadows, (phi[~member], shadows.only(~member))),
            "rounds": over_rounds(rounds[:, 0], shadows.mean_out_S()),
            "others": against_others(rounds, rng.integers(4, size=80)),
        }
        for name, score in scores.items():
            found = area(score, member)
            held[name] = held.get(name, 0) + (found.low <= 0.5 <= found.high)
    assert min(held.values()) >= 18, held


def test_the_chance_of_a_rate_by_counting_all_orders():
    """Of 4 members and 5 others: how many of the C(9, 4) orders have so many above."""
    members, others, fpr = 4, 5, 0.4
    for above in range(members + 1):
        order = np.arange(9.0, 0, -1)  # the other in second place is the threshold
        others_at = [0, above + 1, *range(members + 2, 9)][:others]
        roc = Roc.of(np.delete(order, others_at), order[others_at])
        likely = 0
        for places in combinations(range(9), members):
            rest = [p for p in range(9) if p not in places]
            likely += sum(p < rest[1] for p in places) >= above
        assert p_value_of_rate(roc, fpr) == pytest.approx(likely / math.comb(9, 4))


def test_chance_is_uniform_where_nothing_is_known():
    """No more than 5 % of draws have a probability below 5 %; a blind attack has 1."""
    rng = np.random.default_rng(9)
    rocs = [Roc.of(rng.normal(size=150), rng.normal(size=120)) for _ in range(400)]
    for chances in (
        [p_value_of_area(roc) for roc in rocs],
        [p_value_of_rate(roc, 0.01) for roc in rocs],
    ):
        assert np.mean(np.array(chances) < 0.05) < 0.08
    blind = Roc.of(np.zeros(100), np.zeros(100))
    assert p_value_of_area(blind) == p_value_of_rate(blind, 0.01) == 1


def test_the_least_visible_area_is_where_the_test_turns():
    """Mann & Whitney's own probability at that area is about the one asked for.

    An attack that is just so good is found by every second audit, and one with the power asked for
    in as many: here 95 of 100.
    """
    rng, visible = np.random.default_rng(10), least_visible_area(400, 300, 0.01, power=0.5)
    found = [
        (roc.auc(rng).value, p_value_of_area(roc))
        for roc in (Roc.of(rng.normal(0.2, 1, 400), rng.normal(size=300)) for _ in range(12))
    ]
    assert all((area > visible) == (chance < 0.01) for area, chance in found)
    for power in (0.5, 0.95):
        apart = math.sqrt(2) * norm.ppf(least_visible_area(400, 300, 0.01, power))
        audits = [Roc.of(rng.normal(apart, 1, 400), rng.normal(size=300)) for _ in range(400)]
        assert abs(np.mean([p_value_of_area(roc) < 0.01 for roc in audits]) - power) < 0.07


def test_shadows_that_say_nothing_are_refused():
    """A sample that trained all models has no φ without it; one model gives no deviation."""
    with pytest.raises(DataError, match="trained every"):
        Shadows.of([[1.0, 2.0]], [[True, False]])
    with pytest.raises(DataError, match="must be"):
        Shadows.of([[1.0, 2.0]], [[False]])
    one = Shadows.of([[1.0, 2.0]], [[False, False]])
    for deviation in (one.own_deviation_S, one.pooled_deviation):
        with pytest.raises(DataError, match="two models"):
            deviation()
