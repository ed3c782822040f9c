"""A metric over all clients' samples: in one process and over processes, clear and sealed."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from dataclasses import replace
from itertools import product

import pytest
import safetensors.torch
import torch
from over_loopback import NAMES, Consortium, Job, OnTask, made_up_task
from pairs import marked
from torch import nn

import securefl
from securefl import Task
from securefl.errors import ConfigError, DataError, ValueRefused
from securefl.exchange.whole import in_parts, joined
from securefl.federation.message import SCORE_MEAN, SCORES
from securefl.io import allowed_code
from securefl.metrics.chosen import chosen_metric
from securefl.metrics.metric import PooledBy
from securefl.runs.folder_files import BEST, MODEL
from securefl.runs.folder_reader import read_run
from securefl.runs.round_metrics import RoundMetrics, best_of

IN_ONE = ("run.engine=sequential", "exchange.encrypt=none")
SEALED = ("exchange.encrypt=model", "run.reproducible=false")
FORMS = {"clear": ("run.reproducible=true",), "sealed": SEALED}
OF_CLASSES = (*("accuracy", "balanced-accuracy", "macro-f1", "dice", "calibration-error", "auc"),)
METRICS = (*OF_CLASSES, "r2")
SHORT = [*((name, "clear") for name in METRICS), *((n, "sealed") for n in ("dice", "auc", "r2"))]
"""Metrics in the clear; sealed, one of each way that sums are made."""


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("consortium"))


def task(metric=None, *, without=None):
    """Five clients with eight test samples each, and others; the last lacks a class where named."""
    made = made_up_task(own_tests=True)
    tests = [(torch.cat([x] * (i + 1)), torch.cat([y] * (i + 1))) for i, (x, y) in own_tests(made)]
    if without is not None:
        x, y = tests[-1]
        tests[-1] = x, torch.full_like(y, without)
    return replace(made, client_tests=tests, metric=metric)


def own_tests(made):
    return list(enumerate(made.client_tests))


def of_numbers():
    """The same clients, whose targets are two numbers of another size."""
    made = made_up_task(own_tests=True)
    mix = torch.randn(4, 2, generator=torch.Generator().manual_seed(2))
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))

    def named(data):
        return data[0], 3 + data[0] @ mix

    return Task(
        model,
        [named(of) for of in made.clients],
        named(made.test),
        nn.functional.mse_loss,
        client_tests=[named(of) for of in made.client_tests],
    )


def on_union(folder, made, name):
    """Return a metric of the run's model on all clients' test samples at once."""
    model = copy.deepcopy(made.model)
    model.load_state_dict(safetensors.torch.load_file(folder / MODEL))
    x, y = (torch.cat(of) for of in zip(*made.client_tests, strict=True))
    with torch.no_grad():
        return chosen_metric(name).of(model.eval()(x), y)


def same_as_union(found, wanted):
    assert found.value == pytest.approx(wanted, abs=found.within + 1e-12)


@pytest.mark.parametrize(("name", "form"), marked(product(METRICS, FORMS), SHORT))
def test_over_processes_it_is_that_of_the_union_and_of_a_simulation(
    consortium, tmp_path, name, form
):
    """The last site lacks two classes; nobody reads a site's own."""
    made = of_numbers() if name == "r2" else task(without=0)
    settings = (f"run.metric={name}", "sites.scores=mean", "algorithm.name=fedavg", *FORMS[form])
    here = Job(consortium, tmp_path / "job", settings, made)
    loop = OnTask(here)
    loop.run()
    record, last = here.record, here.record.metrics[-1]
    assert last.metric == name
    assert last.clients == {}
    same_as_union(last.pooled, on_union(here.folder / "run", made, name))
    assert last.pooled.pooling is (PooledBy.HISTOGRAM if name == "auc" else PooledBy.SUMS)
    sent = [entry for entry in record.ledger if entry.name == SCORE_MEAN and entry.sender in NAMES]
    assert {entry.form for entry in sent} == {"ciphertext" if here.sealed else "plaintext"}
    assert not [entry for entry in record.ledger if entry.name in SCORES]
    if not here.sealed:
        simulated = read_run(here.simulated()).metrics[-1]
        assert simulated.pooled.value == pytest.approx(last.pooled.value, abs=1e-12)
        assert simulated.pooled.within == pytest.approx(last.pooled.within, abs=1e-12)
        assert simulated.score == pytest.approx(last.score, rel=1e-6)
    else:
        rows = [json.loads(line) for line in here.openings.read_text().splitlines()]
        opened = [one for one in rows if one["name"] == SCORE_MEAN]
        assert all(one["signers"] == list(NAMES) and not one["refused"] for one in opened)


def test_sites_that_have_no_value_are_in_no_mean_and_their_samples_in_the_union(
    consortium, tmp_path
):
    """One class alone has no AUC at its site."""
    made = task(without=0)
    settings = ("run.metric=auc", "sites.scores=mean", "algorithm.name=fedavg", *SEALED)
    here = Job(consortium, tmp_path / "job", settings, made)
    loop = OnTask(here)
    loop.run()
    last = here.record.metrics[-1]
    assert any("eve: AUC none, loss" in line for line in loop.said)
    assert any(f"over all samples {last.pooled.value:.3f} ± " in line for line in loop.said)
    simulated = read_run(here.simulated()).metrics[-1]
    assert math.isnan(simulated.clients["eve"].score)
    others = [of.score for name, of in simulated.clients.items() if name != "eve"]
    assert simulated.score == pytest.approx(sum(others) / len(others))


def test_where_all_agree_each_is_read_a_site_without_a_value_too(consortium, tmp_path):
    settings = ("run.metric=auc", "sites.scores=each", "algorithm.name=fedavg")
    here = Job(consortium, tmp_path / "job", settings, task(without=0))
    loop = OnTask(here)
    loop.run()
    last = here.record.metrics[-1]
    assert last.clients.keys() == set(NAMES)
    assert math.isnan(last.clients["eve"].score)
    same_as_union(last.pooled, on_union(here.folder / "run", task(without=0), "auc"))
    known = {name: of.score for name, of in last.clients.items() if name != "eve"}
    worst = min(known, key=known.get)
    words = f"worst {worst} with {known[worst]:.3f}, no AUC at eve$"
    assert loop.has_said(f"Round 2/2: AUC over all samples .*, {words}")


def middle(outputs, targets):
    """Return a function of one's own, which no sums give."""
    return float((outputs.argmax(1) - targets).double().median())


def test_a_function_of_ones_own_is_weighted_by_samples_and_named_so(consortium, tmp_path):
    here = Job(
        consortium,
        tmp_path / "job",
        ("sites.scores=mean", "algorithm.name=fedavg", *SEALED),
        task(middle),
    )
    loop = OnTask(here)
    loop.run()
    last, simulated = here.record.metrics[-1], read_run(here.simulated()).metrics[-1]
    sizes = [len(y) for _, y in task().client_tests]
    own = [simulated.clients[name].score for name in NAMES]
    wanted = sum(n * of for n, of in zip(sizes, own, strict=True)) / sum(sizes)
    assert simulated.pooled.value == pytest.approx(wanted, abs=1e-12)
    assert last.pooled.pooling is simulated.pooled.pooling is PooledBy.MEAN
    assert loop.has_said("Round 2/2: middle weighted by samples ")


@pytest.mark.parametrize("n_clients", [1, 3, 1000])
def test_sums_in_parts_are_exact_through_single_precision(n_clients):
    """As a channel in the clear has them; of either sign and of any size below 2^40."""
    rng = torch.Generator().manual_seed(n_clients)
    sums = torch.randn(n_clients, 30, generator=rng, dtype=torch.float64)
    sums = (sums * 10 ** torch.linspace(-6, 11, 30)).clamp(-(2.0**39), 2.0**39)
    sums = (sums * 2**40).round() / 2**40
    parts = torch.stack([in_parts(of) for of in sums])
    assert torch.equal(parts.float().double(), parts)
    assert float(parts.abs().max()) <= 8192
    wanted = [math.fsum(column) for column in sums.T.tolist()]
    assert joined(parts.mean(dim=0), n_clients).tolist() == pytest.approx(wanted, rel=1e-15)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 2.0**40, -(2.0**40)])
def test_sums_out_of_range_are_refused(wrong):
    with pytest.raises(ValueRefused, match=r"must be a number within ±2\^40"):
        in_parts(torch.tensor([1.0, wrong]))


def scored(*values, metric="auc"):
    return [
        RoundMetrics(i, None, 1.0, 0.1, 0, (), 0.0, metric=metric, score=value)
        for i, value in enumerate(values, 1)
    ]


def test_the_best_round_is_the_first_of_the_best_value():
    assert best_of(scored(0.5, 0.9, 0.7, 0.9)).round == 2
    assert best_of(scored(math.nan, 0.3, 0.1, metric="calibration-error")).round == 3
    assert best_of(scored(math.nan)) is None
    assert best_of([]) is None
    assert best_of(scored(-5.0, -7.0, metric="own")).round == 1


def test_a_run_keeps_the_model_of_its_best_round(tmp_path):
    """Its value is found again by that model; the last round's is another."""
    made, out = task(), tmp_path / "run"
    settings = securefl.load_config(
        None,
        [*IN_ONE, "run.rounds=6", "run.metric=macro-f1", "algorithm.name=fedavg", "train.lr=1"],
    )
    result = securefl.run(settings, made, out=out)
    best = read_run(out).best
    assert result.best == best
    assert best.compared == max(m.pooled.value for m in result.metrics)
    (out / MODEL).write_bytes((out / BEST).read_bytes())
    assert on_union(out, made, "macro-f1") == pytest.approx(best.pooled.value, abs=1e-12)


def test_a_metric_is_named_once():
    settings = [*IN_ONE, "run.metric=auc", "run.rounds=1", "algorithm.name=fedavg"]
    with pytest.raises(ConfigError, match="the task has the metric middle: leave one"):
        securefl.run(securefl.load_config(None, settings), task(middle))


def test_a_function_that_settings_name_scores_as_the_same_in_a_task(tmp_path, monkeypatch):
    """By `module:function`, once it is allowed; its errors have none of its words."""
    monkeypatch.setattr(allowed_code, "_ALLOWED", set())
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "strange_metric.py").write_text(
        "def middle(o, t): return float((o.argmax(1) - t).double().median())\n"
        "def failing(outputs, targets): raise KeyError('Smith')\n"
    )
    path = tmp_path / "job.toml"
    path.write_text('[run]\nmetric = "strange_metric:middle"\n')
    settings = [*IN_ONE, "run.rounds=1", "algorithm.name=fedavg"]
    config = securefl.load_config(path, settings)
    with pytest.raises(ConfigError, match="allow it with securefl --code strange_metric:middle"):
        securefl.run(config, task())
    assert "strange_metric" not in sys.modules
    securefl.allow_code("strange_metric:middle")
    by_name = securefl.run(config, task(), out=tmp_path / "run")
    assert by_name.metric == "strange_metric:middle"
    by_object = securefl.run(securefl.load_config(None, settings), task(middle))
    assert by_name.metrics[-1].pooled == by_object.metrics[-1].pooled
    assert by_name.score == by_object.score
    failing = securefl.load_config(None, [*settings, "run.metric=strange_metric:failing"])
    with pytest.raises(DataError, match=r"raised a KeyError: mend it; it is called with all") as no:
        securefl.run(failing, task())
    assert "Smith" not in str(no.value)
    allowed_code._ALLOWED.clear()  # who reads the folder runs none of it
    assert read_run(tmp_path / "run").metrics[-1].score == by_name.score


def test_a_wrong_metric_is_refused_by_what_targets_are():
    names = 'data.names=["a", "b", "c"]'
    form = [names, 'samples.columns=["x"]', "samples.most=10"]
    with pytest.raises(ConfigError, match=r'targets are numbers: take "r2", or leave it out'):
        securefl.load_config(None, [*form, "run.metric=auc"])
    classes = 'samples.classes=["no", "yes"]'
    with pytest.raises(ConfigError, match=r'targets are classes: take "accuracy", .*"auc"'):
        securefl.load_config(None, [*form, classes, "run.metric=c-index"])


def test_a_wrong_metric_is_refused_before_torch_is_loaded():
    script = (
        "import sys\nfrom securefl.settings.load import load_config\n"
        "try:\n    load_config(None, ['run.metric=auroc'])\n"
        "except ValueError:\n    print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
