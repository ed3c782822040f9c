"""Ditto against a loop written by hand, and where clients' own models end on quadratics."""

from __future__ import annotations

import copy
from collections import Counter
from statistics import fmean

import by_hand
import pytest
import quadratic
import torch
from quadratic import IDENTITY
from torch.nn import functional

import securefl
from securefl.errors import ConfigError
from securefl.report.protection import protections
from securefl.runs.checkpoint import Checkpoint

pytestmark = pytest.mark.usefixtures("quick")

ROUNDS, E, LAMBDA = 5, 3, 0.7
SOME = ("selection.name=random", "selection.fraction=0.5")


def config(*settings, rounds=ROUNDS):
    return by_hand.config(
        "algorithm.name=fedavg",
        "solver.name=ditto",
        f"solver.pull={LAMBDA}",
        f"algorithm.local_steps={E}",
        "algorithm.weights=samples",
        *settings,
        rounds=rounds,
    )


def step(model, moving, x, y, towards, momentum):
    """One step of SGD on F_k + λ/2 ‖v - w̄‖², of momentum by hand."""
    parameters = dict(model.named_parameters())
    loss = functional.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    with torch.no_grad():
        for (name, p), g in zip(parameters.items(), gradients, strict=True):
            pulled = LAMBDA * (p - towards[name]) if name in towards else 0
            moving[name] = momentum * moving.get(name, 0) + g + pulled + by_hand.DECAY * p
            p.sub_(by_hand.LR * moving[name])


def ditto(job, present, momentum, kept=()):
    """The global model, and each client's v_k; `kept` stays at the clients, and is not pulled."""
    model, own, local_parts = copy.deepcopy(job.model), {}, {}
    for done, numbers in enumerate(present):
        start = {n: p.detach().clone() for n, p in model.named_parameters() if n not in kept}
        ends = []
        for i in numbers:
            w = copy.deepcopy(model)
            w.load_state_dict(local_parts.get(i, {}), strict=False)
            v = own.setdefault(i, copy.deepcopy(w))
            moving_w, moving_v = {}, {}
            for x, y in by_hand.batches(job, done, i, E):
                step(w.train(), moving_w, x, y, {}, momentum)
                step(v.train(), moving_v, x, y, start, momentum)
            ends.append(by_hand.averaged(w))
            local_parts[i] = {name: ends[-1][name] for name in kept}
        sizes = [len(job.clients[i][1]) for i in numbers]
        mean = by_hand.mean([n / sum(sizes) for n in sizes], ends)
        model.load_state_dict({n: v for n, v in mean.items() if n not in kept}, strict=False)
    return model, own


@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("some", [(), SOME], ids=["all", "half"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedbn"])
def test_ditto_is_the_loop_by_hand(tmp_path, algorithm, some, momentum):
    """Five rounds of three steps of clients of unequal size, of all or of a random half."""
    job = by_hand.task("mlp")
    settings = [*some, f"train.momentum={momentum}", f"algorithm.name={algorithm}"]
    result = securefl.run(config(*settings), job, out=tmp_path / "run")
    present = [
        [int(name.rpartition("-")[2]) - 1 for name in each.selected] for each in result.participants
    ]
    assert [len(of) for of in present] == [2 if some else 4] * ROUNDS
    kept = ("1.weight", "1.bias", "1.running_mean", "1.running_var")
    expected, own = ditto(job, present, momentum, kept if algorithm == "fedbn" else ())
    assert by_hand.largest_difference(result.model, expected) < 1e-12
    client_states = Checkpoint.read(tmp_path / "run" / "checkpoint.safetensors").client_states
    for i, v in own.items():
        found = client_states[f"client-{i + 1}"].personal
        for name, value in by_hand.averaged(v).items():
            torch.testing.assert_close(found[name], value, atol=1e-12, rtol=1e-11)
    x, y = job.test
    models = [own.get(i, expected) for i in range(len(job.clients))]
    scores = [float((m.eval()(x).argmax(1) == y).double().mean()) for m in models]
    assert result.accuracy == pytest.approx(fmean(scores))


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbn", "fixbn", "fedtan", "static-bn"])
def test_the_shared_model_and_what_travels_are_what_they_are_without_it(algorithm):
    """Bit for bit, and message for message: clients' own models change nothing of it."""
    settings = [f"algorithm.name={algorithm}", "run.engine=sequential", "train.momentum=0.5"]
    found = securefl.run(config(*settings), by_hand.task("mlp"))
    plain = by_hand.config(
        f"algorithm.local_steps={E}", "algorithm.weights=samples", *settings, rounds=ROUNDS
    )
    without = securefl.run(plain, by_hand.task("mlp"))
    assert by_hand.largest_difference(found.model, without.model) == 0
    assert Counter(found.ledger.entries) == Counter(without.ledger.entries)


def test_without_a_pull_each_client_trains_its_own_model_alone():
    """Bit for bit as SingleNet's."""
    found = securefl.run(config("solver.pull=0.0"), by_hand.task("mlp"))
    alone = by_hand.config(
        "algorithm.name=singlenet",
        f"algorithm.local_steps={E}",
        "run.engine=sequential",
        rounds=ROUNDS,
    )
    single = securefl.run(alone, by_hand.task("mlp"))
    assert set(by_hand.own_differences(found, single)) == {0}


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("pull", [0.1, 2.0])
def test_on_quadratics_own_models_end_at_the_minimiser_of_their_regularised_loss(steps, pull):
    """v_k is least in f_k + λ/2 ‖v - w*‖², w* where FedAvg ends: at one step, the minimiser."""
    job, lr = quadratic.task(), 0.3
    settings = ["algorithm.name=fedavg", "solver.name=ditto", f"solver.pull={pull}"]
    settings += ["train.batch_size=32", "train.lr_drops=[]", "exchange.encrypt=none"]
    settings += [f"run.rounds={400 // steps}", f"algorithm.local_steps={steps}", f"train.lr={lr}"]
    result = securefl.run(securefl.load_config(None, settings), job)
    clients = list(quadratic.quadratics(job))
    w = quadratic.fedavg_fixed_point(clients, steps, lr)
    torch.testing.assert_close(result.model.weight.detach().T, w, atol=1e-8, rtol=0)
    for model, c in zip(result.client_models.values(), clients, strict=True):
        v = torch.linalg.solve(c.a + pull * IDENTITY, c.a @ c.b + pull * w)
        torch.testing.assert_close(model.weight.detach().T, v, atol=1e-8, rtol=0)
        assert min((v - w).abs().max(), (v - c.b).abs().max()) > 1e-3


def test_encrypted_it_ends_where_it_ends_in_the_clear():
    """In the shared model and in each client's own, to the rounding of what is sealed."""
    plain, sealed = (
        securefl.run(config(f"exchange.encrypt={part}"), by_hand.task("mlp"))
        for part in ("none", "model")
    )
    assert not sealed.ledger.server_reads()
    assert by_hand.largest_difference(plain.model, sealed.model) < 1e-6
    assert all(0 < apart < 1e-6 for apart in by_hand.own_differences(plain, sealed))


def test_over_workers_it_gives_the_same_bits():
    """Clients in two processes, or one after the other here."""
    one, other = (
        securefl.run(config("run.threads=1", f"run.engine={engine}"), by_hand.task("mlp"))
        for engine in ("sequential", "parallel")
    )
    assert by_hand.largest_difference(one.model, other.model) == 0
    assert set(by_hand.own_differences(one, other)) == {0}


def test_frozen_statistics_are_frozen_in_clients_own_models_too(tmp_path):
    """Under FixBN each keeps those that its own model had when BN was frozen."""
    at_switch, later = (
        securefl.run(config("algorithm.name=fixbn", "algorithm.switch=2", rounds=n), job)
        for job, n in ((by_hand.task("mlp"), 2 + 1), (by_hand.task("mlp"), 5))
    )
    for name, model in at_switch.client_models.items():
        after = later.client_models[name]
        assert torch.equal(model[1].running_mean, after[1].running_mean)
        assert torch.equal(model[1].running_var, after[1].running_var)
        assert not torch.equal(model[0].weight, after[0].weight)


def test_noise_on_clients_does_not_reach_their_own_models_and_the_page_says_so():
    """At client level the shared update alone is noised; scores of own models are not."""
    noisy = ["algorithm.name=fedavg", "privacy.level=client", "algorithm.weights=uniform"]
    own, without = (
        {
            row.cells[0]: row.cells[1]
            for row in protections(by_hand.config(*noisy, solver, rounds=1))
        }
        for solver in ("solver.name=ditto", "solver.name=sgd")
    )
    assert own["accuracy and loss of clients' own models"] == "none"
    assert own.keys() - without.keys() == {"accuracy and loss of clients' own models"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["algorithm.name=singlenet"], "no global model for a federated solver"),
        (
            ["privacy.level=record", "privacy.records=50", "algorithm.weights=uniform"],
            "own model takes a gradient of its own, which DP-SGD does not clip; take another",
        ),
        (["run.engine=vectorised"], 'does not treat each element .* use "sequential", or "auto"'),
    ],
)
def test_where_it_has_no_meaning_it_is_refused(settings, message):
    """The message says why, and the way out."""
    with pytest.raises(ConfigError, match=message):
        securefl.run(config(*settings), by_hand.task("mlp"))
