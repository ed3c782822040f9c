"""Every normalisation, solver and server optimiser, refined or not, in the clear and encrypted."""

from __future__ import annotations

import sys
from functools import cache
from itertools import combinations, product
from pathlib import Path

import pytest
import torch
from pairs import covering, each, grid, marked
from torch import nn

import securefl
from securefl.errors import ConfigError
from securefl_keys.policy import DEFAULT

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
from combinations import (  # noqa: E402
    FNR,
    MOMENTA,
    POLICIES,
    SELECTIONS,
    SERVERS,
    SOLVERS,
    page,
    reason,
)

SMALL = (
    "run.rounds=2",
    "algorithm.local_steps=2",
    "train.batch_size=4",
    "train.lr=0.1",
)


REFINABLE = {n: p for n, p in POLICIES.items() if n not in {"singlenet", "centralised"}}
REFINED = ("fnr.name=matched", "fnr.share=0.4", "fnr.strength=0.5", "fnr.epochs=1")


def task(sizes=(4, 6, 8), **changes):
    rng = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(n, 4, generator=rng), torch.randint(2, (n,), generator=rng)) for n in sizes
    ]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    return securefl.Task(model, clients, clients[0], **changes)


def task_with_public():
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(40, 4, generator=rng)
    return task((4, 6, 8, 5, 7), public=(x, (x[:, 0] > 0).long()))


def run(settings, encrypt, keys=None, job=None):
    """The default policy opens each message of it that was opened."""
    config = securefl.load_config(None, [*SMALL, *settings, f"exchange.encrypt={encrypt}"])
    result = securefl.run(config, job or task(), keys=keys)
    for name in {opening.name for opening in result.openings}:
        DEFAULT.rule_for(name)
    return result


def vector(model):
    return torch.cat([value.flatten().double() for value in model.state_dict().values()])


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "solver", "server"), grid(POLICIES, SOLVERS, SERVERS))
def test_every_combination_runs_or_says_why_not(policy, solver, server, key_set):
    """It trains, and encrypted it ends where it ends in the clear; or two of its parts clash."""
    parts = POLICIES[policy], SOLVERS[solver], SERVERS[server]
    settings = [setting for part in parts for setting in part]
    if any(reason(*pair) for pair in combinations(parts, 2)):
        with pytest.raises(ConfigError, match=r"set |use |give "):
            run(settings, "none")
        return
    plain = run(settings, "none")
    assert torch.isfinite(vector(plain.model)).all()
    assert not plain.incidents
    if policy in {"singlenet", "centralised"}:
        assert {e.receiver for e in plain.ledger.entries} <= {
            "server",
            "client-1",
            "client-2",
        } | {"client-3"}
        return
    assert not torch.equal(vector(plain.model), vector(task().model))
    sealed = run(settings, "model", key_set)
    assert not sealed.ledger.server_reads()
    assert (vector(plain.model) - vector(sealed.model)).abs().max() < 1e-4


AXES = REFINABLE, SOLVERS, SERVERS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "solver", "server"), marked(product(*AXES), each(AXES, product(*AXES)))
)
def test_fnr_refines_every_combination(policy, solver, server, key_set):
    """It ends elsewhere than without, and encrypted where it ends in the clear."""
    settings = [*POLICIES[policy], *SOLVERS[solver], *SERVERS[server]]
    if reason(settings):
        pytest.skip("refused together")
    job = task_with_public()
    without, plain = (run([*settings, *more], "none", job=job) for more in ((), REFINED))
    assert torch.isfinite(vector(plain.model)).all()
    assert not plain.incidents
    assert not torch.equal(vector(plain.model), vector(without.model))
    if server == "average":
        sealed = run([*settings, *REFINED], "model", key_set, job)
        assert not sealed.ledger.server_reads()
        assert (vector(plain.model) - vector(sealed.model)).abs().max() < 1e-4


REFINING = {name: (*FNR[name], "fnr.epochs=1") for name in FNR if name != "none"}


@pytest.mark.parametrize(("fnr", "momentum", "server"), grid(REFINING, MOMENTA, SERVERS))
def test_fnr_goes_with_every_server_and_momentum(fnr, momentum, server, key_set):
    """In the clear and encrypted, or as the table says."""
    settings = [*REFINING[fnr], "algorithm.name=fedavg", *SERVERS[server], *MOMENTA[momentum]]
    if reason(settings):
        with pytest.raises(ConfigError):
            run(settings, "none", job=task_with_public())
        return
    plain = run(settings, "none", job=task_with_public())
    sealed = run(settings, "model", key_set, task_with_public())
    assert torch.isfinite(vector(plain.model)).all()
    assert (vector(plain.model) - vector(sealed.model)).abs().max() < 1e-4


SOME = ("selection.name=random", "selection.fraction=0.6")
AGGREGATIONS = {name: (*SOME, f"selection.aggregation={name}") for name in ("partial", "full")}
SELECTED = *AXES, AGGREGATIONS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "solver", "server", "aggregation"),
    marked(covering(*SELECTED), each(SELECTED, covering(*SELECTED))),
)
def test_some_of_the_clients_train_in_every_pair(policy, solver, server, aggregation, key_set):
    """With full or partial aggregation it ends elsewhere than with all, and encrypted as plain."""
    settings = [*POLICIES[policy], *SOLVERS[solver], *SERVERS[server]]
    some = [*settings, *AGGREGATIONS[aggregation]]
    if reason(some):
        pytest.skip("refused together")
    job = task((4, 6, 8, 5, 7))
    with_all, plain = (run(chosen, "none", job=job) for chosen in (settings, some))
    assert torch.isfinite(vector(plain.model)).all()
    assert not torch.equal(vector(plain.model), vector(with_all.model))
    assert not plain.incidents
    sealed = run(some, "model", key_set, job)
    assert sealed.ledger.server_reads() == set()
    assert (vector(plain.model) - vector(sealed.model)).abs().max() < 1e-4


ENCRYPTED = {name: (f"exchange.encrypt={name}",) for name in ("none", "model")}


@pytest.mark.parametrize(("selection", "fnr", "encrypt"), grid(SELECTIONS, FNR, ENCRYPTED))
def test_every_selection_goes_with_every_refinement(selection, fnr, encrypt, key_set):
    """Where clients drop out, too: a round without as many as it takes passes."""
    beside = [] if fnr == "none" else [*FNR[fnr], "fnr.epochs=1"]
    share = [] if selection == "all" else ["selection.fraction=0.8"]
    settings = ["algorithm.name=fedavg", *SELECTIONS[selection], *share, *beside]
    if encrypt == "model" and "selection.replacement=with" in settings:
        with pytest.raises(ConfigError, match=r"selection\.replacement"):
            run(settings, encrypt, key_set, task_with_public())
        return
    result = run([*settings, "devices.dropout=0.4"], encrypt, key_set, task_with_public())
    assert len(result.metrics) == 2
    assert torch.isfinite(vector(result.model)).all()


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_normalisation_goes_with_every_momentum(policy, momentum):
    """As the table says."""
    settings = [*POLICIES[policy], *MOMENTA[momentum]]
    if reason(settings):
        with pytest.raises(ConfigError):
            run(settings, "none")
    else:
        assert torch.isfinite(vector(run(settings, "none").model)).all()


@pytest.mark.full
def test_pairs_say_everything():
    """A product of three, refined or not, is refused where two are, and nowhere else.

    Those that have every pair run above, or are refused, as their pairs say.
    """
    axes = POLICIES.values(), SOLVERS.values(), SERVERS.values(), (FNR["none"], FNR["matched"])
    pair_reason = cache(reason)
    for parts in product(*axes):
        pairwise = any(pair_reason(*pair) for pair in combinations(parts, 2))
        assert bool(reason(*parts)) == pairwise, parts


def test_the_table_in_the_docs_is_the_present_one():
    """docs/combinations.md is what docs/combinations.py prints."""
    assert (ROOT / "docs/combinations.md").read_text() == page(), (
        "python docs/combinations.py > docs/combinations.md"
    )
