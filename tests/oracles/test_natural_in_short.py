"""The tables on data collected apart, in short, by the recipes' own settings.

docs/results/natural.md has them whole, with five seeds. For what no registry has (Fashion-MNIST's
files, OpenCV's picture) scikit-learn's digits stand in the same form.
"""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch
from PIL import Image
from shortened import shortened
from sklearn import datasets
from standard_files import idx
from torch.nn import functional

import securefl
from securefl.data import digits_by_source, mnist, packages
from securefl.data.catalogue import DATA_SETS

HEART, DIGITS = (
    pytest.mark.skipif(
        packages.find_packaged(DATA_SETS[name].packaged) is None, reason=f"{name} is not installed"
    )
    for name in ("heart", "mnist-5000")
)
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
def test_a_sources_own_bn_helps_the_cnn(tmp_path, monkeypatch):
    """With equal weights, of three sources of which one is seen darkly, in few rounds."""
    monkeypatch.setattr(digits_by_source, "OPENCV_SHA256", "")
    x, y = upscaled(20)
    cells = np.concatenate([np.resize(255 - x[y == digit], (500, 20, 20)) for digit in range(10)])
    grid = cells.reshape(50, 100, 20, 20).swapaxes(1, 2).reshape(1000, 2000)
    Image.fromarray(grid).save(tmp_path / "digits.png")
    rows = ("FedAvg, BN, equal weights", "FedBN, equal weights")
    fedavg, fedbn = (run("digits-by-source-cnn", row, 2, tmp_path).accuracy for row in rows)
    assert fedbn > fedavg + 0.05
