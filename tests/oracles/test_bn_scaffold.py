"""BN-SCAFFOLD against its equations written out in plain torch, and against its fixed point."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from by_hand import BATCH, batches, config
from fnr_by_hand import public
from hypothesis import given
from hypothesis import strategies as st
from played import place, played
from torch import nn
from two_bn_layers import (
    HALF,
    WHO,
    by_layer,
    close,
    largest,
    parameters_of,
    statistics_of,
    step,
    task,
    union,
)

import securefl
from securefl.algorithms.normalisation.policy import START
from securefl.audit import targets
from securefl.errors import ConfigError, DataError
from securefl.norms.corrected import corrected_batch_norm, corrected_variance
from securefl.types import Kind

pytestmark = pytest.mark.usefixtures("quick")

NAME = "algorithm.name=bn-scaffold"
STEPS = 2
SOLVERS = {"sgd": (), "scaffold": ("solver.name=scaffold",)}


def shares(sizes):
    """p_k among all clients, by their batches."""
    taken = [min(size, BATCH) for size in sizes]
    return {f"client-{i}": size / sum(taken) for i, size in enumerate(taken, 1)}


def corrected(s, own, seen):
    """Moments by which a client normalises; it notes the batch's."""

    def moments(name, mu, var):
        (s_mu, s_var), (own_mu, own_var) = s[name], own[name]
        mean = mu + s_mu - own_mu
        about_mean = var + (mu - mean).detach() ** 2
        seen.append((name, mu.detach(), about_mean.detach()))
        by_difference = about_mean + s_var - own_var
        by_ratio = about_mean * torch.minimum(s_var / own_var, torch.ones_like(s_var))
        return mean, torch.where(by_difference > by_ratio / 2, by_difference, by_ratio / 2)

    return moments


def local(model, data, s, own, correction):
    """Parameters, s_batch and gradient of a client's round, each but the first as a mean."""
    model, seen, gradients = copy.deepcopy(model), [], []

    def noted(name, gradient):
        gradients.append((name, gradient.clone()))
        return gradient + correction[name]

    for batch in data:
        step(model, batch, corrected(s, own, seen), noted)
    return (
        parameters_of(model),
        {n: tuple(sum(x) / len(data) for x in zip(*_of(seen, n), strict=True)) for n in s},
        {n: sum(g for name, g in gradients if name == n) / len(data) for n in correction},
    )


def _of(seen, wanted):
    return [(mu, var) for name, mu, var in seen if name == wanted]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("who", WHO)
def test_every_round_is_the_equations(who, solver):
    """Model, S, S_k, c and c_i, of unequal clients, some of whom stay away."""
    sizes, some = WHO[who]
    job, p, full = task(sizes), shares(sizes), "full" in who
    settings = [NAME, *SOLVERS[solver], *some, f"algorithm.local_steps={STEPS}"]
    run = played(config(*settings, rounds=6), job)
    model, start, own = copy.deepcopy(job.model), statistics_of(job.model), {}
    s = start
    zero = {n: torch.zeros_like(w) for n, w in parameters_of(model).items()}
    c, c_own = zero, dict.fromkeys(p, zero)
    assert who == "two clients" or any(len(each.times) < len(sizes) for each in run.rounds)
    for done, each in enumerate(run.rounds):
        ends = {}
        for client in each.times:
            correction = zero
            if solver == "scaffold":
                correction = {n: c[n] - c_own[client][n] for n in c}
            data = batches(job, done, place(client), STEPS)
            ends[client] = local(model, data, s, own.get(client, s), correction)
        present = sum(p[client] for client in ends)
        share = len(ends) / len(sizes) if full else 1.0
        if ends:
            with torch.no_grad():
                for n, w in model.named_parameters():
                    mean = sum(p[k] * end[0][n] for k, end in ends.items()) / present
                    w.copy_((1 - share) * w + share * mean)
        for client, (_, new, gradient) in ends.items():
            last = own.get(client, start)
            own[client] = new
            s = {
                n: tuple(
                    x + p[client] * (a - b) for x, a, b in zip(s[n], new[n], last[n], strict=True)
                )
                for n in s
            }
            c = {n: c[n] + p[client] * (gradient[n] - c_own[client][n]) for n in c}
            c_own[client] = gradient
        close(each.after.tensors[Kind.PARAMETERS], parameters_of(model))
        assert largest(by_layer(each.after.tensors[Kind.STATISTICS], model), s) < 1e-12
        for client, of in own.items():
            assert largest(by_layer(each.kept_after[client].policy, model), of) < 1e-12
        if solver == "scaffold":
            close(each.after.tensors[Kind.CONTROL], c)


REFINED = ("fnr.name=matched", "fnr.share=0.3", "fnr.strength=0.5", "fnr.epochs=2")


@pytest.mark.parametrize(
    "beside",
    [
        HALF,
        (*HALF, "selection.aggregation=full", "algorithm.weights=uniform"),
        ("devices.dropout=0.4",),
        (*HALF, "server.name=fedadam", "server.lr=0.01"),
        ("selection.name=random", "selection.fraction=0.8", *REFINED),
        (*HALF, "fnr.name=server"),
        (*HALF, "solver.name=moon"),
    ],
    ids=lambda beside: beside[-1],
)
def test_s_stays_the_mean_of_all_clients_s_k(beside):
    """Σ p_k S_k, of those that stay away too; those that were never there have what it began as.

    Whatever else a round does: refinements train no control variate.
    """
    sizes = (5, 9, 14, 8, 11, 7)
    samples = public().samples
    data = samples.take(torch.arange(len(samples)))
    job = task(sizes, public=data) if "fnr.name" in " ".join(beside) else task(sizes)
    run = played(config(NAME, *beside, f"algorithm.local_steps={STEPS}", rounds=5), job)
    start = run.rounds[0].before.tensors[Kind.STATISTICS]
    p = shares(sizes)
    if "algorithm.weights=uniform" in beside:
        p = dict.fromkeys(p, 1 / len(p))
    moved = 0.0
    for each in run.rounds:
        named = each.after.tensors[Kind.STATISTICS]
        kept = {k: client_state.policy for k, client_state in each.kept_after.items()}
        for name in [n for n in named if "running" in n and not n.startswith(START)]:
            wanted = sum(p[k] * kept.get(k, {}).get(name, start[name]) for k in p)
            close({name: named[name]}, {name: wanted})
            moved += float((named[name] - start[name]).abs().max())
    assert moved > 0


STILL = ("train.lr=1e-30", "train.weight_decay=0.0", "train.batch_size=64")


@pytest.mark.parametrize("sizes", [pytest.param((5, 9), marks=pytest.mark.full), (5, 9, 14, 8)])
def test_of_full_batches_s_is_that_of_the_union_after_two_rounds_a_layer(sizes):
    """A model that stands still: then (μ, σ²) are exact layer by layer, and not a round before.

    Without the clients' different means in σ², it would be too small for ever.
    """
    job = task(sizes)
    run = played(config(NAME, *STILL, "algorithm.weights=samples", rounds=6), job)
    wanted = union(job.model, job.clients)
    apart = [
        largest(by_layer(each.after.tensors[Kind.STATISTICS], job.model), wanted)
        for each in run.rounds
    ]
    assert min(apart[:3]) > 1e-3
    assert max(apart[3:]) < 1e-12
    fedavg = played(
        config("algorithm.name=fedavg", *STILL, "algorithm.weights=samples", rounds=200), job
    ).rounds[-1]
    assert largest(by_layer(fedavg.after.tensors[Kind.STATISTICS], job.model), wanted) > 0.1


def test_a_random_half_ends_at_the_statistics_of_the_union():
    """Once all have been there often enough, whoever stays away."""
    job = task((5, 9, 14, 8, 11, 7))
    run = played(config(NAME, *STILL, *HALF, "algorithm.weights=samples", rounds=40), job)
    wanted = union(job.model, job.clients)
    for each in run.rounds[-5:]:
        assert largest(by_layer(each.after.tensors[Kind.STATISTICS], job.model), wanted) < 1e-11


def test_clients_of_the_same_data_train_as_under_fedavg():
    """S_k = S, so nothing is corrected: the same parameters, and S is the batch's own."""
    job = task((9,))
    job.clients.extend(copy.deepcopy(job.clients[0]) for _ in range(2))
    same = ("train.batch_size=64", "algorithm.local_steps=3")
    one, other = (
        played(config(name, *same, rounds=4), job) for name in (NAME, "algorithm.name=fedavg")
    )
    for mine, theirs in zip(one.rounds, other.rounds, strict=True):
        close(mine.after.tensors[Kind.PARAMETERS], theirs.after.tensors[Kind.PARAMETERS], 1e-10)
    for client_state in one.rounds[-1].kept_after.values():
        s = one.rounds[-1].after.tensors[Kind.STATISTICS]
        close(client_state.policy, {name: s[name] for name in client_state.policy})


positive = st.floats(1e-6, 1e6)


@given(positive, positive, positive)
def test_a_corrected_variance_is_positive_and_exact_where_the_batch_is_as_the_last(v, own, of_all):
    """It is the difference's estimate where that is larger than half of the ratio's."""
    v, own, of_all = (torch.tensor([x], dtype=torch.float64) for x in (v, own, of_all))
    found = corrected_variance(v, own, of_all)
    assert float(found) > 0
    assert float(found) >= float(v + (of_all - own))
    assert torch.equal(corrected_variance(own, own, of_all), own + (of_all - own))


@pytest.mark.parametrize("v", [0.0, 1.0])
def test_channels_that_were_dead_have_finite_variances(v):
    """0 where all is 0, and half of the batch's where it has come to life."""
    v, zero = torch.tensor([v]), torch.zeros(1)
    assert torch.equal(corrected_variance(v, zero, zero), v)
    assert torch.equal(corrected_variance(v, zero, torch.ones(1)), v + 1)


def test_a_batch_far_below_its_clients_variance_has_a_finite_gradient():
    """S - S_k is below minus the batch's own variance: half of the ratio normalises."""
    model = nn.Sequential(nn.BatchNorm1d(3)).double()
    x = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    zero, one = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    var = ((x.detach() - x.detach().mean(0)) ** 2).mean(0)
    with corrected_batch_norm(model, {"0": (zero, 100 * one)}, {"0": (zero, 50 * one)}):
        y = model(x)
    wanted = (x - x.mean(0)).detach() / (var * 0.25 + 1e-5).sqrt()
    close({"y": y.detach()}, {"y": wanted})
    y.square().sum().backward()
    assert x.grad.isfinite().all()
    assert torch.equal(model[0].running_mean, zero)
    assert torch.equal(model[0].running_var, one)


@pytest.mark.parametrize("encrypt", ["statistics", "model"])
@pytest.mark.parametrize("some", [(), HALF], ids=["all", "half"])
def test_sealed_it_is_as_in_the_clear(encrypt, some, key_set):
    """To the rounding, in one message of statistics a round, which the server cannot read."""
    settings = [NAME, *some, f"algorithm.local_steps={STEPS}"]
    job = task((5, 9, 14, 8, 11, 7))
    plain = played(config(*settings, rounds=4), job)
    sealed = played(config(*settings, f"exchange.encrypt={encrypt}", rounds=4), job, key_set)
    assert not sealed.result.incidents
    for kind in (Kind.PARAMETERS, Kind.STATISTICS):
        one, other = (run.rounds[-1].after.tensors[kind] for run in (plain, sealed))
        assert one.keys() == other.keys()
        close(one, other, 1e-5)
    entries = [e for e in sealed.result.ledger.entries if e.kind is Kind.STATISTICS]
    sent = [e for e in entries if e.receiver == "server" and e.sender.startswith("client")]
    assert {e.name for e in sent} == {"update/statistics"}
    assert {e.n_values for e in sent} == {2 * (5 + 4)}
    assert all(e.form != "plaintext" for e in sent)


def test_a_resumed_run_ends_as_a_whole_one(tmp_path):
    """To the bit, with each client's S_k and what S began as."""
    settings = config(NAME, *HALF, "solver.name=scaffold", rounds=5)
    job = task((5, 9, 14, 8, 11, 7))
    whole = securefl.run(settings, job).model.state_dict()

    class StopError(Exception):
        """Stands for a crash."""

    def on_round(metrics):
        if metrics.round == 3:
            raise StopError

    with pytest.raises(StopError):
        securefl.run(settings, job, out=tmp_path / "run", on_round=on_round)
    resumed = securefl.resume(tmp_path / "run", job).model.state_dict()
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())


def test_a_clients_model_has_the_rounds_statistics_for_who_reads_its_updates(monkeypatch):
    """What it sends, S + S_k⁺ - S_k, is no variance: it may be below zero."""
    seen = []
    monkeypatch.setattr(targets, "confidences", lambda model, *_: seen.append(noted(model)) or 0)
    job = task((5, 9))
    settings = config(NAME, rounds=1)
    before, after = (
        {n: v + i for n, v in job.model.state_dict().items() if v.is_floating_point()}
        for i in (0, 1)
    )
    sent = {n: v - 100 for n, v in before.items()}
    trained = SimpleNamespace(model=job.model, task=job)
    updates = [{"client-1": sent, "client-2": sent}]
    targets.observed(settings, trained, [before, after], updates, None)
    of_client = seen[0]
    for name, value in of_client.items():
        wanted = after if "running" in name else sent
        assert torch.equal(value, wanted[name])


def noted(model):
    return {n: v.clone() for n, v in model.state_dict().items() if v.is_floating_point()}


def test_nobody_counts_twice():
    """It would move its own S_k once and S twice."""
    with pytest.raises(ConfigError, match=r"algorithm\.name = \"bn-scaffold\".*replacement"):
        config(NAME, *HALF, "selection.replacement=with", rounds=2)


def test_layers_without_running_statistics_are_refused():
    """There would be no S."""
    model = nn.Sequential(
        nn.Linear(12, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 4)
    )
    job = task((5, 9))
    with pytest.raises(DataError, match="track_running_stats=True"):
        securefl.run(config(NAME, rounds=1), securefl.Task(model.double(), job.clients, job.test))
