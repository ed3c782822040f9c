"""FNR-FL at client level: the weakest from a noisy histogram, and class norms with noise."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from itertools import islice
from statistics import fmean

import numpy as np
import pytest
import torch
from by_hand import BATCH, SEED, largest_difference, mean, task
from fnr_by_hand import descend, norm_table, public, refine, standing
from hypothesis import given
from hypothesis import strategies as st
from on_the_wire import nothing_is_handed_over
from played import played
from privately_by_hand import config as private_config
from privately_by_hand import replayed
from torch.nn import functional

from securefl import Config
from securefl.algorithms import fnr
from securefl.algorithms.fnr import NOISY_LEVELS
from securefl.algorithms.lowest import noisily_among_lowest, places
from securefl.data.samples import minibatches, samples
from securefl.errors import TooFewContributions
from securefl.federation.client import Client
from securefl.federation.training import round_generator
from securefl.privacy import distributed_noise
from securefl.privacy.randomness import Seeded
from securefl.types import Total

pytestmark = pytest.mark.usefixtures("quick", "uncounted")

STEPS, ROUNDS, STRENGTH, SHARE = 3, 2, 0.4, 0.34
SIZES = (5, 9, 14, 8, 11, 7)


class Answering:
    """A client's end of a sum whose total is known."""

    weight = 1.0

    def __init__(self, mean, n_clients):
        self.total = Total({"levels": mean}, 1.0, n_clients)
        self.sent = None

    def sum(self, name, values):
        assert name == "sum"
        self.sent = values["levels"]
        return self.total


def refined_of(levels, n_levels, share, noise=None):
    """What each client finds of itself, from one total."""
    one_hot = functional.one_hot(torch.tensor(levels), n_levels).double()
    mean_L = one_hot.mean(0) + (0.0 if noise is None else noise / len(levels))
    found = []
    for i, level in enumerate(levels):
        exchange = Answering(mean_L, len(levels))
        found.append(
            noisily_among_lowest(exchange, "sum", n_levels, level, lambda n: places(share, n))
        )
        assert torch.equal(exchange.sent, one_hot[i])
    return found


LEVELS = st.lists(st.integers(0, 7), min_size=4, max_size=30)


@given(LEVELS, st.floats(0.05, 0.9))
def test_without_noise_whole_levels_come_nearest_to_the_places(levels, share):
    """Of all ways to refine the levels up to one, or none, the nearest; of two, that of fewer."""
    counts = Counter(levels)
    wanted = places(share, len(levels))
    sizes = [sum(counts[level] for level in range(below)) for below in range(9)]
    best = min(sizes, key=lambda size: (abs(size - wanted), size))
    found = refined_of(levels, 8, share)
    assert sum(found) == best
    assert all(
        not (other and not one)
        for one, level in zip(found, levels, strict=True)
        for other, above in zip(found, levels, strict=True)
        if above >= level
    )


@given(LEVELS, st.floats(0.05, 0.9), st.integers(0, 100), st.floats(0, 5))
def test_whatever_the_noise_all_clients_find_the_same(levels, share, seed, sigma):
    """Those of a level have a place or none, and with a level all below it."""
    noise = torch.from_numpy(np.random.default_rng(seed).normal(0, sigma, 8))
    found = refined_of(levels, 8, share, noise)
    highest = max((level for level, one in zip(levels, found, strict=True) if one), default=-1)
    assert found == [level <= highest for level in levels]


def test_nobody_is_refined_where_all_are_at_the_lowest_level():
    """None is nearer to one place of four than all four are; with three places it is all."""
    assert refined_of([0, 0, 0, 0], 8, 0.25) == [False] * 4
    assert refined_of([0, 0, 0, 0], 8, 0.75) == [True] * 4
    assert refined_of([5, 5, 5, 5], 8, 0.25) == [False] * 4


# --- whole rounds ---


def job():
    return task(sizes=SIZES, public=(public().samples.x, public().samples.y))


def settings():
    return private_config(
        "algorithm.name=fedavg",
        f"algorithm.local_steps={STEPS}",
        "train.weight_decay=0.0",
        "fnr.name=matched",
        f"fnr.share={SHARE}",
        f"fnr.strength={STRENGTH}",
        "fnr.epochs=2",
        "fnr.batch_size=7",
        "privacy.level=client",
        "privacy.clip=1e6",
        "privacy.statistics_clip=1e6",
        "privacy.delta=1e-3",
        rounds=ROUNDS,
    )


def by_hand(strength=STRENGTH):
    """The global model, who was refined, and the others' mean class norms, round by round."""
    stock = public()
    stock = type(stock)(stock.samples, batch_size=7, epochs=2, seed=SEED)
    data, model, seen = (stock.samples.x, stock.samples.y), copy.deepcopy(job().model), []
    for done in range(ROUNDS):
        locals_ = []
        for i in range(len(SIZES)):
            local = copy.deepcopy(model).train()
            rng = round_generator(SEED, done, i)
            replayed(rng)  # the noise has its seed from there
            held = samples(job().clients[i], "a client")
            for x, y in islice(minibatches(held, BATCH, rng, torch.device("cpu")), STEPS):
                descend(local, functional.cross_entropy(local(x), y))
            locals_.append(local)
        correct = [round(standing(local, data)[0] * 20) for local in locals_]
        levels = [int(n / 21 * 20) for n in correct]
        by_level = sorted(range(len(levels)), key=lambda i: levels[i])
        cuts = [n for n in range(7) if n in {0, 6} or levels[by_level[n - 1]] < levels[by_level[n]]]
        weakest = by_level[: min(cuts, key=lambda n: (abs(n - 2), n))]
        tables = [norm_table(local, data) for local in locals_]
        others = [table for i, table in enumerate(tables) if i not in weakest]
        reference = {label: fmean(table[label] for table in others) for label in others[0]}
        seen.append((sorted(weakest), reference))
        for j in weakest:
            refine(locals_[j], reference, stock, done, strength)
        states = [
            {n: v for n, v in local.state_dict().items() if v.is_floating_point()}
            for local in locals_
        ]
        model.load_state_dict(mean([1 / 6] * 6, states), strict=False)
    return model, seen


@pytest.fixture
def without_noise(monkeypatch):
    monkeypatch.setattr(Seeded, "gaussian", lambda _self, size, _deviation: np.zeros(size))


@pytest.fixture
def references(monkeypatch):
    """What clients read of the sum of class norms, and whether they are refined."""
    found, read = [], fnr._reference

    def noted(own, refined, exchange):
        found.append((refined, read(own, refined, exchange)))
        return found[-1][1]

    monkeypatch.setattr(fnr, "_reference", noted)
    return found


@pytest.mark.usefixtures("without_noise")
def test_rounds_without_noise_and_clip_are_those_of_a_loop(references):
    """The same clients refined, on the exact class norms of the others, to 1e-9."""
    found = played(settings(), job()).result
    expected, seen = by_hand()
    assert largest_difference(found.model, expected) < 1e-9
    assert largest_difference(found.model, by_hand(strength=0.0)[0]) > 1e-3
    assert len(references) == ROUNDS * len(SIZES)
    for done, (weakest, reference) in enumerate(seen):
        of_round = references[done * len(SIZES) :][: len(SIZES)]
        assert [i for i, (refined, _) in enumerate(of_round) if refined] == weakest
        for _, norms in of_round:
            known = norms.known_C.nonzero().flatten().tolist()
            assert norms.mean_C[known].tolist() == pytest.approx([reference[k] for k in known])
            assert sorted(reference) == known
    assert any(0 < len(weakest) < len(SIZES) for weakest, _ in seen)


def test_a_round_that_has_lost_too_many_to_refine_any_is_no_fault_of_the_settings(monkeypatch):
    """Of four clients one is refined; of three it would be one of too few."""
    contribute = Client.contribute

    def changed(self, run, round_number, spec, tensors, times=1, state="", *, model=""):
        message = contribute(self, run, round_number, spec, tensors, times, state, model=model)
        lost = self.name == "client-2" and spec.name == fnr.ACCURACIES
        return message[:-1] if lost else message

    nothing_is_handed_over(monkeypatch)
    monkeypatch.setattr(Client, "contribute", changed)
    config = settings().model_dump()
    config["privacy"] |= {"dropouts": 1}
    with pytest.raises(TooFewContributions, match="of 3 clients 1 are refined"):
        played(Config.model_validate(config), replace(job(), clients=job().clients[:4]))


def test_what_a_client_says_of_itself_is_bounded(monkeypatch):
    """A one in the histogram, and class norms clipped to 0.2 √(2 classes); the noise is of both."""
    asked, sent, noisy = [], [], distributed_noise.noisy

    def noted(value, randomness, deviation):
        sent.append(value)
        asked.append(deviation)
        return noisy(value, randomness, deviation)

    monkeypatch.setattr(distributed_noise, "noisy", noted)
    config = settings().model_dump()
    config["privacy"] |= {"statistics_clip": 0.2, "sigma": 0.3, "colluders": 2}
    played(Config.model_validate(config), job())
    bound = 0.2 * 8**0.5
    assert len(sent) == ROUNDS * len(SIZES) * 3  # the norms are two tensors
    of_levels = [v for v in sent if len(v) == NOISY_LEVELS]
    assert [float(v.norm()) for v in of_levels] == [1.0] * (ROUNDS * len(SIZES))
    tables = [v for v in sent if len(v) != NOISY_LEVELS]
    sizes = [float(torch.cat(pair).norm()) for pair in zip(tables[::2], tables[1::2], strict=True)]
    assert max(sizes) == pytest.approx(bound)
    assert max(sizes) <= bound * (1 + 1e-9)
    share = 0.3 / (6 - 2) ** 0.5
    for value, deviation in zip(sent, asked, strict=True):
        whole = share * (1.0 if len(value) == NOISY_LEVELS else bound)
        assert whole < deviation < whole * 1.001
