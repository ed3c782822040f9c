"""UCI's gas turbine files become standardised readings, or an error that says what to put where."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from sklearn.metrics import r2_score

import securefl
from securefl.data import gas_turbine
from securefl.data.gas_turbine import INPUTS, TARGETS, YEARS, load_gas_turbine
from securefl.data.public import carve_public
from securefl.errors import ConfigError, DataError
from securefl.runs.folder_files import is_finished
from securefl.settings.load import load_config
from securefl.task import configured_task
from securefl_cli.main import main

pytestmark = pytest.mark.shapes

HEADER = ",".join((*INPUTS, *TARGETS))


def rows(year, n=40):
    """Hours whose columns differ in mean and deviation; AP is the hour's own number."""
    values = np.random.default_rng(year).normal(size=(n, 11)) * np.arange(1, 12) + 100
    values[:, 1] = year * 1000 + np.arange(n)
    return values


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Five years of forty hours, which are none of the published ones."""
    monkeypatch.setattr(gas_turbine, "SIZES", {})
    for year in YEARS:
        lines = [HEADER, *(",".join(f"{v:.6f}" for v in row) for row in rows(year))]
        (tmp_path / f"gt_{year}.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_seven_tenths_train_standardised(folder):
    """Mean 0 and deviation 1 of what trains; readings and emissions stay together."""
    data = load_gas_turbine(folder, 1, torch.float64)
    assert (data.train_x.shape, data.train_y.shape) == ((140, 9), (140, 2))
    assert (data.test_x.shape, data.test_y.shape) == ((60, 9), (60, 2))
    for part in (data.train_x, data.train_y):
        assert part.mean(dim=0).abs().max() < 1e-9
        torch.testing.assert_close(
            part.std(dim=0, correction=0), torch.ones(part.shape[1]).double()
        )
    whole = np.concatenate([rows(year) for year in YEARS])
    hours = whole[np.argsort(whole[:, 1])]
    both = torch.cat(
        [torch.cat([data.train_x, data.train_y], 1), torch.cat([data.test_x, data.test_y], 1)]
    )
    both = both[both[:, 1].argsort()].numpy()
    for column in range(11):
        assert np.corrcoef(both[:, column], hours[:, column])[0, 1] > 1 - 1e-9


def test_the_seed_decides_what_is_held_out(folder):
    """The same seed gives the same hours."""
    one, again, other = (load_gas_turbine(folder, seed) for seed in (1, 1, 2))
    assert torch.equal(one.test_x, again.test_x)
    assert not torch.equal(one.test_x, other.test_x)


def test_a_missing_file_says_what_to_put_where(folder):
    """By name, with the data set's own."""
    (folder / "gt_2013.csv").unlink()
    with pytest.raises(DataError, match=r"gt_2013\.csv: no such file; put gt_2011\.csv to gt_2015"):
        load_gas_turbine(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEADER.replace("TEY,CDP", "CDP,TEY") + "\n1,2\n", "its columns are AT, .*expected AT,AP"),
        (HEADER + "\n", "no line below"),
        (HEADER, "no line below"),
        (HEADER + "\n" + ",".join("1" * 10) + "\n", "10 numbers"),
        (HEADER + "\n" + ",".join(["1"] * 10 + ["nan"]) + "\n", "not finite"),
        (HEADER + "\n" + ",".join(["1"] * 10 + ["x"]) + "\n", "could not convert"),
        (HEADER + "\n1,2\n1,2,3\n", "number of columns"),
        ("", "its columns are"),
    ],
)
def test_another_file_is_refused(folder, content, message):
    """Columns are checked by name, values one by one."""
    (folder / "gt_2012.csv").write_text(content)
    with pytest.raises(DataError, match=f"gt_2012.csv: .*{message}"):
        load_gas_turbine(folder)


def test_bytes_that_are_no_text_are_refused(folder):
    """A spreadsheet, say."""
    (folder / "gt_2012.csv").write_bytes(b"PK\x03\x04\xff\xfe")
    with pytest.raises(DataError, match="is no text"):
        load_gas_turbine(folder)


def test_a_column_that_never_changes_is_refused(folder):
    """It cannot be standardised."""
    line = ",".join(["7"] * 11)
    for year in YEARS:
        (folder / f"gt_{year}.csv").write_text(f"{HEADER}\n{line}\n{line}\n")
    with pytest.raises(DataError, match="a column that never changes"):
        load_gas_turbine(folder)


# From the settings to a run


def settings_of(folder, *more):
    return [
        "data.dataset=gas-turbine",
        f"data.root='{folder}'",
        "data.clients=10",
        "data.partition=sizes:0.2",
        "train.lr=0.05",
        "run.rounds=3",
        *more,
    ]


def task_of(*more):
    return configured_task(load_config(settings=more))


def test_ten_sensors_get_the_readings_at_their_qualities(folder):
    """FedProf's task: polluted and noisy sensors of unequal size, two emissions to predict."""
    quality = "data.quality={polluted=0.1, noisy=0.4}"
    clean, task = (task_of(*settings_of(folder, *more)) for more in ([], [quality]))
    assert sorted(task.qualities) == ["noisy"] * 4 + ["normal"] * 5 + ["polluted"]
    sizes = [len(y) for _, y in task.clients]
    assert sum(sizes) == 140
    assert len(set(sizes)) > 2
    for (x, y), (before, targets), quality in zip(
        task.clients, clean.clients, task.qualities, strict=True
    ):
        assert torch.equal(x, before) == (quality == "normal")
        assert torch.equal(y, targets)
        assert task.model(x).shape == y.shape
    data = load_gas_turbine(folder, 0)
    assert torch.equal(task.test[0], data.test_x)
    assert torch.equal(task.test[1], data.test_y)


def test_public_readings_are_nobodys(folder):
    """Twenty hours of FedProf's server, without regard to their targets."""
    task = task_of(*settings_of(folder, "selection.name=fedprof", "data.public=20"))
    hours = torch.cat([task.public[0], task.test[0], *(x for x, _ in task.clients)])
    assert len(task.public[1]) == 20
    assert len(hours.unique(dim=0)) == 200


@pytest.mark.parametrize("n_public", [2, 138])
def test_public_readings_leave_some_to_train_on(folder, n_public):
    """Two of each at least, as batch normalisation needs."""
    data = load_gas_turbine(folder).as_split()
    public, rest = carve_public(data, n_public, 0)
    assert (len(public[1]), len(rest.train_y)) == (n_public, 140 - n_public)
    for wrong in (1, 139):
        with pytest.raises(DataError, match=f"{wrong} public .* a double: take 2 to 138"):
            carve_public(data, wrong, 0)


def test_a_run_is_scored_by_r_squared(folder, tmp_path):
    """By FedTAN with encrypted statistics; its folder scores alike, and so does the CLI.

    It is called R² everywhere, and accuracy nowhere.
    """
    run_folder = tmp_path / "run"
    result = securefl.run(load_config(settings=settings_of(folder)), out=run_folder)
    x, y = configured_task(result.config).test
    with torch.no_grad():
        expected = r2_score(y.double().numpy(), result.model.eval()(x).double().numpy())
    assert (result.metric, result.score) == ("r2", pytest.approx(expected, abs=1e-6))
    with pytest.raises(ConfigError, match="there is no accuracy: the metric is R²"):
        _ = result.accuracy
    last = json.loads((run_folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["accuracy"], last["metric"], last["score"]) == (None, "r2", result.score)
    assert {"score.png", "traffic.png"} < {path.name for path in run_folder.iterdir()}
    assert not (run_folder / "accuracy.png").exists()
    assert is_finished(run_folder)
    for model in (result, run_folder):
        assert securefl.evaluate(model, (x, y)).value == pytest.approx(expected, abs=1e-6)
    shown = CliRunner().invoke(main, ["evaluate", str(run_folder), "--adapt-bn", "0.9"])
    assert shown.exit_code == 0, shown.output
    assert f"{expected:.3f}" in shown.output
    compared = CliRunner().invoke(
        main, ["compare", str(run_folder), "--out", str(tmp_path / "plot.png")]
    )
    for output in (shown.output, compared.output):
        assert "R²" in output
        assert "ccuracy" not in output
    np.savez(tmp_path / "classes.npz", x=x.numpy(), y=np.zeros(len(x), dtype=np.int64))
    named = CliRunner().invoke(
        main, ["evaluate", str(run_folder), "--data", f"{tmp_path}/classes.npz"]
    )
    assert "holds classes, and this run's targets are numbers" in named.output


def test_a_linear_relation_is_learnt(folder):
    """Of emissions that hang on the readings, nearly all variance is explained."""
    for year in YEARS:
        values = rows(year)
        values[:, 9:] = values[:, [0, 5]] * [2, -3] + values[:, [2, 7]]
        lines = [HEADER, *(",".join(f"{v:.6f}" for v in row) for row in values)]
        (folder / f"gt_{year}.csv").write_text("\n".join(lines) + "\n")
    more = ["run.rounds=60", "data.clients=3", "data.partition=iid", "exchange.encrypt=none"]
    assert securefl.run(load_config(settings=settings_of(folder, *more))).score > 0.8


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["data.partition=classes:2"], r'"classes:2" .* numbers .*; set "iid", or "sizes:0\.2"'),
        (["data.partition=quantity:0.5"], "have no class to be dealt by"),
        (["data.quality={blurred=0.1, noisy=0.1}"], "blurred is of images, .*polluted or noisy"),
        (["data.corruptions=['fog']"], "corruptions are of images, and these are readings"),
        (["model.name=cnn"], 'readings are no images; set model.name = "mlp"'),
        (["fnr.name=matched"], 'FNR-FL compares feature norms class by class, .*fnr.name = "none"'),
        (["data.leave_out=noise"], "are alike"),
    ],
)
def test_what_classes_or_images_alone_have_is_refused(more, message):
    """Before anything is read, with the way out."""
    with pytest.raises(ConfigError, match=message):
        load_config(settings=settings_of("nowhere", *more))
