"""Client-specific BN and static BN against a loop over clients written out by hand, in float64."""

from __future__ import annotations

import copy
import json
from statistics import fmean

import by_hand
import pytest
import torch
from torch import nn
from torch.nn import functional

import securefl
from securefl.runs.checkpoint import Checkpoint

pytestmark = pytest.mark.usefixtures("quick")

ROUNDS, E = 4, 3
GAMMA_BETA = ("1.weight", "1.bias")
STATISTICS = ("1.running_mean", "1.running_var")
KEPT = {
    "fedbn": GAMMA_BETA + STATISTICS,
    "silobn": STATISTICS,
    "local-affine": GAMMA_BETA,
    "singlenet": ("0.weight", "0.bias", "3.weight", "3.bias", *GAMMA_BETA, *STATISTICS),
}


def config(name, *settings, rounds=ROUNDS):
    return by_hand.config(
        f"algorithm.name={name}",
        f"algorithm.local_steps={E}",
        "train.momentum=0.8",
        "train.momentum_across_rounds=local",
        *settings,
        rounds=rounds,
    )


def reference(job, kept):
    """The global model and each client's own tensors after all rounds."""
    model, buffers = copy.deepcopy(job.model), None
    start = by_hand.averaged(model)
    own = [{name: start[name] for name in kept} for _ in job.clients]
    for done in range(ROUNDS):
        buffers = by_hand.fedavg_round(
            model, job, done, momentum=0.8, kept=buffers, n_steps=E, own=own
        )
    return model, own


def accuracies(model, own, tests):
    """Of each client's model on its test data."""
    found = []
    for tensors, (x, y) in zip(own, tests, strict=True):
        local = copy.deepcopy(model)
        local.load_state_dict(tensors, strict=False)
        found.append(float((local.eval()(x).argmax(1) == y).double().mean()))
    return found


@pytest.mark.parametrize("name", KEPT)
def test_what_a_client_keeps_is_its_own_and_the_rest_is_averaged(tmp_path, name):
    """Four rounds of three steps equal the loop by hand, in the global model and at each client."""
    job = by_hand.task("mlp")
    result = securefl.run(config(name), job, out=tmp_path / "run")
    expected, own = reference(job, KEPT[name])
    assert by_hand.largest_difference(result.model, expected) < 1e-12
    found = Checkpoint.read(tmp_path / "run" / "checkpoint.safetensors")
    for i, tensors in enumerate(own, 1):
        client_state = found.client_states[f"client-{i}"]
        assert client_state.own.keys() == set(KEPT[name])
        for key, value in tensors.items():
            torch.testing.assert_close(client_state.own[key], value, atol=1e-12, rtol=1e-12)
    for key in KEPT[name]:  # clients are not alike, and the global tensor is the first model's
        if key != "0.bias":  # which the BN behind it takes out again
            assert float((own[0][key] - own[1][key]).abs().max()) > 1e-3
        assert torch.equal(result.model.state_dict()[key], job.model.state_dict()[key])


@pytest.mark.parametrize("name", KEPT)
def test_the_accuracy_is_the_mean_over_clients_of_their_own_models(name):
    """On the whole test set; and on each client's own test data where it has some."""
    job = by_hand.task("mlp")
    model, own = reference(job, KEPT[name])
    own_accuracies = accuracies(model, own, [job.test] * len(own))
    assert securefl.run(config(name), job).accuracy == pytest.approx(fmean(own_accuracies))
    tests = [(x[: 7 + i], y[: 7 + i]) for i, (x, y) in enumerate([job.test] * len(own))]
    other = by_hand.task("mlp", client_tests=tests)
    expected = fmean(accuracies(model, own, tests))
    assert securefl.run(config(name), other).accuracy == pytest.approx(expected)


def test_clients_test_data_count_where_the_model_is_common_too():
    """The global model's mean over the clients' own test data."""
    job = by_hand.task("mlp")
    tests = [(x[i : 9 + 2 * i], y[i : 9 + 2 * i]) for i, (x, y) in enumerate([job.test] * 4)]
    result = securefl.run(config("fedavg"), by_hand.task("mlp", client_tests=tests))
    expected = fmean(accuracies(result.model, [{}] * 4, tests))
    assert result.accuracy == pytest.approx(expected)


@pytest.mark.parametrize("name", KEPT)
def test_what_stays_never_travels(name):
    """Not up in any round, nor down after the first model; all else does."""
    job = by_hand.task("mlp")
    n = {key: value.numel() for key, value in by_hand.averaged(job.model).items()}
    result = securefl.run(config(name), job)
    for kind in ("parameters", "statistics"):
        of_kind = {key for key in n if ("running" in key) == (kind == "statistics")}
        everything = {sum(n[key] for key in of_kind)}
        travelling = {sum(n[key] for key in of_kind - set(KEPT[name]))} - {0}
        for round_number in range(1, ROUNDS + 1):
            up, down = by_hand.sent_values(result, kind, round_number)
            assert up == travelling
            assert down == (everything if round_number == 1 else travelling)


@pytest.mark.parametrize("name", [*KEPT, "static-bn"])
def test_a_resumed_run_has_each_clients_own_tensors_again(tmp_path, name):
    """Model, accuracies and checkpoint end bit for bit as without the interruption."""
    job = by_hand.task("mlp")

    class StopError(Exception):
        """Stands for a crash."""

    def on_round(metrics):
        if metrics.round == 2:
            raise StopError

    securefl.run(config(name), job, out=tmp_path / "whole")
    with pytest.raises(StopError):
        securefl.run(config(name), job, out=tmp_path / "halves", on_round=on_round)
    securefl.resume(tmp_path / "halves", job)
    for file in ("model.safetensors", "checkpoint.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "halves" / file).read_bytes()
    rows = [
        (tmp_path / run / "metrics.jsonl").read_text().splitlines() for run in ("whole", "halves")
    ]
    scores = [[(row["accuracy"], row["loss"]) for row in map(json.loads, lines)] for lines in rows]
    assert scores[0] == scores[1]
    assert len(scores[0]) == ROUNDS


def two_layers(job):
    """A job whose model has a BN layer behind a BN layer."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(12, 5), nn.BatchNorm1d(5), nn.ReLU()]
        layers += [nn.Linear(5, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4)]
    return securefl.Task(nn.Sequential(*layers).double(), job.clients, job.test)


def static_forward(w, x):
    """Scores, and (mean, unbiased variance) of both BN layers, each batch normalised by itself."""
    found = []
    for linear, norm in ((0, 1), (3, 4)):
        z = x @ w[f"{linear}.weight"].T + w[f"{linear}.bias"]
        mu, var = z.mean(0), z.var(0, correction=0)
        found.append((mu.detach(), var.detach() * len(z) / (len(z) - 1)))
        y = (z - mu) / (var + 1e-5).sqrt()
        x = torch.relu(y * w[f"{norm}.weight"] + w[f"{norm}.bias"])
    return x @ w["6.weight"].T + w["6.bias"], found


def test_static_bn_measures_the_global_models_statistics_over_all_of_a_clients_data():
    """HeteroFL: training by batch statistics alone; S is the mean over batches, then clients."""
    job = two_layers(by_hand.task("mlp", sizes=(25, 9, 40)))
    settings = ["train.momentum=0", "train.momentum_across_rounds=reset"]
    result = securefl.run(config("static-bn", *settings, rounds=3), job)
    shares = by_hand.shares(job)
    w = {name: p.detach().clone() for name, p in job.model.named_parameters()}
    for done in range(3):
        clients, measured = [], []
        for i, (_, labels) in enumerate(job.clients):
            n_batches = len(labels) // min(by_hand.BATCH, len(labels))
            drawn = by_hand.batches(job, done, i, n_batches + E)
            batches = [static_forward(w, x)[1] for x, _ in drawn[:n_batches]]
            measured.append(
                {
                    f"{layer}.{what}": sum(batch[k][j] for batch in batches) / n_batches
                    for k, layer in enumerate((1, 4))
                    for j, what in enumerate(("running_mean", "running_var"))
                }
            )
            local = {name: p.clone().requires_grad_() for name, p in w.items()}
            for x, y in drawn[n_batches:]:
                loss = functional.cross_entropy(static_forward(local, x)[0], y)
                gradients = torch.autograd.grad(loss, list(local.values()))
                local = {
                    name: (p - by_hand.LR * (g + by_hand.DECAY * p)).detach().requires_grad_()
                    for (name, p), g in zip(local.items(), gradients, strict=True)
                }
            clients.append({name: p.detach() for name, p in local.items()})
        w, statistics = by_hand.mean(shares, clients), by_hand.mean(shares, measured)
    found = by_hand.averaged(result.model)
    assert found.keys() == w.keys() | statistics.keys()
    for name, value in (w | statistics).items():
        torch.testing.assert_close(found[name], value, atol=1e-12, rtol=1e-12)
