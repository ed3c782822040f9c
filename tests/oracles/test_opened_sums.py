"""Sums of all clients' updates: by hand, what they give away, and that the verdict says it."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from securefl.audit.findings import Section
from securefl.audit.inversion.gradient_matching import Search
from securefl.audit.inversion.hidden_statistics import Hidden
from securefl.audit.inversion.opened_total import OpenedRound, RoundShape, opened_sums
from securefl.audit.inversion.rebuilding import Rebuilt
from securefl.audit.inversion.report_section import InversionEffort, inversion_section
from securefl.audit.inversion.sample_kind import ReadingKind
from securefl.audit.inversion.sum_attacks import (
    AttackedSums,
    SumAttacker,
    SumEffort,
    attacked_sums,
)
from securefl.audit.inversion.sum_section import SumsTried
from securefl.audit.inversion.target import NormalisedBatch, Target
from securefl.audit.inversion.unit_inputs import Share, inputs_shown, known_first_layer
from securefl.audit.inversion.verdict import of_smaller
from securefl.audit.rules import Verdict
from securefl.errors import ConfigError
from securefl.norms.find import statistics

LR = 0.1
ALONE = SumEffort(8, 0, Search(1, 1))
"""What single units show, and no search."""


def drawn(n, seed=0, n_classes=2):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=rng, dtype=torch.float64)
    return x, (x[:, :n_classes] + torch.randn(n, n_classes, generator=rng)).argmax(1)


def opened(shape=None, n_classes=2, width=64, normalised=NormalisedBatch.GIVEN):
    """Four clients of forty rows, of normal readings."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Linear(12, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, n_classes)
    ).double()
    x, y = drawn(160, n_classes=n_classes)
    for _ in range(30):
        net(x)
    clients = [(x[i::4], y[i::4]) for i in range(4)]
    others = clients[1] if normalised is NormalisedBatch.POOLED else None
    public = drawn(300, 1, n_classes)
    target = Target("rows", net.eval(), clients[0], public, normalised, others=others)
    return OpenedRound(target, clients, shape or RoundShape(4, 1, 1), LR)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_sum_is_of_the_moves_of_clients_that_step_by_torchs_sgd(steps):
    """With BN in evaluation; divided by the rate and by the number of clients."""
    of, shape = opened(), RoundShape(2, steps, 4)
    found = opened_sums(of, shape, 1, torch.Generator().manual_seed(3))
    x_S, y_S = found.x_NS[0], found.y_NS[0]
    assert len(torch.unique(x_S, dim=0)) == 2 * steps * 4
    start = dict(of.target.model.named_parameters())
    moved = {name: torch.zeros_like(p) for name, p in start.items()}
    for client in range(2):
        net = copy.deepcopy(of.target.model).eval()
        sgd = torch.optim.SGD(net.parameters(), LR)
        for step in range(steps):
            part = slice(4 * (2 * step + client), 4 * (2 * step + client + 1))
            sgd.zero_grad()
            functional.cross_entropy(net(x_S[part]), y_S[part]).backward()
            sgd.step()
        for name, p in net.named_parameters():
            moved[name] += (start[name] - p).detach() / LR / 2
    for name, value in moved.items():
        torch.testing.assert_close(found.gradients[name][0], value, rtol=1e-9, atol=1e-11)


def test_fedtans_sum_of_one_step_is_the_unions_gradient():
    """BN over all clients' batches, as in training on their union; all learn its statistics."""
    of = opened(normalised=NormalisedBatch.POOLED)
    found = opened_sums(of, RoundShape(3, 1, 2), 1, torch.Generator().manual_seed(3))
    net = copy.deepcopy(of.target.model).train()
    net[1].momentum = 1.0
    functional.cross_entropy(net(found.x_NS[0]), found.y_NS[0]).backward()
    for name, p in net.named_parameters():
        torch.testing.assert_close(found.gradients[name][0], p.grad, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(found.exact["1"][0][0], statistics(net)["1.running_mean"])


@pytest.mark.parametrize(("n_classes", "clients"), [(2, 3), (2, 5), (2, 10), (4, 3)])
def test_sums_of_single_rows_give_rows_away_and_hardly_any_that_was_not_there(n_classes, clients):
    """Of a model with a difference of two outputs most; of more classes, units of one row alone."""
    of = opened(n_classes=n_classes)
    sums = opened_sums(of, RoundShape(clients, 1, 1), 4, torch.Generator().manual_seed(0))
    layer = known_first_layer(of.target, statistics_of(of.target.model))
    assert (layer.v_M is None) == (n_classes > 2)
    ranges, n_found = ReadingKind.of(of.target.public[0]).ranges(), 0
    for i in range(4):
        sides = (sums.gradients[f"0.{side}"][i] for side in ("weight", "bias"))
        shown = inputs_shown(layer, *sides, sums.y_NS[i], Share(1 / clients), ranges)[:clients]
        there = torch.cdist(shown, sums.x_NS[i]).amin(1) < 1e-3
        assert int((~there).sum()) <= 1
        n_found += int(there.sum())
    assert n_found >= (0.6 * 4 * clients if n_classes == 2 else 1)


def statistics_of(net):
    return {"1": (net[1].running_mean, net[1].running_var)}


def test_rows_of_a_regression_come_back_too():
    """Targets of one column: mean squared error in one vmap within another has lost its sizes."""
    of = opened()
    net = nn.Sequential(*of.target.model[:-1], nn.Linear(64, 1)).double().eval()
    clients = [(x, x[:, :1] - x[:, 1:2]) for x, _ in of.clients]
    public = (of.target.public[0], of.target.public[0][:, :1])
    target = Target(
        "rows", net, clients[0], public, NormalisedBatch.GIVEN, loss=functional.mse_loss
    )
    sums = opened_sums(
        OpenedRound(target, clients, RoundShape(3, 1, 1), LR),
        RoundShape(3, 1, 1),
        2,
        torch.Generator().manual_seed(0),
    )
    layer = known_first_layer(target, statistics_of(net))
    sides = (sums.gradients[f"0.{side}"][0] for side in ("weight", "bias"))
    ranges = ReadingKind.of(public[0]).ranges()
    shown = inputs_shown(layer, *sides, sums.y_NS[0], Share(1 / 3), ranges)
    assert float(torch.cdist(shown, sums.x_NS[0]).min()) < 1e-3


def test_noise_shows_no_rows():
    """In the place of a sum: nothing that it seems to show has such a gradient."""
    of, rng = opened(), torch.Generator().manual_seed(0)
    layer = known_first_layer(of.target, statistics_of(of.target.model))
    noise = torch.randn(64, 13, generator=rng, dtype=torch.float64)
    ranges = ReadingKind.of(of.target.public[0]).ranges()
    y = torch.tensor([0, 1, 1])
    assert len(inputs_shown(layer, noise[:, 1:], noise[:, 0], y, Share(1 / 3), ranges)) <= 1


def test_what_sums_give_away_falls_with_their_samples():
    """In shares of rows that come back; and who reads a large sum has the guess alone."""
    of = opened()
    shares = []
    for shape in (RoundShape(3, 1, 1), RoundShape(3, 1, 8), RoundShape(4, 1, 32)):
        found = attacked_sums(of, shape, 8, ALONE, seed=0)
        assert list(found.by) == [SumAttacker.FIRST_LAYER]
        shares.append(found.recovered(found.by[SumAttacker.FIRST_LAYER]))
        assert found.n_samples == shape.clients * shape.batch
    assert shares[0] > 0.6 > shares[1] > shares[2]
    assert not found.is_rebuilt
    gains = found.gains()[SumAttacker.FIRST_LAYER]
    assert abs(gains.value) < 0.01


@pytest.mark.parametrize(
    ("error", "nearest", "slight"), [(0.61, 0.61, True), (0.56, 0.56, False), (0.61, 0.05, False)]
)
def test_a_gain_of_a_hair_is_next_to_nothing(error, nearest, slight):
    """Eight sums of three rows: 0.62 σ by the guess; unless a row comes back clearly."""
    error_NB = np.full((8, 3), error)
    error_NB[0, 0] = nearest
    guess, made = (Rebuilt(np.zeros((24, 2)), of, None) for of in (np.full((8, 3), 0.62), error_NB))
    kind = ReadingKind.of(drawn(40)[0])
    about = RoundShape(3, 1, 1), kind, np.zeros((24, 2)), guess, guess
    found = AttackedSums(*about, {SumAttacker.FIRST_LAYER: made})
    assert found.is_rebuilt
    assert found.is_slight == slight
    said = SumsTried(None, [found], RoundShape(4, 5, 32)).found("rows")
    assert of_smaller(said).startswith(
        "From smaller sums, the largest of 3 clients, 1 step of 1, attacks came nearer to rows "
        "than a guess from the labels by next to nothing, and none came back clearly"
        if slight
        else "From smaller sums rows were rebuilt better than a guess from the labels"
    )


def judged(shape, **of) -> Section:
    made = opened(shape, **of)
    effort = InversionEffort(2, 2, Search(1, 1), SumEffort(6, 0, Search(1, 1)))
    return inversion_section([made.target], 0, effort, Hidden.UPDATES, made)


def test_the_section_of_a_sealed_model_is_about_its_own_sums():
    """Rows of one step of one row each come back; of 32 each, none; FedTAN's are not tried."""
    leaks = judged(RoundShape(4, 1, 1))
    assert leaks.verdict is Verdict.LEAKS
    assert "all parties the sum" in leaks.words
    table = leaks.tables[0]
    assert [row[0] for row in table.rows][-1] == "4 clients, 1 step of 1 (this run)"
    assert table.rows[0][0].endswith(" (trial)")
    assert table.title == "Sums of all clients' updates: this run's, and trials"
    others = [shown.title for shown in (*leaks.tables[1:], *leaks.pictures)]
    assert others
    assert all(of.startswith("Trial, had updates not been sealed: ") for of in others)
    assert len(table.rows) - 1 in table.alarming
    holds = judged(RoundShape(4, 1, 32))
    assert holds.verdict is Verdict.HOLDS
    assert "smaller" not in holds.words
    assert holds.trials.startswith("From smaller sums rows were rebuilt better than a guess")
    assert "What follows is of this run, had it" in holds.trials
    assert "recovered 0 of" in holds.words
    names = {number.name for number in holds.numbers}
    assert "sum of 3 clients, 1 step of 1: gain over baseline, first layer" in names
    pooled = judged(RoundShape(4, 1, 8), normalised=NormalisedBatch.POOLED)
    assert pooled.verdict is Verdict.OPEN
    assert pooled.words.startswith("Not measured: all parties received the sum")
    assert pooled.words.endswith("(4 clients, 1 step of 8), and " + NONE)
    assert pooled.trials.startswith("These attacks could be tried on no smaller sum. ")


NONE = "these attacks could be tried neither on such a sum nor on a smaller one."


def test_where_no_sum_can_be_tried_the_section_says_so():
    """One row a client makes no mini-batch that BN normalises; one sum has no interval."""
    made = opened(RoundShape(4, 1, 1), normalised=NormalisedBatch.BATCH)
    none = replace(made, clients=[(x[:1], y[:1]) for x, y in made.clients])
    effort = InversionEffort(2, 2, Search(1, 1), SumEffort(2, 8, Search(1, 1)))
    found = inversion_section([made.target], 0, effort, Hidden.UPDATES, none)
    assert not found.measured
    assert found.words.endswith(NONE)
    (row,) = found.tables[0].rows
    assert row[:2] == ("4 clients, 1 step of 1 (this run)", "none could be tried")
    with pytest.raises(ConfigError, match="sums = 1: must be 2 at least"):
        SumEffort(1, 2, Search(1, 1))


def test_fedtans_small_sums_are_matched():
    """With the statistics that all learn, better than from the labels alone."""
    of = opened(normalised=NormalisedBatch.POOLED)
    found = attacked_sums(of, RoundShape(3, 1, 1), 6, SumEffort(6, 8, Search(150, 1)), seed=0)
    assert list(found.by) == [SumAttacker.MATCHING]
    assert found.gains()[SumAttacker.MATCHING].value > 0.1
