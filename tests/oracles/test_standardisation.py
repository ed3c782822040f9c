"""Columns of sites' tables are standardised by all sites' samples before the first step."""

import csv
import shutil

import numpy as np
import pytest
import torch

import securefl
from securefl.algorithms.standardisation import CLIENTS, SUM, VARIANCE
from securefl.build.own_data import task_of_sites
from securefl.errors import ConfigError
from securefl.norms.standardised_input import find_standardised
from securefl.runs.folder_reader import read_run

SIZES = {"north": 17, "south": 5, "east": 30, "west": 8}
SUMS = (CLIENTS, SUM, VARIANCE)
COLUMNS = ("year", "dose", "unknown", "same", "smokes")
FORM = (
    'samples.columns=["year", "dose", "unknown", "same", "smokes"]',
    'samples.levels={smokes = ["no", "yes"]}',
    'samples.missing=["dose", "unknown", "smokes"]',
    *("samples.target=ill", 'samples.classes=["no", "yes"]', "samples.most=64"),
    'data.names=["north", "south", "east", "west"]',
    *("run.rounds=2", "algorithm.local_steps=2", "train.lr=0.1", "model.dtype=float64"),
    *("algorithm.name=fedavg", "exchange.encrypt=none"),
)
PLACES = {"year": 0, "dose": 1, "unknown": 2, "same": 3}
DOSE_MISSES = 6


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Four tables of other sizes and means; a third of doses and all of one column are missing."""
    folder = tmp_path_factory.mktemp("standardised")
    rng = np.random.default_rng(0)
    found = {}
    for place, (name, n) in enumerate(SIZES.items()):
        own = folder / name
        own.mkdir()
        with (own / "own.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow([*COLUMNS, "ill"])
            for i in range(n):
                dose = "" if i % 3 == 0 else f"{rng.normal(4 + 3 * place, 2):.3f}"
                year = 2000 + 5 * place + rng.integers(9)
                rows.writerow([year, dose, "", 7, ("no", "yes")[i % 2], ("no", "yes")[i // 2 % 2]])
        (own / "test.csv").write_bytes((own / "own.csv").read_bytes())
        (own / "site.toml").write_text('train = "own.csv"\ntest = "test.csv"\n')
        found[name] = own / "site.toml"
    return found


def ran(sites, *settings, **how):
    """Return the task and the result of a rehearsal."""
    config = securefl.load_config(None, [*FORM, *settings])
    task = task_of_sites(config, sites)
    return task, securefl.run(config, task, **how)


def pooled(data):
    """Return mean and deviation of each column of numbers, by hand; 0 and 1 where there is none."""
    x = torch.cat([x for x, _ in data]).double()
    mean, deviation = torch.zeros(x.shape[1]).double(), torch.ones(x.shape[1]).double()
    there = x[:, DOSE_MISSES] == 0
    for name, kept in (("year", there | True), ("dose", there)):
        mean[PLACES[name]] = x[kept, PLACES[name]].mean()
        deviation[PLACES[name]] = x[kept, PLACES[name]].std(correction=0)
    mean[PLACES["same"]] = 7
    return mean, deviation


def standard(result, own=None):
    """Return mean and deviation of the model's first layer, or of a client's own."""
    _, layer = find_standardised(result.client_models[own] if own else result.model)
    return layer.input_mean_C, layer.input_deviation_C


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("algorithm.name=fedbn", "algorithm.weights=uniform"),
        ("algorithm.name=fedtan", "algorithm.weights=batch"),
        ("algorithm.name=hbn", "run.engine=sequential"),
        ("selection.name=random", "selection.fraction=0.5", "solver.name=scaffold"),
    ],
)
def test_mean_and_deviation_are_those_of_all_samples(sites, settings):
    """In 64 bits, whatever clients weigh, whoever is selected, and where BN is a client's own."""
    task, result = ran(sites, *settings)
    for found, wanted in zip(standard(result), pooled(task.clients), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    sums = [e for e in result.ledger.entries if e.name in SUMS and e.sender in SIZES]
    assert [(e.round, e.sender) for e in sums] == [(1, name) for name in 3 * [*SIZES]]


def test_who_trains_alone_standardises_by_its_own_samples(sites):
    task, result = ran(sites, "algorithm.name=singlenet")
    for name, data in zip(SIZES, task.clients, strict=True):
        for found, wanted in zip(standard(result, name), pooled([data]), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert not [e for e in result.ledger.entries if e.name in SUMS]


def test_sealed_the_server_has_totals_alone_once_each(sites, key_set, tmp_path):
    """The authority opens one of clients, of sums and of squares; nothing later moves them."""
    sealed = ("exchange.encrypt=statistics", "run.rounds=3", "model.dtype=float32")
    task, result = ran(sites, *sealed, keys=key_set, out=tmp_path / "run")
    for found, wanted in zip(standard(result), pooled(task.clients), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)
    entries = [e for e in result.ledger.entries if e.name in SUMS]
    assert {e.form for e in entries if e.sender in SIZES} == {"ciphertext"}
    opened = [(o.round, o.name) for o in result.openings if o.name in SUMS]
    assert opened == [(1, name) for name in SUMS]
    # Evaluation of the folder, and a run that goes on, have the same.
    record = read_run(tmp_path / "run")
    assert record.metrics[-1].loss == result.metrics[-1].loss
    found = securefl.evaluate(result, task.client_tests[0])
    assert found.loss == pytest.approx(result.clients["north"].loss, rel=1e-6)


def test_a_run_that_goes_on_does_not_measure_again(sites, tmp_path):
    """From the checkpoint of the first round, to the bit."""
    _, whole = ran(sites)
    config = securefl.load_config(None, FORM)
    task = task_of_sites(config, sites)

    def stop(metrics):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        securefl.run(config, task, out=tmp_path / "run", on_round=stop)
    result = securefl.resume(tmp_path / "run", task)
    wanted = whole.model.state_dict()
    assert all(torch.equal(v, wanted[n]) for n, v in result.model.state_dict().items())
    assert not [e for e in result.ledger.entries if e.name == SUM and e.round > 1]


def test_side_by_side_clients_train_as_one_after_the_other(sites):
    _, one = ran(sites, "run.engine=sequential")
    _, other = ran(sites, "run.engine=vectorised")
    torch.testing.assert_close(one.model.state_dict(), other.model.state_dict())


def test_a_missing_number_is_the_mean_and_words_stay(sites):
    """So is each number of a column that nobody has; one that is constant keeps its unit."""
    task, result = ran(sites)
    _, layer = find_standardised(result.model)
    x = task.clients[0][0]
    mean, deviation = pooled(task.clients)
    wanted = (x - mean) / deviation
    wanted[x[:, DOSE_MISSES] == 1, PLACES["dose"]] = 0
    torch.testing.assert_close(layer(x), wanted)
    assert not layer(x)[:, [PLACES["unknown"], PLACES["same"]]].any()
    assert torch.equal(layer(x)[:, 4:], x[:, 4:])


@pytest.mark.parametrize("n_sites", [1, 2, 3])
def test_no_total_is_of_a_column_that_fewer_than_three_sites_have(
    sites, key_set, tmp_path, n_sites
):
    """The one value of one patient would stand in the model, for all to read."""
    values = dict(zip(SIZES, (4.27, -3.0, 1.5), strict=False))
    own = {name: tmp_path / name / "site.toml" for name in SIZES}
    for name, path in own.items():
        shutil.copytree(sites[name].parent, path.parent)
    for name in [*SIZES][:n_sites]:
        table = own[name].parent / "own.csv"
        head, first, *others = table.read_text().splitlines()
        cells = first.split(",")
        cells[COLUMNS.index("unknown")] = str(values[name])
        table.write_text("\n".join([head, ",".join(cells), *others]))
    _, result = ran(own, "exchange.encrypt=statistics", keys=key_set)
    mean, deviation = (tensor[PLACES["unknown"]].item() for tensor in standard(result))
    known = np.array([*values.values()])
    wanted = (0, 1) if n_sites < 3 else (known.mean(), known.std())
    assert (mean, deviation) == pytest.approx(wanted, abs=1e-5)


def test_of_words_alone_nothing_is_measured(sites):
    """No column of numbers is there."""
    words = ('samples.columns=["smokes"]', 'samples.missing=["smokes"]')
    _, result = ran(sites, *words)
    assert not [e for e in result.ledger.entries if e.name == SUM]


@pytest.mark.parametrize("level", ["client:sigma=1", "record:sigma=1,records=20"])
def test_under_differential_privacy_no_exact_sums_are_sent(level):
    """Their ε would be infinite."""
    kind, _, rest = level.partition(":")
    own = [f"privacy.{pair}" for pair in rest.split(",")]
    with pytest.raises(ConfigError, match=r"set samples\.standardise = false"):
        securefl.load_config(None, [*FORM, f"privacy.level={kind}", *own])
