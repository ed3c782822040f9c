"""Canaries: records put into a run, clients through its privacy, and what they refute."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from audited_runs import played, task_of
from made_findings import records_showing
from small_audit import TINY
from torch import nn
from torch.nn import functional

from securefl import Task, load_config
from securefl.audit import audits
from securefl.audit.bounds.canaries import (
    alignment,
    canary_round,
    drawn_canaries,
    sample_gradients,
    with_canaries,
)
from securefl.audit.bounds.canary_bounds import canary_bound
from securefl.audit.bounds.crafted import MARGIN, TOGETHER, can_craft, crafted, hidden
from securefl.audit.bounds.gaussian_dp import gaussian_epsilon
from securefl.audit.bounds.record_bounds import Method, Noise
from securefl.audit.bounds.report_section import (
    DIMENSIONS,
    bounds_of_records,
    client_test,
    epsilon_section,
)
from securefl.audit.exposure.evidence import FolderEvidence
from securefl.audit.replay import replayed
from securefl.audit.rules import Verdict
from securefl.audit.thresholds import ALARM
from securefl.errors import DataError
from securefl.evaluation.evaluate import load_trained
from securefl.privacy import client_level, distributed_noise
from securefl.privacy.clipped import Bounded
from securefl.privacy.events import Gaussian, Level
from securefl.privacy.history import History
from securefl.runs.folder_reader import read_run

EVERYBODY = np.ones(200, bool)
CONFIDENCE = 1 - ALARM / 3


def private(sigma=1.0, clients=10, **changes):
    """Client-level privacy."""
    settings = ["algorithm.name=fedavg", "model.norm=group", "exchange.encrypt=none"]
    settings += ["algorithm.weights=uniform", f"data.clients={clients}", "privacy.level=client"]
    settings += [f"privacy.{name}={value}" for name, value in changes.items()]
    return load_config(None, [*settings, f"privacy.sigma={sigma}", "privacy.clip=0.3"])


@pytest.mark.parametrize(("sigma", "share"), [(1.0, 0.8), (2.0, 0.7)])
def test_canary_clients_find_most_of_epsilon_and_never_claim_too_much(sigma, share):
    """200 canaries in 10 000 dimensions, 200 rounds of new noise on the run's own clipped updates.

    The mean bound is that share of the truth; not above it are 93 % and more, at 95 % confidence.
    """
    one = canary_round(private(sigma, noise="seeded"), EVERYBODY, DIMENSIONS, 0)
    sent, rng = one.directions.sum(axis=0), np.random.default_rng(99)
    truth, found = gaussian_epsilon(1 / sigma, 1e-5), []
    for _ in range(200):
        again = replace(one, released=sent + sigma * rng.normal(size=DIMENSIONS))
        found.append(canary_bound(again.cosines, DIMENSIONS, 1e-5).epsilon)
    assert np.mean(found) >= share * truth
    assert np.mean(np.array(found) <= truth) >= 0.93
    own = canary_bound(one.cosines, DIMENSIONS, 1e-5).epsilon
    assert min(found) <= own <= max(found)


@pytest.mark.parametrize("clients", [5, 50])
@pytest.mark.parametrize("colluders", [0, 1])
def test_the_noise_of_a_total_is_measured(clients, colluders):
    """In 98 % of rounds the interval holds what is promised; nothing is promised too little."""
    config, n = private(clients=clients, colluders=colluders), np.ones(clients, bool)
    rounds = [canary_round(config, n, DIMENSIONS, seed) for seed in range(30)]
    promised = math.sqrt(clients / (clients - colluders))
    assert rounds[0].promised == pytest.approx(promised)
    inside = [one.noise(CONFIDENCE).low <= promised <= one.noise(CONFIDENCE).high for one in rounds]
    assert sum(inside) >= 27


def found_in(runs, config):
    return sum(client_test(config, 5, seed).refuted for seed in range(runs)) / runs


@pytest.mark.parametrize("runs", [8, pytest.param(20, marks=pytest.mark.full)])
def test_honest_noise_is_not_refuted(runs):
    """In 95 % of runs and more; the noise is seeded, or one test in ten would fail by chance."""
    assert found_in(runs, private(clients=5, noise="seeded")) <= 0.05


SOME_RUNS = pytest.mark.parametrize("runs", [3, pytest.param(20, marks=pytest.mark.full)])


@SOME_RUNS
def test_half_the_noise_is_found(monkeypatch, runs):
    """In 95 % of runs and more."""
    deviation = distributed_noise.ClientNoise.deviation
    monkeypatch.setattr(
        distributed_noise.ClientNoise, "deviation", lambda self, *sizes: deviation(self, *sizes) / 2
    )
    assert found_in(runs, private(clients=5)) >= 0.95


@SOME_RUNS
def test_a_missing_share_is_found(monkeypatch, runs):
    """One client of five that adds no noise, in 95 % of runs and more."""
    noisy, calls = client_level.noisy, [0]

    def sometimes(value, randomness, deviation):
        calls[0] += 1
        return noisy(value, randomness, 0.0 if calls[0] % 5 == 0 else deviation)

    monkeypatch.setattr(client_level, "noisy", sometimes)
    assert found_in(runs, private(clients=5)) >= 0.95


@SOME_RUNS
def test_a_skipped_clip_is_found(monkeypatch, runs):
    """In 95 % of runs and more."""
    monkeypatch.setattr(client_level, "clipped", lambda named, *_: Bounded(named, True))
    assert found_in(runs, private(clients=5)) >= 0.95


def test_with_many_clients_enough_values_are_looked_at():
    """That one share less of fifty would be seen; and where it would not, the section says so."""
    tests = [client_test(private(clients=50), 50, seed) for seed in range(3)]
    found = tests[0]
    assert found.missing_share_shows
    assert sum(test.refuted for test in tests) <= 1  # of honest noise, one in a hundred is
    blind = replace(found, clients=2000, dimensions=DIMENSIONS)
    assert not blind.missing_share_shows
    section = epsilon_section(private(clients=50), History(), None, blind, 0)
    assert any("would not have been noticed" in note for note in section.notes)


def test_client_canaries_need_privacy_of_clients():
    """A run without has nothing that they could test."""
    with pytest.raises(DataError, match="client"):
        canary_round(load_config(None, []), EVERYBODY, 100, 0)


def toy_task(clients=3, n=8, width=4):
    rng = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(n, width, generator=rng), torch.randint(3, (n,), generator=rng))
        for _ in range(clients + 1)
    ]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(width, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    return Task(model, data[1:], data[0])


def test_included_canaries_alone_are_dealt_to_clients():
    """Each to one client; the others are nowhere, and nobody loses a sample."""
    task = toy_task(width=12)
    canaries = drawn_canaries(task.test, 40, seed=1)
    assert 0 < canaries.included.sum() < 40
    after = with_canaries(task, canaries)
    added = torch.cat([x[8:] for x, _ in after.clients])
    assert len(added) == canaries.included.sum()
    for x, here in zip(canaries.x, canaries.included, strict=True):
        assert bool((added == x).all(dim=1).any()) == bool(here)
    for (before, _), (x, _) in zip(task.clients, after.clients, strict=True):
        assert torch.equal(x[:8], before)


def test_canaries_are_public_samples_with_their_pixels_shuffled():
    """And follow from the seed."""
    task = toy_task()
    canaries, again = (drawn_canaries(task.test, 30, seed=2) for _ in range(2))
    assert torch.equal(canaries.x, again.x)
    assert np.array_equal(canaries.included, again.included)
    public = {tuple(sorted(row.tolist())) for row in task.test[0]}
    assert {tuple(sorted(row.tolist())) for row in canaries.x} <= public
    assert any(not torch.equal(a, b) for a, b in zip(canaries.x, task.test[0], strict=False))


def test_alignment_is_a_loop_of_autograd():
    """Σ <∇ℓ(w_t; canary), w_t - w_{t+1}> of each, in float64."""
    task = toy_task()
    model = task.model.double()
    canaries = drawn_canaries((task.test[0].double(), task.test[1]), 6, seed=0)
    rng = torch.Generator().manual_seed(3)
    start = {n: v for n, v in model.state_dict().items() if v.is_floating_point()}
    models = [
        {n: v + 0.1 * torch.rand(v.shape, generator=rng).double() for n, v in start.items()}
        for _ in range(4)
    ]
    found = alignment(model, functional.cross_entropy, models, canaries)
    names = [n for n, _ in model.named_parameters()]
    for i in range(6):
        score = 0.0
        for before, after in pairwise(models):
            model.load_state_dict(before, strict=False)
            model.eval().zero_grad()
            functional.cross_entropy(model(canaries.x[i : i + 1]), canaries.y[i : i + 1]).backward()
            for name in names:
                step = before[name] - after[name]
                score += float((model.get_parameter(name).grad * step).sum())
        assert found[i] == pytest.approx(score, rel=1e-9)


def spent(level, sigma=1.0):
    return History().plus(level, Gaussian(sigma))


RECORD = [
    *("algorithm.name=fedavg", "model.norm=group", "exchange.encrypt=none"),
    *("algorithm.weights=uniform", "privacy.level=record", "privacy.records=250"),
]


@pytest.mark.parametrize(
    ("settings", "shown", "verdict"),
    [
        ([], 1.9, Verdict.OPEN),
        ([], 0.0, Verdict.OPEN),
        (RECORD, 1.0, Verdict.HOLDS),
        (RECORD, 4.5, Verdict.LEAKS),
    ],
)
def test_the_verdict_is_what_both_bounds_say(settings, shown, verdict):
    """σ = 1 once is ε = 4.38: less is compatible with it, more refutes it."""
    config = load_config(None, settings)
    history = spent(Level.RECORD) if settings else History()
    section = epsilon_section(config, history, records_showing(shown), None, 0)
    assert section.verdict is verdict
    at_most = next(number for number in section.numbers if number.name == "ε at most")
    assert at_most.value == (pytest.approx(4.38, abs=0.01) if settings else math.inf)
    assert at_most.method.startswith("accountant, PLD" if settings else "none claimed")
    assert f"{shown:.3f}" in section.tables[0].rows[0]


JUST = "of an ε of just that, up to"


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (0.0, "at least 0: next to nothing"),
        (0.16, "at least 0.16: next to nothing"),
        (0.17, f"at least 0.17: records are told apart a little ({JUST} 54.24 % of"),
        (1.0, f"at least 1: records are told apart a little ({JUST} 73.11 % of"),
        (1.1, f"at least 1.1: records are told apart ({JUST} 75.03 % of"),
        (1.8, f"at least 1.8: records are told apart ({JUST} 85.81 % of"),
        (3.0, f"at least 3: records are told apart ({JUST} 95.26 % of"),
        (3.1, "at least 3.1: records are told apart so well that the model is far from private"),
        (8.0, "at least 8: records are told apart so well"),
        (8.1, "at least 8.1: some records are told apart all but surely"),
    ],
)
def test_the_sentence_follows_the_number(shown, words):
    """A run without noise is called far from private only where canaries show that."""
    section = epsilon_section(load_config(None, []), History(), records_showing(shown), None, 0)
    assert f"an ε of {words}" in section.words


def test_scores_that_know_everything_reach_the_ceiling():
    """Of the bound on records, at 95 % confidence."""
    canaries = drawn_canaries(toy_task().test, 400, seed=0)
    scores = canaries.included.astype(float)
    bound = bounds_of_records(scores, canaries, load_config(None, []), History())
    assert bound.leading is Method.ANY
    assert 3.5 < bound.epsilon <= bound.ceiling


def test_what_others_hide_is_a_loop_over_pairs():
    """Mean squared cosines with others and among each other, and what is too short, in clips."""
    rng = torch.Generator().manual_seed(0)
    g, others = torch.randn(4, 5, generator=rng), torch.randn(3, 5, generator=rng)
    others = functional.normalize(others)
    cosine = functional.cosine_similarity
    by_others = sum(float(cosine(a, b, dim=0)) ** 2 for a in g for b in others) / 12
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    among = sum(float(cosine(g[a], g[b], dim=0)) ** 2 for a, b in pairs) / 12
    short = sum(max(0.0, MARGIN - float(a.norm()) / 2.0) ** 2 for a in g) / 4
    assert float(hidden(g, others, 2.0)) == pytest.approx(by_others + among + short, rel=1e-5)


def test_crafted_canaries_are_hidden_less_with_the_same_coins_and_labels():
    """Two groups of them; for tokens, or a model whose gradients fill memory, there are none."""
    task = toy_task(n=TOGETHER, width=12)
    canaries = drawn_canaries(task.test, TOGETHER + 6, seed=0)
    start = {name: value.detach() for name, value in task.model.named_parameters()}
    made = crafted(canaries, task.test, task.model, task.loss, [start], clip=0.5)
    assert (made.included == canaries.included).all()
    assert torch.equal(made.y, canaries.y)
    gradients = sample_gradients(task.model, task.loss)

    def measured(of):
        flat = [g.flatten(1) for g in gradients(start, of.x, of.y).values()]
        public = gradients(start, *(part[:TOGETHER] for part in task.test))
        others = functional.normalize(torch.cat([g.flatten(1) for g in public.values()], 1))
        return float(hidden(torch.cat(flat, 1), others, 0.5))

    assert measured(made) < 0.6 * measured(canaries)
    assert can_craft(task.model, canaries)
    assert not can_craft(task.model, replace(canaries, x=canaries.x.long()))
    assert not can_craft(nn.Linear(1000, 1000), canaries)


def test_an_audit_of_private_records_crafts_canaries_that_do_not_know_the_noise(
    tmp_path, monkeypatch
):
    """The run with canaries has a seed of its own; noise that is all Gaussian is known."""
    task = task_of("records")
    played("records", tmp_path / "run")
    seeds = []

    def seen(config, task, *progress):
        seeds.append(config.run.seed)
        return replayed(config, task, *progress)

    monkeypatch.setattr(audits, "replayed", seen)
    run = read_run(tmp_path / "run")
    found = audits._Audits(
        run,
        load_trained(tmp_path / "run", task),
        TINY,
        0,
        lambda *_step: None,
        FolderEvidence.of(run),
        shipped=False,
    )._canaries()
    assert seeds == [0, 1]
    assert found.noise is Noise.GAUSSIAN
    assert found.any.canaries == TINY.canaries
    assert found.scores.fewest < 100  # so scores do not lead
    assert found.leading is not Method.SCORES
