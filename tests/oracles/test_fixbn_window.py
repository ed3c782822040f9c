"""The window rule for FixBN's T* (appendix B.6) against the formula written out."""

from __future__ import annotations

import copy
from itertools import pairwise

import by_hand
import pytest
import torch
from safetensors.torch import load_file

import securefl
from securefl.algorithms.normalisation.fixbn import Window

pytestmark = pytest.mark.usefixtures("quick")

ROUNDS, W, E = 12, 3, 2
VARIATION, FILLED = "state/statistics/fixbn/variation", "state/statistics/fixbn/filled"


def settings(threshold, *more):
    return by_hand.config(
        "algorithm.name=fixbn",
        "algorithm.switch=window",
        f"algorithm.window={W}",
        f"algorithm.threshold={threshold}",
        f"algorithm.local_steps={E}",
        *more,
        rounds=ROUNDS,
    )


@pytest.fixture(scope="module")
def job():
    return by_hand.task("mlp")


@pytest.fixture(scope="module")
def variations(job):
    """Σ p_m Var_{m,t} by round t, of a federation that never freezes."""
    model, seen = copy.deepcopy(job.model), []

    def note(_layer, inputs):
        (z,) = inputs
        mu = z.detach().sum(0) / len(z)
        seen.append(torch.cat([mu, (z.detach() - mu).square().sum(0) / len(z)]))

    model[1].register_forward_pre_hook(note)
    n, mean_statistics = len(job.clients), []
    for done in range(ROUNDS):
        seen.clear()
        by_hand.fedavg_round(model, job, done, n_steps=E)
        mean_statistics.append([sum(seen[i * E : i * E + E]) / E for i in range(n)])
    found = {}
    for t in range(W + 1, ROUNDS + 1):
        total = 0.0
        for i, share in enumerate(by_hand.shares(job)):
            window = [statistics[i] for statistics in mean_statistics[t - W - 1 : t]]
            changes = [b - a for a, b in pairwise(window)]
            centre = sum(changes) / W
            total += share * float((sum((c - centre) ** 2 for c in changes) / W).mean())
        found[t] = total
    return found


@pytest.fixture(scope="module")
def t_star(variations):
    """The round of the least variation, so that none before is below a τ just above it."""
    found = min((t for t in variations if t < ROUNDS - 1), key=variations.get)
    assert found > W + 1
    return found


def run_noting(config, job, folder):
    found = {}

    def on_round(metrics):
        found[metrics.round] = load_file(folder / "checkpoint.safetensors")

    return securefl.run(config, job, out=folder, on_round=on_round), found


@pytest.mark.parametrize("encrypt", ["none", "statistics", "model"])
def test_bn_is_frozen_in_the_round_in_which_the_variation_falls_below_tau(
    tmp_path, job, variations, t_star, encrypt
):
    """The state's variation is the formula's each round; statistics move up to T*, then never."""
    config = settings(variations[t_star] * 1.0001, f"exchange.encrypt={encrypt}")
    result, found = run_noting(config, job, tmp_path / "run")
    tolerance = 1e-12 if encrypt == "none" else 1e-5
    for t in range(1, t_star + 1):
        full = t > W
        assert float(found[t][FILLED]) == pytest.approx(float(full), abs=tolerance)
        expected = variations[t] if full else 0.0
        assert float(found[t][VARIATION]) == pytest.approx(expected, abs=tolerance)
    for t in range(1, ROUNDS):
        for name in ("1.running_mean", "1.running_var"):
            key = f"state/statistics/{name}"
            assert torch.equal(found[t][key], found[t + 1][key]) == (t >= t_star)
    sent = {e.round for e in result.ledger.entries if e.name == "update/statistics"}
    assert sent == set(range(1, t_star + 1))


def test_no_window_that_is_not_full_freezes_anything(tmp_path, job):
    """However large τ: W changes take W + 1 rounds, and BN is frozen after these."""
    _, found = run_noting(settings(1e30), job, tmp_path / "run")
    key = "state/statistics/1.running_mean"
    moved = [t for t in range(1, ROUNDS) if not torch.equal(found[t][key], found[t + 1][key])]
    assert moved == list(range(1, W + 1))


def test_a_resumed_run_looks_back_on_the_rounds_before(tmp_path, job, variations, t_star):
    """Stopped before the window is full, in it, or after T*, a run ends bit for bit the same."""
    config = settings(variations[t_star] * 1.0001)
    whole = securefl.run(config, job).model.state_dict()

    class StopError(Exception):
        """Stands for a crash."""

    for stop in (1, W, t_star - 1, t_star, t_star + 1):

        def on_round(metrics, stop=stop):
            if metrics.round == stop:
                raise StopError

        folder = tmp_path / str(stop)
        with pytest.raises(StopError):
            securefl.run(config, job, out=folder, on_round=on_round)
        resumed = securefl.resume(folder, job).model.state_dict()
        assert all(torch.equal(resumed[name], value) for name, value in whole.items())


def test_only_the_model_that_trains_is_watched(job, monkeypatch):
    """MOON's copies of the model see each batch too, and count in no window."""
    seen = []
    follow = Window.follow

    def noting(self, passes, kept):
        seen.append({name: len(found) for name, found in passes.items()})
        return follow(self, passes, kept)

    monkeypatch.setattr(Window, "follow", noting)
    securefl.run(settings(1e-30, "solver.name=moon"), job)
    assert seen == [{"1": E}] * ROUNDS * len(job.clients)


@pytest.mark.slow
@pytest.mark.full
def test_the_defaults_freeze_the_demos_job_soon_after_its_first_learning_rate_drop(tmp_path):
    """Of 200 rounds with a drop after 100, BN is frozen between 100 and 125."""
    config = securefl.load_config(
        None, ["algorithm.name=fixbn", "algorithm.switch=window", "exchange.encrypt=none"]
    )
    result = securefl.run(config)
    last = max(e.round for e in result.ledger.entries if e.name == "update/statistics")
    assert 100 < last <= 125
    assert result.accuracy >= 0.9
