"""FBN against its equations written out in plain torch, and against training in one place."""

from __future__ import annotations

import copy

import pytest
import torch
from by_hand import BATCH, batches, config
from fnr_by_hand import public
from played import place, played
from torch import nn
from two_bn_layers import (
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
    union,
)

import securefl
from securefl.errors import ConfigError, DataError
from securefl.types import Kind

pytestmark = pytest.mark.usefixtures("quick")

NAME = "algorithm.name=fbn"
STEPS = 2
RHO = 0.1


def trained(model, data, s):
    """Parameters and running statistics after local steps that normalise by `s`."""
    model, now = copy.deepcopy(model), dict(s)

    def moments(name, mu, var):
        (mean, variance), (mu, var) = now[name], (mu.detach(), var.detach())
        about_mean = var + (mu - s[name][0]) ** 2
        now[name] = (1 - RHO) * mean + RHO * mu, (1 - RHO) * variance + RHO * about_mean
        return s[name]

    for batch in data:
        step(model, batch, moments)
    return parameters_of(model), now


def averaged(p, ends):
    """Σ p_k of parameters, and of statistics."""
    names, layers = (ends[0][part].keys() for part in (0, 1))
    return (
        {n: sum(w * end[n] for w, (end, _) in zip(p, ends, strict=True)) for n in names},
        {
            n: tuple(sum(w * s[n][of] for w, (_, s) in zip(p, ends, strict=True)) for of in (0, 1))
            for n in layers
        },
    )


@pytest.mark.parametrize("who", WHO)
def test_every_round_is_the_equations(who):
    """Model and statistics, of unequal clients that stay away."""
    sizes, some = WHO[who]
    job, full = task(sizes), "full" in who
    run = played(config(NAME, *some, f"algorithm.local_steps={STEPS}", rounds=5), job)
    model, s = copy.deepcopy(job.model), statistics_of(job.model)
    assert who == "two clients" or any(len(each.times) < len(sizes) for each in run.rounds)
    for done, each in enumerate(run.rounds):
        places = [place(client) for client in each.times]
        taken = [min(sizes[i], BATCH) for i in places]
        if places:
            share = len(places) / len(sizes) if full else 1.0
            ends = [trained(model, batches(job, done, i, STEPS), s) for i in places]
            w, of = averaged([n / sum(taken) for n in taken], ends)
            with torch.no_grad():
                for n, parameter in model.named_parameters():
                    parameter.lerp_(w[n], share)
            s = {n: tuple(a.lerp(b, share) for a, b in zip(s[n], of[n], strict=True)) for n in s}
        close(each.after.tensors[Kind.PARAMETERS], parameters_of(model))
        assert largest(by_layer(each.after.tensors[Kind.STATISTICS], model), s) < 1e-12


def test_with_one_step_a_round_is_a_step_in_one_place_on_the_union():
    """Forward, backward and statistics, of unequal batches."""
    job = task((5, 9, 14, 8))
    run = played(config(NAME, rounds=4), job)
    model, s = copy.deepcopy(job.model), statistics_of(job.model)
    for done, each in enumerate(run.rounds):
        drawn = [batches(job, done, i)[0] for i in range(4)]
        w, s = trained(model, [tuple(map(torch.cat, zip(*drawn, strict=True)))], s)
        model.load_state_dict(w, strict=False)
        close(each.after.tensors[Kind.PARAMETERS], w)
        assert largest(by_layer(each.after.tensors[Kind.STATISTICS], model), s) < 1e-12


def test_statistics_of_a_model_that_stands_still_end_at_the_unions():
    """FedAvg's do not: they lack the clients' different means, and each normalises for itself."""
    job = task((5, 9, 14, 8))
    still = ("train.lr=1e-30", "train.weight_decay=0.0", "train.batch_size=64")
    for layer in norms(job.model).values():
        layer.momentum = 1.0
    apart = {}
    for name in ("fbn", "fedavg"):
        run = played(config(f"algorithm.name={name}", *still, rounds=5), job)
        found = by_layer(run.rounds[-1].after.tensors[Kind.STATISTICS], job.model)
        apart[name] = largest(found, union(job.model, job.clients))
    assert apart["fbn"] < 1e-11
    assert apart["fedavg"] > 0.1


@pytest.mark.parametrize("encrypt", ["statistics", "model"])
def test_sealed_it_is_as_in_the_clear(encrypt, key_set):
    """To the rounding, in one message of statistics a round, which the server cannot read."""
    settings, job = [NAME, *HALF, f"algorithm.local_steps={STEPS}"], task((5, 9, 14, 8, 11, 7))
    plain = played(config(*settings, rounds=3), job)
    sealed = played(config(*settings, f"exchange.encrypt={encrypt}", rounds=3), job, key_set)
    assert not sealed.result.incidents
    for kind in (Kind.PARAMETERS, Kind.STATISTICS):
        close(*(run.rounds[-1].after.tensors[kind] for run in (plain, sealed)), 1e-5)
    entries = [e for e in sealed.result.ledger.entries if e.kind is Kind.STATISTICS]
    sent = [e for e in entries if e.receiver == "server" and e.sender.startswith("client")]
    assert {(e.name, e.n_values) for e in sent} == {("update/statistics", 2 * (5 + 4))}
    assert all(e.form != "plaintext" for e in sent)


@pytest.mark.parametrize(
    "beside",
    [("fnr.name=matched", "fnr.share=0.3", "fnr.epochs=2"), ("fnr.name=server",)],
    ids=lambda beside: beside[0],
)
def test_steps_on_public_samples_move_no_statistics(beside):
    """They normalise by the round's, as all other steps do."""
    samples = public().samples
    job = task((5, 9, 14, 8, 11, 7), public=samples.take(torch.arange(len(samples))))
    run, alone = (played(config(NAME, *also, rounds=1), job) for also in (beside, ()))
    mine, theirs = (of.rounds[0].after.tensors for of in (run, alone))
    close(mine[Kind.STATISTICS], theirs[Kind.STATISTICS])
    name = "0.weight"
    assert not torch.equal(mine[Kind.PARAMETERS][name], theirs[Kind.PARAMETERS][name])


def test_statistics_without_noise_are_of_no_record_level():
    """The way out has another normalisation."""
    private = ("privacy.level=record", "privacy.records=20", "algorithm.weights=uniform")
    with pytest.raises(ConfigError, match=r'algorithm\.name = "fbn".*without noise.*fixbn'):
        config(NAME, *private, rounds=2)


def test_layers_without_running_statistics_are_refused():
    """There would be nothing to normalise by."""
    model = nn.Sequential(
        nn.Linear(12, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 4)
    )
    job = task((5, 9))
    with pytest.raises(DataError, match="track_running_stats=True"):
        securefl.run(config(NAME, rounds=1), securefl.Task(model.double(), job.clients, job.test))
