"""Who is compared, what shadow models are trained on, and what the section says of real models."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from securefl import run
from securefl.audit.findings import Findings
from securefl.audit.membership import shadows as shadows_module
from securefl.audit.membership.attackers import SeenModels, attacks
from securefl.audit.membership.attacks import against_others, over_rounds, own_models
from securefl.audit.membership.candidates import candidates, confidences
from securefl.audit.membership.report_section import membership_section
from securefl.audit.membership.shadows import parts, train_shadows
from securefl.audit.replay import in_the_clear
from securefl.audit.rules import Verdict
from securefl.audit.statistics import Roc, p_value_of_area
from securefl.errors import ConfigError, DataError

pytestmark = pytest.mark.usefixtures("quick")


def rng(seed=0):
    return np.random.default_rng(seed)


def noisy_task(tiny_task, n=16, n_test=40, seed=0, **changes):
    """Labels that only memory can tell."""
    draw = torch.Generator().manual_seed(seed)

    def data(size):
        return torch.randn(size, 4, generator=draw), torch.randint(3, (size,), generator=draw)

    return tiny_task(clients=[data(n) for _ in range(5)], test=data(n_test), **changes)


def made_model(*layers):
    """The same one whatever was drawn before."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = [part for sizes in layers for part in (nn.Linear(*sizes), nn.ReLU())]
    return nn.Sequential(*found[:-1])


@pytest.fixture(scope="module")
def overfitted(tiny_task, tiny_config):
    """A federation that learns noise by heart: settings, task, and the model."""
    task = noisy_task(
        tiny_task,
        n_test=80,
        model=made_model((4, 64), (64, 3)),
    )
    config = tiny_config(
        run={"rounds": 12},
        algorithm={"name": "fedavg", "local_steps": 30},
        train={"lr": 0.5, "lr_drops": ()},
    )
    return config, task, run(in_the_clear(config), task).model


def test_each_label_of_each_client_has_the_same_ratio(tiny_task):
    """So that neither labels nor clients say who trained."""
    task = noisy_task(tiny_task, n=30)
    pool = candidates(task, rng())
    assert len(pool) == 5 * 30 + 40
    assert sorted(map(tuple, pool.x[~pool.member_S].tolist())) == sorted(
        map(tuple, task.test[0].tolist())
    )
    chosen = pool.compared(rng())
    assert len(set(chosen.tolist())) == len(chosen)
    member, cell = pool.member_S[chosen], pool.cell_S[chosen]
    ratios = {member[cell == c].sum() / (~member)[cell == c].sum() for c in np.unique(cell)}
    assert len(ratios) == 1
    for s in chosen:
        assert pool.cell_S[s] == pool.client_S[s] * 3 + int(pool.y[s])


def test_tests_of_labels_that_nobody_has_are_left_out(tiny_task):
    """And a client's own tests stay with it."""
    task = tiny_task()
    x, y = task.test
    pool = candidates(replace(task, test=(x, y + 7 * (torch.arange(16) < 4))), rng())
    assert (~pool.member_S).sum() == 12
    own = replace(task, client_tests=[(x[:3], y[:3])] * 4 + [(x[:5], y[:5])])
    pool = candidates(own, rng())
    assert np.bincount(pool.client_S[~pool.member_S]).tolist() == [3, 3, 3, 3, 5]
    nobody = candidates(replace(task, test=(x, y * 0 + 9), client_tests=()), rng()).compared
    with pytest.raises(DataError, match="label"):
        nobody(rng())


def test_data_sets_are_candidates_as_tensors_are(tiny_task):
    task = tiny_task()
    wrapped = replace(task, clients=[TensorDataset(*data) for data in task.clients])
    assert torch.equal(candidates(task, rng()).x, candidates(wrapped, rng()).x)


@pytest.mark.parametrize("seed", range(3))
def test_the_attack_on_single_clients_recognises_no_class(tiny_task, seed):
    """Each client's models know its one label, the best where there are most members of it."""
    draw = torch.Generator().manual_seed(seed)

    def data(label, size):
        return torch.randn(size, 4, generator=draw), torch.full((size,), label)

    clients = [data(i, size) for i, size in enumerate((240, 120, 60, 30, 30))]
    x, y = zip(*(data(i, 30) for i in range(5)), strict=True)
    pool = candidates(tiny_task(clients=clients, test=(torch.cat(x), torch.cat(y))), rng())
    knows = np.diag([50.0, 40, 30, 20, 10])[:, pool.y.numpy()]
    phi = knows + rng(seed).normal(size=(3, 5, len(pool)))
    chosen = pool.compared(rng(seed))
    for score in (against_others(phi, pool.client_S), over_rounds(own_models(phi, pool.client_S))):
        fair, unfair = (
            Roc.of(score[index][pool.member_S[index]], score[index][~pool.member_S[index]])
            for index in (chosen, np.arange(len(pool)))
        )
        assert p_value_of_area(fair) > 0.01
        assert abs(fair.auc(rng()).value - 0.5) < 0.1
        assert unfair.auc(rng()).value > 0.65


def test_in_a_pass_each_sample_is_left_out_once(tiny_task):
    """By models of the run's size; again by other models in the next pass."""
    pool = candidates(noisy_task(tiny_task), rng())
    trained = parts(pool, 3, rng())
    assert trained.shape == (9, 120)  # 80 members and 40 others: a third is left out
    assert (~trained).reshape(3, 3, 120).sum(axis=1).tolist() == [[1] * 120] * 3
    assert (trained.sum(axis=1) == 80).all()
    for cell in np.unique(pool.cell_S):
        of_cell = trained[:, pool.cell_S == cell]
        assert np.ptp(of_cell.sum(axis=1)) <= 1
    assert (trained[:3] != trained[3:6]).any()
    assert (parts(pool, 3, rng()) == trained).all()
    assert (parts(pool, 3, rng(1)) != trained).any()


def test_no_shadow_model_sees_a_sample_that_it_is_without(tiny_task, tiny_config, monkeypatch):
    """What its clients are handed is what the table says, client by client."""
    pool, handed = candidates(noisy_task(tiny_task), rng()), []

    def watched(config, task, **how):
        handed.append((config, task))
        return run(config, task, **how)

    monkeypatch.setattr(shadows_module, "run", watched)
    done = []
    task, config = noisy_task(tiny_task), in_the_clear(tiny_config())
    found = train_shadows(
        config, task, pool, passes=2, seed=0, on_shadow=lambda *of: done.append(of)
    )
    assert done == [(n, 6) for n in range(1, 7)]
    assert (found.n_out_S == 2).all()
    assert len({config.run.seed for config, _ in handed}) == 6
    for trained, (_, shadow) in zip(found.trained_NS, handed, strict=True):
        for client, (x, y) in enumerate(shadow.clients):
            index = np.flatnonzero(trained & (pool.client_S == client))
            assert torch.equal(x, pool.x[index])
            assert torch.equal(y, pool.y[index])
        assert sum(len(y) for _, y in shadow.clients) == trained.sum()


def test_the_same_seed_gives_the_same_shadows(tiny_task, tiny_config):
    """Bit for bit; another seed gives others."""
    task, config = noisy_task(tiny_task), in_the_clear(tiny_config())
    pool = candidates(task, rng())
    one, two, other = (train_shadows(config, task, pool, passes=2, seed=s) for s in (0, 0, 1))
    assert (one.phi_NS == two.phi_NS).all()
    assert (one.phi_NS != other.phi_NS).any()
    with pytest.raises(ConfigError, match="2 or more"):
        train_shadows(config, task, pool, passes=1, seed=0)


@pytest.mark.slow
def test_processes_give_the_same_shadows(tiny_task, tiny_config):
    task, config = noisy_task(tiny_task), in_the_clear(tiny_config())
    pool = candidates(task, rng())
    one, two = (train_shadows(config, task, pool, passes=2, seed=0, workers=w) for w in (1, 2))
    assert (one.phi_NS == two.phi_NS).all()


def test_private_settings_make_shadows_that_repeat(tiny_task, tiny_config):
    """With as much noise, of a seed; and no more records than the shadows' clients have."""
    config = tiny_config(
        algorithm={"name": "fedavg", "weights": "uniform"},
        train={"batch_size": 4},
        run={"rounds": 1},
        privacy={"level": "record", "records": 16, "budget": 1e4, "clip": 0.5, "delta": 0.01},
        model={"norm": "group"},
    )
    task = noisy_task(tiny_task, n_test=80, model=made_model((4, 3)))
    pool, clear = candidates(task, rng()), in_the_clear(config)
    assert clear.privacy.noise == "seeded"
    assert clear.privacy.budget is None
    assert (clear.privacy.sigma, clear.privacy.clip) == (1.0, 0.5)
    one, two = (train_shadows(clear, task, pool, passes=2, seed=0) for _ in range(2))
    assert (one.phi_NS == two.phi_NS).all()


def test_an_overfitted_model_is_found(overfitted):
    """By all attacks; and a model that learnt other data by heart is not."""
    config, task, model = overfitted
    pool = candidates(task, rng())
    shadows = train_shadows(in_the_clear(config), task, pool, passes=2, seed=0)
    found = confidences(model, pool, task.loss)
    rounds, clients = np.tile(found, (2, 1)), np.tile(found, (2, 5, 1))
    clients += rng().normal(0, 0.1, clients.shape) - 2 * (
        np.arange(5)[:, None] != pool.client_S  # others' models fit worse
    )
    section = membership_section(pool, SeenModels(found, rounds, clients), shadows, seed=0)
    areas = {n.name: n for n in section.numbers if n.name.startswith("AUC")}
    assert section.verdict is Verdict.LEAKS, section.words
    for name in ("loss", "RMIA", "LiRA", "rounds", "updates"):
        assert areas[f"AUC, {name}"].value > 0.7, name
    assert areas["AUC, RMIA"].low > 0.7

    strange = noisy_task(lambda **changes: replace(task, **changes), n_test=80, seed=1)
    held = confidences(run(in_the_clear(config), strange).model, pool, task.loss)
    holds = membership_section(pool, SeenModels(held), shadows, seed=0)
    assert holds.verdict is Verdict.HOLDS, holds.words
    assert all(n.low <= 0.5 <= n.high for n in holds.numbers if n.name.startswith("AUC"))
    assert "would have been noticed" in holds.words


def made_pool(tiny_task, n_test=200):
    return candidates(noisy_task(tiny_task, n=n_test // 4, n_test=n_test), rng())


def test_a_rate_at_a_thousandth_is_given_or_refused_with_its_reason(tiny_task):
    """Below a thousand non-members it would rest on one of them."""
    few, many = (made_pool(tiny_task, n) for n in (500, 1040))
    refused, given = (
        membership_section(pool, SeenModels(rng().normal(size=len(pool))), None, seed=0)
        for pool in (few, many)
    )
    assert any("needs 1,000 non-members" in note for note in refused.notes)
    assert not any("0.1 %" in number.name for number in refused.numbers)
    assert [n.name for n in given.numbers if "0.1 %" in n.name] == ["TPR at 0.1 % FPR, loss"]
    assert not any("non-members" in note for note in given.notes)


def test_the_section_repeats_and_says_who_can_do_what(tiny_task):
    """The same findings give the same bytes; a client that was in no round is not scored."""
    pool = made_pool(tiny_task)
    phi = rng().normal(size=(4, 5, len(pool))) + 0.4 * pool.member_S
    phi[:, 2] = np.nan
    seen = SeenModels(phi[0, 0], phi[:, 0], phi)
    again = membership_section(pool, replace(seen, another_run=True), None, seed=3)
    (note,) = (note for note in again.notes if "another one of the same settings" in note)
    assert note.startswith("'rounds', 'updates', 'updates, others': here tried on the run played")
    one, two = (membership_section(pool, seen, None, seed=3) for _ in range(2))
    assert (
        Findings("r", "quick", 0, {}, [one]).to_json()
        == Findings("r", "quick", 0, {}, [two]).to_json()
    )
    assert one.pictures[0].png == two.pictures[0].png
    assert one.pictures[0].png.startswith(b"\x89PNG")
    assert one.verdict is Verdict.WEAK
    assert [row[0] for row in one.tables[0].rows] == [
        "loss",
        "rounds",
        "updates",
        "updates, others",
    ]
    assert 0 in one.tables[0].alarming
    drawn = {n.seed for n in one.numbers if not n.name.startswith("probability")}
    assert drawn == {3}
    assert sum(n.name.startswith("probability under chance") for n in one.numbers) == 4
    away = [np.isnan(attack.score_S).sum() for attack in attacks(pool, seen, None)]
    assert away == [0, 0, *[(pool.client_S == 2).sum()] * 2]


def test_few_records_leave_the_section_open(tiny_task):
    """No verdict from a dozen."""
    pool = candidates(tiny_task(), rng())
    assert len(pool.compared(rng())) < 60
    section = membership_section(pool, SeenModels(rng().normal(size=len(pool))), None, seed=0)
    assert section.verdict is Verdict.OPEN
    assert "Only" in section.words


def test_records_of_two_kinds_are_pointed_out(tiny_task):
    """Where models that trained on neither tell members from others, no memory is needed for it."""
    pool = made_pool(tiny_task)
    phi = rng().normal(size=(6, len(pool)))
    trained = np.zeros_like(phi, dtype=bool)
    for shift, warned in ((0.0, False), (0.5, True)):
        found = shadows_module.Shadows.of(phi + shift * pool.member_S, trained)
        target = rng(1).normal(size=len(pool)) + shift * pool.member_S
        section = membership_section(pool, SeenModels(target), found, seed=0)
        assert ("trained on neither" in section.words) == warned


@pytest.mark.slow
@pytest.mark.usefixtures("no_hang")
def test_who_gives_up_waits_for_no_shadow(tiny_task, tiny_config):
    """Ctrl-C ends processes in the midst of a training of hours; at the end of a round."""
    task = noisy_task(tiny_task)
    short, long = (in_the_clear(tiny_config(run={"rounds": n})) for n in (1, 10**6))
    pool = candidates(task, rng())
    kept = np.ones(len(pool), bool)
    jobs = [(short, task, pool, kept), *[(long, task, pool, kept)] * 4]
    trained = shadows_module._done(jobs, 2)
    next(trained)
    trained.close()
    assert not multiprocessing.active_children()
