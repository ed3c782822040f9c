"""Profiles and scores by the Gaussian mechanism, against the exact ones and the noise by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from match_parties import RUN
from matching_runs import MODES, Q, make_config, make_task, names, participants, run_in
from scipy import stats
from silent import Silent
from torch import nn

import securefl
from securefl import Config
from securefl.algorithms.profiling import View, profile
from securefl.crypto.one_time import ring
from securefl.crypto.params import MATCHES
from securefl.errors import DataError
from securefl.exchange import noise as gaussian_module
from securefl.exchange.noise import ScoreNoise, gaussian
from securefl.exchange.officer import KeySet
from securefl.exchange.one_time_match import OneTimeMatcher, OneTimeProfileSealer
from securefl.exchange.policy import Policy
from securefl.exchange.profile_match import Profile, divergence
from securefl.federation.authority import Authority, ScoreAuthority
from securefl.federation.client import Client
from securefl.federation.message import Roster
from securefl.federation.server import Server
from securefl.federation.training import PROFILING, round_generator
from securefl.privacy.private_profiles import PrivateProfiler
from securefl.privacy.randomness import Secret, Seeded
from securefl.privacy.record_moments import MomentRelease

pytestmark = [pytest.mark.shapes, pytest.mark.usefixtures("no_hang", "quick")]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def model_of(kind="dense"):
    """A record in it acts on no other."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "dense":
            return nn.Sequential(nn.Linear(4, Q), nn.ReLU(), nn.Linear(Q, 3))
        layers = [nn.Conv2d(1, Q, 2), nn.ReLU(), nn.Flatten(), nn.Linear(Q * 9, 3)]
        return nn.Sequential(*layers)


SHAPES = {"dense": (70, 4), "convolution": (70, 1, 4, 4)}


class Recorded:
    """Seeded noise, and the deviations that were asked for."""

    def __init__(self, seed=0):
        self.asked = []
        self.seeded = Seeded(generator(seed))

    def gaussian(self, size, deviation):
        self.asked.append((size, deviation))
        return self.seeded.gaussian(size, deviation)

    def uniform(self, size):
        return self.seeded.uniform(size)

    def layer_seed(self):
        return self.seeded.layer_seed()


@pytest.mark.parametrize("unit", [0.5, 4.0])
@pytest.mark.parametrize("kind", SHAPES)
def test_with_little_noise_a_profile_is_the_exact_one(kind, unit):
    """In the server's unit, over batches of different length, of a layer of either kind."""
    x = torch.randn(SHAPES[kind], generator=generator(1))
    view = View(model_of(kind), None, 7, unit)
    found = PrivateProfiler(1e4, 1e-12)(view, x.split(32), Secret())
    wanted = profile(view.model, None, [x], 7).in_unit(unit)
    torch.testing.assert_close(found.mean_Q, wanted.mean_Q, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.variance_Q, wanted.variance_Q, rtol=1e-6, atol=1e-6)
    assert found.version == 7


def test_a_profile_is_the_noisy_sums_by_hand():
    """One draw for all batches, of deviation σ · bound, on clipped sums of h / unit."""
    x, unit, clip, sigma = torch.randn(70, 4, generator=generator(1)), 0.25, 1.5, 2.0
    model, randomness = model_of(), Recorded()
    found = PrivateProfiler(clip, sigma)(View(model, None, 0, unit), x.split(32), randomness)
    bound = clip * (2 * Q) ** 0.5
    assert randomness.asked == [(1 + 2 * Q, sigma * bound)]
    h = model[0](x).detach().double().numpy() / unit / (1 + 1e-5) ** 0.5
    rows = np.concatenate([np.full((70, 1), bound / 2), h, h**2], axis=1)
    scales = np.minimum(1, bound / np.linalg.norm(rows, axis=1))
    assert 10 < (scales < 1).sum() < 70
    total = scales @ rows + Seeded(generator(0)).gaussian(1 + 2 * Q, sigma * bound)
    mean, second = (total[1:] / total[0] * bound / 2).reshape(2, Q)
    floor = 2 * sigma * bound * bound / 2 / total[0]
    variance = np.maximum(second - mean**2, floor)
    np.testing.assert_allclose(found.mean_Q, mean * (1 + 1e-5) ** 0.5, rtol=1e-9)
    np.testing.assert_allclose(found.variance_Q, variance * (1 + 1e-5), rtol=1e-9)


def scatter_is(sigma, profiler, randomness_of):
    """Whether the means of a profile of zeros scatter by σ · bound / n, by χ² at 99.9 %."""
    n, view = 4000, View(nn.Sequential(nn.Linear(1, Q, bias=False), nn.Flatten()), None, 0, 1.0)
    x = torch.zeros(n, 1)
    found = [profiler(view, [x], randomness_of(seed)).mean_Q for seed in range(200)]
    scaled = torch.stack(found) * n / (sigma * MomentRelease(Q, 1.5, sigma).bound)
    low, high = stats.chi2(scaled.numel()).interval(0.999)
    return low <= scaled.square().sum().item() <= high


def test_released_profiles_scatter_as_sigma_says():
    """Half of the noise, or none of it, is found out."""

    def seeded(seed):
        return Seeded(generator(seed))

    assert scatter_is(2.0, PrivateProfiler(1.5, 2.0), seeded)
    assert not scatter_is(2.0, PrivateProfiler(1.5, 1.0), seeded)
    assert not scatter_is(2.0, PrivateProfiler(1.5, 2.0), lambda _seed: Silent())


@pytest.mark.parametrize("value", [1e4, 1e38, float("nan")])
def test_one_record_moves_a_profile_no_further_than_the_clip_lets_it(value):
    """Whatever it is; the exact profile is moved by any distance, or refused."""
    x = torch.randn(200, 4, generator=generator(1))
    other = x.clone()
    other[0] = value
    view = View(model_of(), None, 0, 1.0)
    one, two = (PrivateProfiler(1.5, 0.01)(view, [data], Recorded()) for data in (x, other))
    bound = MomentRelease(Q, 1.5, 0.01).bound
    # The sums move by two bounds at most, and are divided by a count of 200 or a little less.
    assert torch.linalg.vector_norm(two.mean_Q - one.mean_Q) < 3 * bound / 200


def test_a_model_is_left_as_it_was_when_a_profile_drowns():
    """In training mode, and without hooks."""
    model = model_of().train()
    with pytest.raises(DataError, match="drowned"):
        PrivateProfiler(1.5, 10.0)(View(model, None, 0, 1.0), [torch.ones(20, 4)], Recorded())
    assert all(module.training and not module._forward_hooks for module in model.modules())
    with pytest.raises(DataError, match="no batch"):
        PrivateProfiler(1.5, 1.0)(View(model, None, 0, 1.0), [], Recorded())


def private(config, **table):
    """The same settings with `[privacy]`, and the weights that it requires."""
    settings = config.model_dump()
    settings["algorithm"]["weights"] = "uniform"
    return Config.model_validate(settings | {"privacy": {"noise": "seeded"} | table})


RECORD = {"level": "record", "records": 16, "statistics_sigma": 0.1}
CLIENT = {"level": "client", "statistics_sigma": 2.0, "score_clip": 5.0}


def scores_of(folder, config, task):
    """What was measured of each client in the first round."""
    _, rounds = run_in(folder, config, task)
    return rounds[0].measured


@pytest.mark.parametrize("mode", MODES)
def test_a_run_at_the_level_of_records_sends_noisy_profiles(tmp_path, mode, monkeypatch):
    """Scores differ from those of exact profiles, and are those of what was sent."""
    sent, send = {}, securefl.federation.client.Client.send_profile

    def send_profile(self, run, round_number, made, state):
        sent[self.name, round_number] = made
        return send(self, run, round_number, made, state)

    monkeypatch.setattr(securefl.federation.client.Client, "send_profile", send_profile)
    task, config = make_task(model=model_of()), make_config(mode, rounds=1)
    exact = scores_of(tmp_path / "exact", config, task)
    as_they_are = dict(sent)
    noisy = scores_of(tmp_path / "noisy", private(config, **RECORD), task)
    assert exact.keys() == noisy.keys()
    for client in exact:
        assert abs(exact[client] - noisy[client]) > 1e-3
        moved = (sent[client, 1].mean_Q - as_they_are[client, 1].mean_Q).abs()
        assert (moved > 1e-6).all()


def test_each_client_draws_noise_of_its_own_in_each_round(tmp_path, monkeypatch):
    """One draw a profile, all of σ · bound; none twice, and none that training draws."""
    drawn, gaussian = [], Seeded.gaussian

    def noted(self, size, deviation):
        drawn.append((size, deviation, gaussian(self, size, deviation).tobytes()))
        return np.frombuffer(drawn[-1][2]).copy()

    monkeypatch.setattr(Seeded, "gaussian", noted)
    _, rounds = run_in(
        tmp_path / "run",
        private(make_config("plain", rounds=2), **RECORD),
        make_task(model=model_of()),
    )
    profiles = [entry for entry in drawn if entry[0] == 13]
    assert len(profiles) == len(rounds[0].measured) + len(rounds[1].measured) == 8
    assert {entry[:2] for entry in profiles} == {(13, 0.1 * 1.5 * 12**0.5)}
    # All others are of DP-SGD, with σ · clip = 1: six steps in all, a draw for each tensor.
    trained = sorted(entry[:2] for entry in drawn if entry[0] != 13)
    assert trained == sorted([(size, 1.0) for size in (4 * Q, Q, 3 * Q, 3)] * 6)
    starts = np.array([np.frombuffer(noise)[:3] / deviation for _, deviation, noise in drawn])
    assert len(np.unique(starts.round(9), axis=0)) == len(drawn)


def test_generators_for_profiles_are_nobody_elses():
    """Neither a client's in training nor the server's."""
    others = [*range(50), *range(2**31, 2**31 + 50)]
    seeds = [
        round_generator(3, number, drawer).initial_seed()
        for number in range(4)
        for drawer in (*others, *range(PROFILING, PROFILING + 50))
    ]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("table", [RECORD, CLIENT], ids=["record", "client"])
def test_seeded_noise_is_the_same_again_and_secret_noise_is_not(tmp_path, table):
    """In the clear to the bit, and sealed to the error of a match."""
    task, runs = make_task(model=model_of()), {}
    for name, (mode, noise) in {
        "a": ("plain", "seeded"),
        "b": ("plain", "seeded"),
        "sealed": ("sealed", "seeded"),
        "c": ("plain", "secret"),
        "sealed c": ("sealed", "secret"),
    }.items():
        config = make_config(mode, rounds=2)
        run_in(tmp_path / name, private(config, **table, noise=noise), task)
        runs[name] = [dict(each.measured) for each in participants(tmp_path / name)]
    assert runs["a"] == runs["b"]
    for one, other in zip(runs["a"], runs["sealed"], strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    for secret in ("c", "sealed c"):
        assert runs["a"][0].keys() == runs[secret][0].keys()
        moved = [abs(runs["a"][0][client] - runs[secret][0][client]) for client in names(1, 2, 3)]
        assert max(moved) > 1e-3


def test_a_profile_that_drowns_is_its_clients_incident(tmp_path):
    """Of two samples, where others have sixteen; the round goes on with the others."""
    task = make_task(model=model_of())
    x, y = task.clients[0]
    few = replace(task, clients=[(x[:2], y[:2]), *task.clients[1:]])
    config = private(make_config("plain", rounds=1), **RECORD | {"statistics_sigma": 0.2})
    _, (participants,) = run_in(tmp_path / "run", config, few)
    assert "client-1" not in participants.measured
    assert len(participants.measured) == 4
    rows = map(json.loads, (tmp_path / "run" / "incidents.jsonl").read_text().splitlines())
    (row,) = rows
    assert row["client"] == "client-1"
    assert "cannot be sent" in row["reason"]


class Scores:
    """Four clients with one profile, and an authority that adds noise to their scores."""

    def __init__(self, noise, draw=None):
        keys = KeySet.ephemeral()
        sealer = OneTimeProfileSealer(keys.public)
        self.clients = {
            name: Client(name, 0.1, {}, 0.1, sealer, keys.public) for name in names(1, 2, 3, 4)
        }
        self.roster = Roster({name: client.identity for name, client in self.clients.items()})
        self.matcher = OneTimeMatcher(keys.public)
        rng = np.random.default_rng(0)
        self.baseline, self.made = (
            Profile(*torch.from_numpy(rng.uniform(0.5, 2, (2, 8))), 0) for _ in range(2)
        )
        sums = Authority(keys.opener(), self.roster, Policy(), lambda _opening: None)
        sums.take_cards(RUN, {name: c.send_cards(RUN) for name, c in self.clients.items()})
        self.authority = ScoreAuthority(sums, noise, draw or (lambda _version, _client: gaussian))

    def opened(self, round_number=1):
        server = Server(RUN, self.roster, {})
        survey = server.ask_profile(round_number, self.matcher, self.baseline, self.clients)
        for client in self.clients.values():
            survey.receive(client.send_profile(RUN, round_number, self.made))
        return self.authority.open(survey.request())

    @property
    def exact(self):
        return divergence(self.made, self.baseline)


def noised(score, noise, n, draw=gaussian):
    """What such noise makes of a score, so many times."""
    return np.array([noise.on(score, draw) for _ in range(n)])


@pytest.mark.parametrize("deviation", [1e-6, 0.5, 20.0])
def test_the_noise_on_a_score_is_gaussian_of_the_stated_deviation(deviation):
    """By χ² of 4000 secret draws, at odds of 10^-9; half of it and √2 of it are found out."""
    errors = noised(0.5, ScoreNoise(1.0, deviation), 4000) - 0.5
    low, high = stats.chi2(4000).interval(1 - 1e-9)
    assert low <= (errors**2).sum() / deviation**2 <= high
    for other in (deviation / 2, 2**0.5 * deviation):
        assert not low <= (errors**2).sum() / other**2 <= high
    assert stats.kstest(errors / deviation, "norm").pvalue > 1e-9


@pytest.mark.parametrize(("score", "kept"), [(-3.0, 0.0), (0.25, 0.25), (2.0, 2.0), (1e9, 2.0)])
def test_a_score_is_clipped_before_its_noise(score, kept):
    """Noise goes beyond the bound: else the clip would cut it off."""
    for noise in (-7.0, 0.0, 7.0):
        draw = lambda size, deviation, n=noise: np.full(size, n * deviation)  # noqa: E731
        assert ScoreNoise(2.0, 1.0).on(score, draw) == kept + noise


def test_without_the_clip_or_with_half_the_noise_a_client_would_show():
    """The two ends of what a client can do to its score, told apart as σ = 1 lets them be."""
    noise = ScoreNoise(2.0, 2.0)
    near, far = (noised(score, noise, 4000) for score in (-1e6, 1e6))
    distance = (far.mean() - near.mean()) / near.std()
    assert distance == pytest.approx(1.0, abs=6 * (2 / 4000) ** 0.5 + 0.1)


def test_a_sealed_score_is_clipped_and_noised():
    """All the way from profiles, by the officers' answers: by χ² over 100 rounds of four."""
    loose, tight = Scores(ScoreNoise(10.0, 1e-9)), Scores(ScoreNoise(0.01, 1e-9))
    assert loose.exact > 0.1
    assert loose.opened() == pytest.approx([loose.exact] * 4, abs=1e-6)
    assert tight.opened() == pytest.approx([0.01] * 4, abs=1e-6)
    scores = Scores(ScoreNoise(10.0, 1.0))
    errors = np.array([scores.opened(number) for number in range(1, 101)]) - scores.exact
    low, high = stats.chi2(400).interval(1 - 1e-9)
    assert low <= (errors**2).sum() <= high


def test_no_exponent_of_the_servers_takes_the_noise_away():
    """It multiplies the score before the clip; noise is of the settings' deviation all the same."""
    scores, match = Scores(ScoreNoise(1.0, 1.0)), OneTimeMatcher.match
    errors = []
    for number, exponent in enumerate((-128, -20, 0, 5, 127), 1):
        for again in range(20):

            def other(self, payload, baseline, of=exponent):
                return of.to_bytes(1, signed=True) + match(self, payload, baseline)[1:]

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(OneTimeMatcher, "match", other)
                opened = np.array(scores.opened(100 * number + again))
            assert (np.abs(opened) < 1 + 8).all()
            errors += list(opened - opened.mean())
    assert np.std(errors) == pytest.approx(0.75**0.5, rel=0.2)  # of four, less their mean


def test_each_client_and_round_has_a_draw_of_its_own():
    """By the number of rounds completed and the client's name, as in the clear."""
    asked = []

    def draw(version, client):
        asked.append((version, client))
        return lambda size, deviation: np.zeros(size)

    scores = Scores(ScoreNoise(10.0, 1.0), draw)
    assert scores.opened(3) == pytest.approx([scores.exact] * 4, abs=1e-6)
    assert asked == [(2, name) for name in names(1, 2, 3, 4)]


@pytest.mark.parametrize("mode", MODES)
def test_a_run_at_the_level_of_clients_reads_noisy_scores(tmp_path, mode):
    """None is below 0, and one that noise took there is no incident."""
    task, config = make_task(model=model_of()), make_config(mode, rounds=4)
    folder = tmp_path / "run"
    _, rounds = run_in(folder, private(config, **CLIENT), task)
    values = [value for each in rounds for value in each.measured.values()]
    assert len(values) == 14  # of five clients, then of three in each round
    assert min(values) == 0.0
    assert max(values) > 3  # exact scores of such clients are far below 1
    assert not (folder / "incidents.jsonl").exists() or not (folder / "incidents.jsonl").read_text()


@pytest.mark.parametrize(
    "table", [{}, RECORD, CLIENT | {"statistics_sigma": 0.1}], ids=["none", "record", "client"]
)
def test_scores_noise_is_that_of_the_settings(tmp_path, table, monkeypatch):
    """σ · bound at the level of clients, in the clear and sealed; elsewhere none at all."""
    asked = []

    def gaussian(*arguments):
        asked.append(arguments[-2:])
        return np.zeros(arguments[-2])

    monkeypatch.setattr(gaussian_module, "gaussian", gaussian)
    monkeypatch.setattr(Seeded, "gaussian", gaussian)
    task = make_task(model=model_of())
    for mode in MODES:
        exact = make_config(mode, rounds=1)
        config = private(exact, **table) if table else exact
        run_in(tmp_path / mode, config, task)
    single = [deviation for size, deviation in asked if size == 1]
    assert single == ([0.5] * 10 if config.privacy.level == "client" else [])


@pytest.mark.parametrize("mode", MODES)
def test_profiles_stay_exact_at_the_level_of_clients(tmp_path, monkeypatch, mode):
    """There the score is what is noised; and at the level of records the score is not."""
    seen = []

    def noted(self, score, draw):
        seen.append(score)
        return 0.0

    monkeypatch.setattr(ScoreNoise, "on", noted)
    task, config = make_task(model=model_of()), make_config(mode, rounds=1)
    exact = scores_of(tmp_path / "exact", config, task)
    assert not seen
    scores_of(tmp_path / "client", private(config, **CLIENT), task)
    assert sorted(seen) == pytest.approx(sorted(exact.values()), abs=1e-5)
    seen.clear()
    scores_of(tmp_path / "record", private(config, **RECORD), task)
    assert not seen


class Offset:
    """A server's matcher that adds so much to a score that it is out of range."""

    def __init__(self, matcher):
        self._matcher = matcher

    def __getattr__(self, name):
        return getattr(self._matcher, name)

    def match(self, payload, baseline):
        score = self._matcher.match(payload, baseline)
        constant = int.from_bytes(score[1:13], "little") + 2**90
        return score[:1] + (constant % ring(MATCHES).modulus).to_bytes(12, "little") + score[13:]


def test_rubbish_gets_noise_as_well():
    """Else "a number or none" would tell, without noise, on which side of a bound a score is."""
    bare, noisy = Scores(None), Scores(ScoreNoise(1.0, 0.25))
    for scores in (bare, noisy):
        scores.matcher = Offset(scores.matcher)
    assert bare.opened() == [None] * 4
    opened = noisy.opened()
    assert len({*opened}) == 4
    assert max(map(abs, opened)) < 9 * 0.25
