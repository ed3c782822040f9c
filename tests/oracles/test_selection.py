"""Selectors against the probabilities of their papers, worked out by enumeration or by hand."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch

from securefl.algorithms.participation import full_aggregation
from securefl.errors import ConfigError, DataError
from securefl.selection.afl import Afl
from securefl.selection.cfcfm import Cfcfm
from securefl.selection.data_share import ByDataShare
from securefl.selection.fairness import FairnessFloor
from securefl.selection.fedprof import FedProf
from securefl.selection.selector import Standing
from securefl.selection.uniform import Random
from securefl.settings.axes import clients_per_round

pytestmark = pytest.mark.shapes

DRAWS = 4000


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def standing(**quantities):
    """Clients a, b, c, … with these quantities."""
    n = len(next(iter(quantities.values())))
    clients = tuple("abcdefghijklmnopqrstuvwxyz"[:n])
    return Standing(
        clients, **{k: dict(zip(clients, v, strict=True)) for k, v in quantities.items()}
    )


def frequencies(selector, known, n):
    rng = generator()
    counts = Counter(selector.select(known, n, rng) for _ in range(DRAWS))
    return {chosen: count / DRAWS for chosen, count in counts.items()}


def one_by_one(weights, n):
    """The law of drawing n names one after the other by weight, the drawn ones taken out."""
    law = Counter()
    for order in itertools.permutations(weights, n):
        left, probability = dict(weights), 1.0
        for name in order:
            probability *= left[name] / sum(left.values())
            del left[name]
        law[tuple(sorted(order))] += probability
    return law


def assert_law(seen, law):
    """Within four standard deviations of a count of `DRAWS`."""
    assert set(seen) <= {chosen for chosen, p in law.items() if p > 0}
    for chosen, p in law.items():
        assert seen.get(chosen, 0) == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / DRAWS))


DIVERGENCES = {"a": 0.0, "b": 0.05, "c": 0.1, "d": 0.3}
SAMPLES = {"a": 10, "b": 20, "c": 30, "d": 40}
SCORES = {name: math.exp(-10 * div) for name, div in DIVERGENCES.items()}
KNOWN = standing(divergence=DIVERGENCES.values(), n_samples=SAMPLES.values())


@pytest.mark.parametrize(
    ("selector", "weights"),
    [
        (FedProf(alpha=10.0), SCORES),
        (FedProf(alpha=10.0, alpha_by_client={"d": 0.0}), SCORES | {"d": 1.0}),
        (FedProf(alpha=0.0), dict.fromkeys("abcd", 1.0)),
        (FedProf(alpha="theorem1"), SAMPLES),
        (ByDataShare(), SAMPLES),
        (Random(), dict.fromkeys("abcd", 1.0)),
    ],
    ids=["fedprof", "per client", "alpha 0", "theorem 1", "data share", "random"],
)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_clients_are_drawn_one_by_one_by_their_weight(selector, weights, n):
    """Every set of clients comes as often as drawing without replacement gives it."""
    assert_law(frequencies(selector, KNOWN, n), one_by_one(weights, n))


def test_with_replacement_each_draw_is_by_weight_again():
    """Two draws are independent, and a client that was drawn twice stands there twice."""
    share = {name: score / sum(SCORES.values()) for name, score in SCORES.items()}
    law = Counter()
    for first, second in itertools.product(share, repeat=2):
        law[tuple(sorted((first, second)))] += share[first] * share[second]
    selector = FedProf(alpha=10.0, replacement="with")
    assert_law(frequencies(selector, KNOWN, 2), law)


def test_the_score_is_eq_7():
    """λ_k = exp(-α_k div_k)."""
    scores = FedProf(alpha=10.0, alpha_by_client={"c": 2.0}).scores(KNOWN)
    assert scores == pytest.approx({"a": 1, "b": 0.60653066, "c": 0.81873075, "d": 0.04978707})


def test_a_score_too_small_for_a_float_still_ranks():
    """exp(-25 · 40) is 0 in floating point; the order of such clients is kept all the same."""
    known = standing(divergence=[40.0, 41.0, 1000.0, 39.0])
    assert FedProf(alpha=25.0).select(known, 2, generator()) == ("a", "d")


# √n · loss: a 3, b 8, c 2, d 20, e 12, f 5, g 1, h 30
AFL_KNOWN = standing(
    loss=[1.5, 2.0, 2.0, 2.0, 4.0, 5.0, 1.0, 3.0], n_samples=[4, 16, 1, 100, 9, 1, 1, 100]
)


def test_afl_draws_by_the_softmax_of_the_valuations_that_are_left():
    """The half of least value is out; of b, d, e and h two are drawn by exp(α2 v)."""
    weights = {name: math.exp(0.1 * v) for name, v in {"b": 8, "d": 20, "e": 12, "h": 30}.items()}
    seen = frequencies(Afl(excluded=0.5, sharpness=0.1, uniform=0.0), AFL_KNOWN, 2)
    assert_law(seen, one_by_one(weights, 2))


def test_afl_draws_a_part_uniformly_from_all_that_are_left():
    """With α1 = 7/8 the one of most value is certain, and α3 = 1/2 of two are any other."""
    seen = frequencies(Afl(excluded=7 / 8, uniform=0.5), AFL_KNOWN, 2)
    assert_law(seen, {(name, "h"): 1 / 7 for name in "abcdefg"})


def test_afl_fills_up_where_it_took_too_many_out():
    """α1 = 0.75 leaves d and h of eight; four selected are these and two others."""
    seen = frequencies(Afl(uniform=0.0), AFL_KNOWN, 4)
    law = {tuple(sorted((*pair, "d", "h"))): 1 / 15 for pair in itertools.combinations("abcefg", 2)}
    assert_law(seen, law)


def test_the_first_to_submit_are_merged_and_last_rounds_clients_wait():
    """Clients c and a are fastest; when they had their turn, the next ones come before them."""
    times = [2.0, 4.0, 1.0, 3.0]
    fresh = standing(time_s=times, rounds_waited=[1, 1, 1, 1])
    assert Cfcfm().select(fresh, 2, generator()) == ("a", "c")
    after = standing(time_s=times, rounds_waited=[0, 2, 0, 2])
    assert Cfcfm().select(after, 2, generator()) == ("b", "d")
    assert Cfcfm().select(after, 3, generator()) == ("b", "c", "d")


def test_clients_that_are_due_come_first():
    """Clients b and d have waited three rounds or more; the selector chooses the third."""
    known = standing(time_s=[2.0, 4.0, 1.0, 9.0], rounds_waited=[2, 3, 1, 4])
    floor = FairnessFloor(Cfcfm(), rounds=3)
    assert floor.select(known, 3, generator()) == ("b", "c", "d")
    assert floor.select(known, 1, generator()) == ("d",)


@pytest.mark.parametrize(
    ("fraction", "n_clients", "n"),
    [
        (0.2, 50, 10),
        (0.05, 500, 25),
        (0.5, 10, 5),
        (0.07, 100, 7),
        (1.0, 7, 7),
        (0.1, 14, 1),
        (0.1, 15, 2),
        (0.001, 10, 1),
    ],
)
def test_so_many_clients_make_a_round(fraction, n_clients, n):
    """FedProf's three tasks; 0.07 · 100 is 7 although floats say 7.000000000000001."""
    assert clients_per_round(fraction, n_clients) == n


def test_full_aggregation_counts_the_others_with_the_current_model():
    """θ = 1, mean 5, two of eight: ¾ · 1 + ¼ · 5 = 2; it is the mean over all eight clients."""
    last, mean = {"w": torch.tensor([1.0])}, {"w": torch.tensor([5.0])}
    models = [4.0, 6.0, *[1.0] * 6]
    assert full_aggregation(last, mean, 2 / 8)["w"].tolist() == [2.0] == [sum(models) / 8]
    assert full_aggregation(last, mean, 1.0)["w"].tolist() == [5.0]
    assert full_aggregation(last, mean, 0.0)["w"].tolist() == [1.0]


@pytest.mark.parametrize("share", [-0.125, 1.125, float("nan")])
def test_more_clients_than_there_are_are_not_aggregated(share):
    """Nor is an average of another model."""
    model = {"w": torch.zeros(1)}
    with pytest.raises(DataError, match=r"must be in 0\.\.1"):
        full_aggregation(model, model, share)
    with pytest.raises(DataError, match=r"differ in \['v'\]"):
        full_aggregation(model, model | {"v": torch.zeros(1)}, 0.125)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FairnessFloor(Random(), 0), "rounds = 0"),
        (lambda: clients_per_round(0.0, 5), "fraction = 0.0"),
        (lambda: clients_per_round(1.01, 5), "fraction = 1.01"),
        (lambda: clients_per_round(0.5, 0), "0 clients"),
    ],
)
def test_settings_without_a_meaning_are_refused(make, message):
    """The message names the setting and its value."""
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("selector", "known", "message"),
    [
        (FedProf(alpha=1.0), standing(divergence=[0.1, math.nan]), "b: divergence = nan"),
        (FedProf(alpha=0.0), standing(divergence=[0.1, math.inf]), "b: divergence = inf"),
        (FedProf(alpha=1.0), Standing(("a", "b")), "a: divergence = None"),
        (FedProf(alpha="theorem1"), Standing(("a", "b")), "a: n_samples = None"),
        (ByDataShare(), standing(n_samples=[3, 0]), "b: n_samples = 0.0"),
        (Afl(), standing(n_samples=[3, 4]), "a: loss = None"),
        (Cfcfm(), standing(time_s=[3, 4]), "a: rounds_waited = None"),
    ],
)
def test_a_selector_without_what_it_goes_by_says_so(selector, known, message):
    """The message names the client and the quantity."""
    with pytest.raises(DataError, match=message):
        selector.select(known, 1, generator())
