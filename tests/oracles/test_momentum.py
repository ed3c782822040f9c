"""Momentum kept from round to round (FixBN, section 7) against centralised momentum SGD."""

from __future__ import annotations

import copy

import by_hand
import pytest
import torch
from pairs import grid
from safetensors.torch import load_file

import securefl

STEPS, BETA = 20, 0.9
NORMALISATIONS = {
    "gn": ("group", ["algorithm.name=fedavg"]),
    "fixbn": ("batch", ["algorithm.name=fixbn", "algorithm.switch=1"]),
    "fedtan": ("batch", ["algorithm.name=fedtan"]),
}


def config(name, across, *settings, momentum=BETA, rounds=STEPS):
    """FixBN has one round more, before BN is frozen: it cannot begin with a frozen layer."""
    return by_hand.config(
        *NORMALISATIONS[name][1],
        f"train.momentum={momentum}",
        f"train.momentum_across_rounds={across}",
        *settings,
        rounds=rounds + (name == "fixbn"),
    )


def centralised(job, name, momentum):
    """Torch's own SGD on the union of the batches."""
    model = copy.deepcopy(job.model).train()
    if name != "fixbn":
        optimiser, rounds = by_hand.sgd(model, momentum), range(STEPS)
    else:
        buffers = by_hand.fedavg_round(model, job, 0, momentum=momentum)
        average = by_hand.mean(by_hand.shares(job), buffers) if momentum else None
        optimiser, rounds = by_hand.sgd(model.eval(), momentum, average), range(1, 1 + STEPS)
    by_hand.union_steps(model, optimiser, job, rounds)
    return model


KEPT, MODELS = dict.fromkeys(["local", "global"], ()), dict.fromkeys(["mlp", "cnn"], ())


@pytest.mark.parametrize(
    ("name", "across", "model"), grid(dict.fromkeys(NORMALISATIONS, ()), KEPT, MODELS)
)
def test_maintained_momentum_is_centralised_momentum(name, across, model):
    """20 rounds of one step by unequal clients move all weights as 20 centralised steps do."""
    job = by_hand.task(model, NORMALISATIONS[name][0])
    result = securefl.run(config(name, across), job)
    assert by_hand.largest_difference(result.model, centralised(job, name, BETA)) < 1e-12


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_reset_momentum_is_plain_sgd_at_one_local_step(name):
    """A buffer that begins empty each round makes the first step SGD's: β changes no bit."""
    job = by_hand.task("mlp", NORMALISATIONS[name][0])
    reset = securefl.run(config(name, "reset"), job)
    plain = securefl.run(config(name, "reset", momentum=0.0), job)
    assert by_hand.largest_difference(reset.model, plain.model) == 0
    assert by_hand.largest_difference(reset.model, centralised(job, name, 0.0)) < 1e-12
    assert by_hand.largest_difference(reset.model, centralised(job, name, BETA)) > 1e-3


def test_with_more_local_steps_each_way_follows_its_loop_by_hand():
    """Local: each client goes on with its own buffers; global: with the weighted mean of all."""
    job = by_hand.task("mlp", "group")
    models = {}
    for across in ("reset", "local", "global"):
        settings = config("gn", across, "algorithm.local_steps=3", rounds=5)
        models[across] = securefl.run(settings, job).model
        expected, buffers = copy.deepcopy(job.model), None
        for done in range(5):
            found = by_hand.fedavg_round(
                expected, job, done, momentum=BETA, kept=buffers, n_steps=3
            )
            average = by_hand.mean(by_hand.shares(job), found)
            buffers = {"reset": None, "local": found, "global": [average] * len(found)}[across]
        assert by_hand.largest_difference(models[across], expected) < 1e-12
    assert by_hand.largest_difference(models["local"], models["global"]) > 1e-4
    assert by_hand.largest_difference(models["reset"], models["global"]) > 1e-4


def test_the_global_buffer_is_the_weighted_mean_of_the_clients(tmp_path):
    """The state holds it, bit for bit as many values as the parameters; clients keep none."""
    job = by_hand.task("mlp", "group")
    securefl.run(config("gn", "global", rounds=2), job, out=tmp_path / "run")
    found = load_file(tmp_path / "run" / "checkpoint.safetensors")
    model, buffers = copy.deepcopy(job.model), None
    for done in range(2):
        all_buffers = by_hand.fedavg_round(model, job, done, momentum=BETA, kept=buffers)
        average = by_hand.mean(by_hand.shares(job), all_buffers)
        buffers = [average] * len(all_buffers)
    for name, value in average.items():
        torch.testing.assert_close(found[f"state/momentum/{name}"], value, atol=1e-12, rtol=1e-12)
    assert not any(key.startswith("momentum/") for key in found)


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_global_momentum_doubles_the_traffic_of_the_parameters(name):
    """As many values of momentum as of parameters travel, up and down; local momentum is free."""
    job = by_hand.task("mlp", NORMALISATIONS[name][0])
    n = sum(p.numel() for p in job.model.parameters())
    both, local = (securefl.run(config(name, a, rounds=3), job) for a in ("global", "local"))
    for round_number in (1, 2, 3):
        assert by_hand.sent_values(both, "parameters", round_number) == ({n}, {n})
        assert by_hand.sent_values(both, "momentum", round_number) == ({n}, {n})
        assert by_hand.sent_values(local, "momentum", round_number) == (set(), set())
    extra = both.ledger.paper_megabytes(2) - local.ledger.paper_megabytes(2)
    assert extra == pytest.approx((len(job.clients) + 1) * n * 4 / 2**20)


@pytest.mark.parametrize("name", NORMALISATIONS)
def test_encrypted_global_momentum_is_the_plain_one(name):
    """With all that clients send as ciphertext, 8 steps end within 1e-4."""
    job = by_hand.task("mlp", NORMALISATIONS[name][0])
    sealed = securefl.run(config(name, "global", "exchange.encrypt=model", rounds=8), job)
    plain = securefl.run(config(name, "global", rounds=8), job)
    assert 0 < by_hand.largest_difference(sealed.model, plain.model) < 1e-4
    forms = {e.form for e in sealed.ledger.entries if e.name == "update/momentum" and e.exchange}
    assert "ciphertext" in forms
    assert "momentum" not in sealed.ledger.server_reads()


@pytest.mark.parametrize("across", ["local", "global"])
@pytest.mark.parametrize("stop", [1, 3])
def test_momentum_survives_an_interruption(tmp_path, across, stop):
    """Resumed, a run ends bit for bit as it would have; FixBN's switch lies in between."""
    job = by_hand.task("mlp")
    settings = config("fixbn", across, "algorithm.switch=2", "algorithm.local_steps=2", rounds=4)
    whole = securefl.run(settings, job)

    class StopError(Exception):
        """Stands for a crash."""

    def on_round(metrics):
        if metrics.round == stop:
            raise StopError

    with pytest.raises(StopError):
        securefl.run(settings, job, out=tmp_path / "run", on_round=on_round)
    resumed = securefl.resume(tmp_path / "run", job)
    assert by_hand.largest_difference(resumed.model, whole.model) == 0


ON_DIGITS = {"gn": ["model.norm=group", "algorithm.name=fedavg"]} | {
    name: [f"algorithm.name={name}"] for name in ("fixbn", "fedtan")
}


@pytest.mark.slow
@pytest.mark.parametrize("n_seeds", [1, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", ON_DIGITS)
def test_maintained_momentum_gains_two_points_on_digits(name, n_seeds):
    """One local step, 200 rounds, β = 0.9, two classes a client: as the paper's Figure 5 at E = 1.

    At one step both ways of keeping it are one (above), up to rounding.
    """

    def accuracy(across, seed):
        settings = [
            *ON_DIGITS[name],
            f"run.seed={seed}",
            "algorithm.local_steps=1",
            "train.lr=0.05",
            f"train.momentum={BETA}",
            f"train.momentum_across_rounds={across}",
            "exchange.encrypt=none",
        ]
        return securefl.run(securefl.load_config(None, settings)).accuracy

    gains = [accuracy("global", seed) - accuracy("reset", seed) for seed in range(n_seeds)]
    assert sum(gains) / n_seeds >= 0.02
