"""FNR-FL's clients end side by side where they end one by one: assessed and refined together."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import torch
from by_hand import task
from fnr_by_hand import public
from pairs import grid
from securefl.simulation.stacked.assessment import assess_each
from side_by_side import REFINED, SMALL, require_same, trained, vector, with_public
from torch import nn
from torch.utils.data import TensorDataset

import securefl
from securefl.algorithms.class_norms import assess
from securefl.algorithms.federated import Federated
from securefl.algorithms.fnr import FNR, Match, Ranking
from securefl.algorithms.normalisation.static_bn import static_bn
from securefl.algorithms.public_training import PublicData
from securefl.data.samples import samples
from securefl.errors import ConfigError, TooFewContributions
from securefl.simulation.stacked import assessment as wide_assessment
from securefl.simulation.stacked import refining
from securefl.simulation.stacked.model import parts, wide

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from combinations import FNR as WAYS
from combinations import MOMENTA, POLICIES, SERVERS, SOLVERS, reason

SIZES = (5, 9, 14, 8, 6, 7, 11)
"""Of seven clients two are refined; fewer where the last ones are tied."""


def job(name="mlp", norm="batch", sizes=SIZES):
    """With public samples."""
    return with_public(task(name, norm, sizes=sizes))


@pytest.fixture
def refined(monkeypatch):
    """How many clients were refined side by side, each time that some were."""
    found, penalties = [], refining.Penalties

    def noted(each):
        found.append(len(each))
        return penalties(each)

    monkeypatch.setattr(refining, "Penalties", noted)
    return found


# --- where they end ---


TOGETHER = {name: solver for name, solver in SOLVERS.items() if name != "moon"}
BESIDE = MOMENTA | {"fednova": SERVERS["fednova"]}


@pytest.mark.parametrize(("policy", "solver", "beside"), grid(POLICIES, TOGETHER, BESIDE))
def test_rounds_end_where_they_end_one_by_one(policy, solver, beside, refined):
    """All normalisations and solvers, with every momentum, and FedNova's clients."""
    parts_ = POLICIES[policy], SOLVERS[solver], BESIDE[beside], WAYS["matched"]
    if any(reason(*pair) for pair in combinations(parts_, 2)):
        pytest.skip("refused together")
    require_same([s for part in parts_ for s in part] + [*REFINED], job())
    one_by_one = policy == "fixbn, window"  # which looks at all channels at once
    assert bool(refined) is not one_by_one


@pytest.mark.parametrize("match", Match)
@pytest.mark.parametrize("ranking", Ranking)
@pytest.mark.parametrize("momentum", ["train.momentum=0.0", "train.momentum=0.9"])
def test_nor_does_it_matter_what_pulls_or_how_the_weakest_are_found(match, ranking, momentum):
    """Both penalties and both rankings."""
    algorithm = FNR(Federated(), public(), 0.3, 0.4, match, ranking)
    require_same([momentum], replace(task(sizes=SIZES), algorithm=algorithm))


@pytest.mark.parametrize("settings", [[], ["selection.name=random", "selection.fraction=0.8"]])
@pytest.mark.parametrize("name", [name for name in WAYS if name != "none"])
def test_every_way_to_train_on_public_samples_goes_side_by_side(name, settings):
    """Where the server trains on them, too."""
    require_same(["algorithm.name=fedavg", f"fnr.name={name}", "fnr.epochs=2", *settings], job())


@pytest.mark.parametrize("norm", ["batch", "group", "layer", "instance", "group-ws"])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_every_norm_is_assessed_and_refined_side_by_side(name, norm, refined):
    """With convolutions, features lie in channels."""
    if (name, norm) == ("mlp", "instance"):
        pytest.skip("one value a channel")
    require_same(["algorithm.name=fedavg", *REFINED], job(name, norm))
    assert refined


@pytest.mark.parametrize(
    "settings",
    [
        ["selection.name=random", "selection.fraction=0.8"],
        ["selection.name=random", "selection.fraction=0.8", "selection.replacement=with"],
        ["selection.name=random", "selection.fraction=0.8", "selection.aggregation=full"],
        ["train.batch_size=32"],
        ["train.lr_decay=0.5"],
    ],
    ids=lambda settings: settings[-1],
)
@pytest.mark.parametrize("solver", ["sgd", "scaffold", "fedprox"])
def test_who_takes_part_changes_nothing(settings, solver):
    """Nor do batches of other sizes, whose clients train in blocks of their own."""
    chosen = ["algorithm.name=fedavg", f"solver.name={solver}", *REFINED, *settings]
    if reason(tuple(chosen)):
        pytest.skip("refused together")
    require_same(chosen, job())


def test_blocks_and_the_refined_are_no_more_than_fit(monkeypatch, refined):
    """Two at a time train, and of four that are refined."""
    of = job()
    size = 8 * sum(p.numel() for p in of.model.parameters())
    monkeypatch.setattr("securefl.simulation.stacked.workspaces.BLOCK_BYTES", 2 * size)
    require_same(["algorithm.name=fedavg", *REFINED, "fnr.share=0.58"], of)
    assert max(refined) == 2
    assert sum(refined) > 2 * 3


def spoiling(*which):
    """Clients of whom these have values that are finite, and no sum of them is."""
    spoilt = job(sizes=(10,) * 7)
    for i in which:
        x, _ = spoilt.clients[i]
        x.copy_(1.5e308 * x.sign())
    return spoilt


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("policy", ["fedavg", "fedtan", "fedbn"])
def test_a_client_that_diverges_leaves_the_round(policy, engine):
    """It is refused where it asks, and costs itself alone."""
    spoilt = spoiling(1)
    settings = [f"algorithm.name={policy}", *REFINED, "algorithm.weights=uniform"]
    run = trained(settings, engine, spoilt)
    assert {incident.client for incident in run.incidents} == {"client-2"}
    assert [m.dropped for m in run.metrics] == [("client-2",)] * 3
    assert torch.isfinite(vector(run.model)).all()
    alone = trained(settings, "sequential", spoilt)
    assert run.incidents == alone.incidents
    torch.testing.assert_close(vector(run.model), vector(alone.model), rtol=1e-9, atol=1e-10)


def test_a_round_that_lost_too_many_stops_the_run():
    """Of seven clients four diverge: of three none can be refined."""
    with pytest.raises(TooFewContributions, match="of 3 clients 0 are refined"):
        trained(["algorithm.name=fedavg", *REFINED], "vectorised", spoiling(1, 2, 3, 5))


# --- one pass for all ---


def some_clients(model, n_clients):
    """Clients of other parameters and statistics, side by side and each alone."""
    both, rng = wide(model, n_clients), torch.Generator().manual_seed(1)
    alone = [wide(model, 1) for _ in range(n_clients)]
    with torch.no_grad():
        for name, value in both.state_dict().items():
            if value.is_floating_point():
                noise = torch.rand(value.shape, generator=rng, dtype=value.dtype)
                value.mul_(0.5 + noise).add_(noise, alpha=0.01)
                for one, own in zip(alone, parts(value, n_clients), strict=True):
                    one.state_dict()[name].copy_(own)
    return both, alone


@pytest.mark.parametrize("at_a_time", [7, 20])
@pytest.mark.parametrize(
    ("name", "norm"),
    [
        ("mlp", "batch"),
        ("mlp", "group"),
        ("cnn", "batch"),
        ("cnn", "group-ws"),
        ("resnet20", "batch"),
    ],
)
def test_clients_are_assessed_as_each_is_alone(name, norm, at_a_time, monkeypatch):
    """Norms, numbers correct and confidences; of a class without samples there is no norm."""
    of = job(name, norm)
    stock = samples(of.public, "the public set")
    values = 3 * 8 * of.public[0][0].numel()
    monkeypatch.setattr(wide_assessment, "SAMPLE_BYTES", at_a_time * values)
    both, alone = some_clients(of.model, 3)
    found = assess_each(both, stock, 4, 3)
    assert not both.training
    for one, model in zip(found, alone, strict=True):
        expected = assess(model, stock, 4)
        torch.testing.assert_close(one.norms.sum_C, expected.norms.sum_C, rtol=1e-12, atol=1e-12)
        assert torch.equal(one.norms.count_C, expected.norms.count_C)
        assert one.norms.known_C.tolist() == [True, True, True, False]
        assert one.n_correct == expected.n_correct
        assert one.confidence == pytest.approx(expected.confidence, rel=1e-12)
    assert len({one.confidence for one in found}) == 3


class Watched(nn.Module):
    """Passes on what it gets, and notes the shapes of what it gets in evaluation mode."""

    seen: list[tuple[int, ...]] = []  # noqa: RUF012 -- of all copies of the model

    def forward(self, x):
        if not self.training:
            self.seen.append(tuple(x.shape))
        return x


@pytest.mark.parametrize(
    ("engine", "at_a_time", "passes"),
    [
        ("sequential", 20, [(20, 12)] * 7),
        ("vectorised", 20, [(20, 7 * 12)]),
        ("vectorised", 8, [(8, 7 * 12), (8, 7 * 12), (4, 7 * 12)]),
    ],
)
def test_one_pass_assesses_a_block(engine, at_a_time, passes, monkeypatch):
    """One for each batch of public samples, in the place of one for each client."""
    monkeypatch.setattr(wide_assessment, "SAMPLE_BYTES", at_a_time * 7 * 12 * 8)
    monkeypatch.setattr(Watched, "seen", [])
    of = job(sizes=(8,) * 7)
    of = replace(of, model=nn.Sequential(Watched(), *of.model))
    trained(["algorithm.name=fedavg", *REFINED, "run.rounds=1"], engine, of)
    tried_and_scored = {(4, 12), (4, 24), (1, 12), (2, 12), (40, 12)}
    assert [shape for shape in Watched.seen if shape not in tried_and_scored] == passes


# --- who is side by side ---


def said(of, *settings):
    """The engine that `auto` takes, and why."""
    words = []
    config = securefl.load_config(None, [*SMALL, "algorithm.name=fedavg", *REFINED, *settings])
    securefl.run(config, of, on_start=words.append)
    return words[0]


def test_auto_takes_it_for_a_model_of_linear_layers():
    """For convolutions on a CPU it takes clients one by one, as without FNR-FL."""
    assert said(job()).startswith("vectorised: ")
    assert said(job("cnn")).startswith("sequential: convolutions")
    some = "selection.name=random", "selection.fraction=0.8"
    assert said(job(), *some).startswith("vectorised: ")


class Scored(nn.Module):
    """Where it is evaluated its outputs are probabilities."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 4)

    def forward(self, x):
        y = self.layer(x)
        return y if self.training else y.softmax(dim=1)


class Refusing(Scored):
    """Where it is evaluated it insists on its width."""

    def forward(self, x):
        assert self.training or x.shape[1] == 12
        return self.layer(x)


class Centring(Scored):
    """Where it is evaluated it looks at all samples of a pass, which may be fewer side by side."""

    def forward(self, x):
        return self.layer(x if self.training else x - x.mean(0))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Scored(), "mixes channels .* evaluated"),
        (Refusing(), "evaluation does not run"),
        (Centring(), "evaluation looks at several samples"),
    ],
    ids=["scored", "refusing", "centring"],
)
def test_a_model_that_is_evaluated_otherwise_is_tried_so(model, why):
    """It trains side by side, and so it does without FNR-FL."""
    of = replace(job(), model=model.double())
    trained(["algorithm.name=fedavg"], "vectorised", of)
    with pytest.raises(ConfigError, match=why):
        trained(["algorithm.name=fedavg", *REFINED], "vectorised", of)
    assert said(of).startswith("sequential: ")


def test_public_samples_that_are_drawn_anew_are_not_shared():
    """Each client alone would see others."""
    stock = samples(TensorDataset(*job().public), "the public set")
    of = replace(task(sizes=SIZES), algorithm=FNR(Federated(), PublicData(stock), 0.3))
    with pytest.raises(ConfigError, match="the public samples are a Dataset"):
        trained([], "vectorised", of)


class Own(FNR):
    """It may do anything."""


def test_an_algorithm_made_of_it_is_ones_own():
    """Whatever it has changed."""
    of = replace(task(sizes=SIZES), algorithm=Own(Federated(), public(), 0.3))
    with pytest.raises(ConfigError, match="as a whole"):
        trained([], "vectorised", of)


# --- what refinement looks at ---


def test_refinement_looks_at_no_sample_of_the_clients_own():
    """Of its batches as many are taken as without: static BN measures once."""
    taken = []
    for algorithm in (Federated(static_bn), FNR(Federated(static_bn), public(), 0.3, 0.4)):
        rng_states = []
        of = replace(task(sizes=(10,) * 7), algorithm=Noting(algorithm, rng_states))
        trained(["run.rounds=1"], "sequential", of)
        taken.append(rng_states)
    assert len(taken[0]) == 7
    assert taken[0] == taken[1]


class Noting:
    """The inner algorithm, of whose clients it counts the batches."""

    def __init__(self, inner, counts):
        self.inner, self.counts = inner, counts
        self.init, self.plan, self.update = inner.init, inner.plan, inner.update

    def client(self, state, work, exchange):
        n_taken = 0

        def counted():
            nonlocal n_taken
            for batch in work.batches:
                n_taken += 1
                yield batch

        found = self.inner.client(state, replace(work, batches=counted()), exchange)
        self.counts.append(n_taken)
        return found
