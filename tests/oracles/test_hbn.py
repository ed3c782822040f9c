"""HBN against its equations written out in plain torch, and against what its statistics are."""

from __future__ import annotations

import copy

import pytest
import torch
from by_hand import BATCH, batches, config
from fnr_by_hand import public
from played import place, played
from torch import nn
from two_bn_layers import (
    EPS,
    HALF,
    WHO,
    by_layer,
    close,
    largest,
    norms,
    parameters_of,
    statistics_of,
    step,
    task,
)

import securefl
from securefl.audit.targets import inversion_target
from securefl.errors import ConfigError, DataError
from securefl.norms.mixed import FACTOR
from securefl.types import Kind

pytestmark = pytest.mark.usefixtures("quick")

NAME = "algorithm.name=hbn"
STEPS = 2


def weights_of(sizes):
    """Numbers that p_k are the shares of: sizes of batches."""
    return {f"client-{i}": min(size, BATCH) for i, size in enumerate(sizes, 1)}


def measured(model, s, clients):
    """Moments of the clients' samples at each layer, those below at rest with `s`.

    Args:
        model: the global one.
        s: (μ, σ²) by layer.
        clients: (p_k, x) of each; p_k add up to one.
    """
    found, inputs = {}, [x for _, x in clients]
    p = [share for share, _ in clients]
    with torch.no_grad():
        for name, layer in model.named_children():
            if isinstance(layer, nn.BatchNorm1d):
                mu = sum(w * x.mean(0) for w, x in zip(p, inputs, strict=True))
                var = sum(w * ((x - mu) ** 2).mean(0) for w, x in zip(p, inputs, strict=True))
                found[name] = mu, var
                mean, variance = s[name]
                scale = layer.weight / (variance + EPS).sqrt()
                inputs = [(x - mean) * scale + layer.bias for x in inputs]
            else:
                inputs = [layer(x) for x in inputs]
    return found


def mixed(s, factors):
    """Moments by which a client normalises."""

    def moments(name, mu, var):
        a = 1 / (1 + torch.exp(-factors[name]))
        return (1 - a) * s[name][0] + a * mu, (1 - a) * s[name][1] + a * var

    return moments


def trained(model, data, s, factors):
    """Parameters and factors after a client's local steps."""
    model = copy.deepcopy(model)
    factors = {n: f.clone().requires_grad_() for n, f in factors.items()}
    for batch in data:
        step(model, batch, mixed(s, factors), others=factors.values())
    return parameters_of(model), {n: f.detach() for n, f in factors.items()}


@pytest.mark.parametrize("who", WHO)
def test_every_round_is_the_equations(who):
    """Model, global statistics and each client's factors, of unequal clients that stay away."""
    sizes, some = WHO[who]
    job, weights, full = task(sizes), weights_of(sizes), "full" in who
    run = played(config(NAME, *some, f"algorithm.local_steps={STEPS}", rounds=5), job)
    model, s, kept = copy.deepcopy(job.model), statistics_of(job.model), {}
    nothing = {n: torch.zeros_like(layer.bias.detach()) for n, layer in norms(model).items()}
    assert who == "two clients" or any(len(each.times) < len(sizes) for each in run.rounds)
    for done, each in enumerate(run.rounds):
        p = {k: weights[k] / sum(weights[c] for c in each.times) for k in each.times}
        if not p:
            continue
        now = measured(model, s, [(p[k], job.clients[place(k)][0]) for k in p])
        ends = {}
        for k in p:
            data = batches(job, done, place(k), STEPS)
            ends[k], kept[k] = trained(model, data, now, kept.get(k, nothing))
        share = len(p) / len(sizes) if full else 1.0
        with torch.no_grad():
            for n, w in model.named_parameters():
                w.copy_((1 - share) * w + share * sum(p[k] * end[n] for k, end in ends.items()))
        s = {
            n: tuple((1 - share) * a + share * b for a, b in zip(s[n], now[n], strict=True))
            for n in s
        }
        close(each.after.tensors[Kind.PARAMETERS], parameters_of(model))
        assert largest(by_layer(each.after.tensors[Kind.STATISTICS], model), s) < 1e-12
        for k, factors in kept.items():
            close(each.kept_after[k].policy, factors)
    assert any(float(f.abs().max()) > 1e-4 for of in kept.values() for f in of.values())


def union(job, statistics=None):
    """Moments of all samples; layers below at rest with these statistics, or with their own."""
    model = job.model
    x = torch.cat([x for x, _ in job.clients])
    if statistics:
        return measured(model, statistics, [(1.0, x)])
    found = statistics_of(model)
    for _ in norms(model):
        found = measured(model, found, [(1.0, x)])
    return found


STILL = ("train.lr=1e-30", "train.weight_decay=0.0", "algorithm.weights=samples")


def test_statistics_of_a_model_that_stands_still_are_the_unions_after_a_round_a_layer():
    """Exactly, layer by layer, whatever the clients' batches and factors are."""
    job = task((5, 9, 14, 8))
    run = played(config(NAME, *STILL, "train.batch_size=3", rounds=4), job)
    found = [by_layer(each.after.tensors[Kind.STATISTICS], job.model) for each in run.rounds]
    assert largest(found[0], union(job, statistics_of(job.model))) < 1e-12
    assert largest(found[0], union(job)) > 1e-2
    assert max(largest(one, union(job)) for one in found[1:]) < 1e-12


def test_they_are_measured_on_the_rounds_first_model_however_far_clients_train():
    """So the last model is scored with statistics of the one before."""
    job = task((5, 9, 14, 8))
    run = played(
        config(NAME, "algorithm.local_steps=9", "algorithm.weights=samples", rounds=3), job
    )
    for each in run.rounds:
        model = copy.deepcopy(job.model)
        model.load_state_dict(dict(each.before.tensors[Kind.PARAMETERS]), strict=False)
        before, after = (
            by_layer(state.tensors[Kind.STATISTICS], model) for state in (each.before, each.after)
        )
        x = torch.cat([x for x, _ in job.clients])
        assert largest(after, measured(model, before, [(1.0, x)])) < 1e-12


@pytest.mark.parametrize(
    "beside",
    [
        ("solver.name=moon",),
        ("solver.name=scaffold",),
        ("train.momentum=0.5", "train.momentum_across_rounds=local"),
        ("train.momentum=0.5", "train.momentum_across_rounds=global"),
        ("fnr.name=matched", "fnr.share=0.3", "fnr.epochs=2"),
        ("fnr.name=server",),
    ],
    ids=lambda beside: beside[-1],
)
def test_whatever_trains_factors_stay_and_statistics_are_the_measured(beside):
    """No message names a factor, and no model keeps one."""
    samples = public().samples
    data = samples.take(torch.arange(len(samples)))
    job = task((5, 9, 14, 8, 11, 7), public=data)
    if "fnr" not in beside[0]:
        job = task((5, 9, 14, 8, 11, 7))
    run = played(config(NAME, *beside, f"algorithm.local_steps={STEPS}", rounds=3), job)
    assert not run.result.incidents
    weights = weights_of((5, 9, 14, 8, 11, 7))
    p = [weights[k] / sum(weights.values()) for k in weights]
    for each in run.rounds:
        for named in each.after.tensors.values():
            assert not [n for n in named if FACTOR in n]
        model = copy.deepcopy(job.model)
        model.load_state_dict(dict(each.before.tensors[Kind.PARAMETERS]), strict=False)
        before, after = (
            by_layer(state.tensors[Kind.STATISTICS], model) for state in (each.before, each.after)
        )
        clients = [(share, x) for share, (x, _) in zip(p, job.clients, strict=True)]
        assert largest(after, measured(model, before, clients)) < 1e-12
    assert not [n for n, _ in run.result.model.named_parameters() if FACTOR in n]
    kept = [client_state.policy for client_state in run.rounds[-1].kept_after.values()]
    assert all(of.keys() == norms(job.model).keys() for of in kept)


@pytest.mark.parametrize("encrypt", ["statistics", "model"])
@pytest.mark.parametrize("some", [(), HALF], ids=["all", "half"])
def test_sealed_it_is_as_in_the_clear(encrypt, some, key_set):
    """To the rounding, with one sum at the start of a round, which the server cannot read."""
    settings = [NAME, *some, f"algorithm.local_steps={STEPS}"]
    job = task((5, 9, 14, 8, 11, 7))
    plain = played(config(*settings, rounds=4), job)
    sealed = played(config(*settings, f"exchange.encrypt={encrypt}", rounds=4), job, key_set)
    assert not sealed.result.incidents
    for kind in (Kind.PARAMETERS, Kind.STATISTICS):
        one, other = (run.rounds[-1].after.tensors[kind] for run in (plain, sealed))
        close(one, other, 1e-5)
    sent = [
        (e.round, e.sender, e.name)
        for e in sealed.result.ledger.entries
        if e.kind is Kind.STATISTICS and e.receiver == "server" and e.sender.startswith("client")
    ]
    assert len(sent) == len(set(sent))
    assert {name for *_, name in sent} == {"hbn/moments", "update/statistics"}


def test_a_resumed_run_ends_as_a_whole_one(tmp_path):
    """To the bit, with factors, their momentum, and what a solver keeps of them."""
    kept = ["train.momentum=0.5", "train.momentum_across_rounds=local", "solver.name=moon"]
    settings, job = config(NAME, *HALF, *kept, rounds=5), task((5, 9, 14, 8, 11, 7))
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


def test_a_layer_that_no_pass_calls_stays_as_it_is():
    """Its statistics, and its factors."""

    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Linear(12, 4), nn.BatchNorm1d(4)
            self.unused = nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(self.first(x))

    job = task((5, 9, 14))
    model = Half().double()
    model.unused.running_mean.fill_(2.0)
    run = played(config(NAME, rounds=2), securefl.Task(model, job.clients, job.test))
    left = run.result.model.unused
    assert torch.equal(left.running_mean, torch.full((4,), 2.0, dtype=torch.float64))
    assert torch.allclose(left.running_var, torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("level", ["record", "client"])
def test_no_level_of_privacy_hides_its_statistics(level):
    """The way out has another normalisation."""
    private = [f"privacy.level={level}", "algorithm.weights=uniform"]
    private += ["privacy.records=20"] if level == "record" else []
    with pytest.raises(ConfigError, match=r'algorithm\.name = "hbn".*(fixbn|"fedavg")'):
        config(NAME, *private, rounds=2)


def test_the_audit_says_why_it_inverts_no_gradient():
    """What normalised a batch is nobody's to know but the client's."""
    job = task((12, 9))
    with pytest.raises(DataError, match="factors of its own that never travel"):
        inversion_target(config(NAME, rounds=1), "after round 1", job.model, job)


def test_layers_without_running_statistics_are_refused():
    """There would be nothing to mix with."""
    model = nn.Sequential(
        nn.Linear(12, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 4)
    )
    job = task((5, 9))
    with pytest.raises(DataError, match="track_running_stats=True"):
        securefl.run(config(NAME, rounds=1), securefl.Task(model.double(), job.clients, job.test))
