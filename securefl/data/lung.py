"""Survival with advanced lung cancer, by institution (NCCTG; Loprinzi et al. 1994).

228 patients of 18 institutions; seven readings each, the days under observation, and death.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from securefl.data.catalogue import DATA_SETS
from securefl.data.files import Domains, check_numbers, read
from securefl.data.packages import locate_packaged
from securefl.data.split import Split
from securefl.data.tables import parse_csv
from securefl.settings.data import DataTable
from securefl.settings.samples import SamplesTable

SHA256 = "f486d3b14b9e9d1b197e59e1a000958cfca97d92f4103f0c6c81a81ba3f967b0"
"""Digest of all patients as 64-bit floats: it does not matter who wrote the file."""
SCALES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "age": (60, 10),
        "sex": (1, 1),  # 1 for men, 2 for women
        "ph.ecog": (1, 1),
        "ph.karno": (80, 10),
        "pat.karno": (80, 10),
        "meal.cal": (1000, 500),
        "wt.loss": (10, 10),
    }
)
"""Zero and unit of each reading, which need no patient: years, ECOG's and Karnofsky's scores,
calories at meals, and pounds lost in six months."""
MISSING = ("ph.ecog", "ph.karno", "pat.karno", "meal.cal", "wt.loss")
"""Readings that some patients lack."""
INSTITUTIONS = {name: int(name.rpartition("-")[2]) for name in DATA_SETS["lung"].domains}
"""Number of each that is a client."""
TOO_SMALL = 33
"""Number of the institution that has two patients, and none left to test on."""
TEST_SHARE = 1 / 3
"""Share of an institution's patients that test, two at least: one makes no pair."""

_MAX_BYTES = 1 << 20  # the file has 9 kB
_N_PATIENTS = 228
_FORM = SamplesTable(
    columns=("inst", *SCALES),
    missing=("inst", *MISSING),
    target="time",
    event="status",
    most=_N_PATIENTS,
)

Rows = Float64[Tensor, "n _"]


def read_lung(data: DataTable, seed: int) -> Domains:
    """Return the patients by institution, of each a third to test on; the seed chooses which.

    x (n, 12) has seven readings by public zeros and units, so that no institution learns or tells
    anything for it, and five indicators: a reading that is missing is 0, and has a 1 beside it. y
    is (days, 1 for death). The patient without an institution is left out, and the institution that
    has two.

    Raises:
        DataError: the package is missing, or its file is damaged or another one.
    """
    path = locate_packaged(*data.traits.packaged)
    x, y = parse_csv(read(path, _MAX_BYTES), path, _FORM)
    check_numbers(path, torch.cat([x, y], dim=1), SHA256)
    institution, readings = x[:, 0], _scaled(x[:, 1 : 1 + len(SCALES)], x[:, -len(MISSING) :])
    domains = {}
    for name, number in INSTITUTIONS.items():
        own = institution == number
        domains[name] = _divided(readings[own], y[own], (seed, number))
    return domains


def _scaled(x: Rows, missing: Rows) -> Rows:
    zero, unit = torch.tensor(list(SCALES.values()), dtype=x.dtype).T
    scaled = (x - zero) / unit
    places = [list(SCALES).index(name) for name in MISSING]
    scaled[:, places] *= 1 - missing
    return torch.cat([scaled, missing], dim=1)


def _divided(x: Rows, y: Rows, seed: tuple[int, int]) -> Split:
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
    n_test = max(2, round(TEST_SHARE * len(y)))
    test, train = order[:n_test], order[n_test:]
    return Split(x[train], y[train], x[test], y[test])
