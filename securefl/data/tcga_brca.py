"""Survival with breast cancer in six regions: FLamby's Fed-TCGA-BRCA, from local files.

1088 patients of The Cancer Genome Atlas, 39 readings each. Their choice, form and split are
FLamby's (Ogier du Terrail et al. 2022), who has the readings from Andreux et al. 2020.
"""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from securefl.data.files import Domains, locate, read
from securefl.data.split import Split
from securefl.errors import DataError
from securefl.settings.data import DataTable

REGIONS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "northeast": (248, 63),
        "south": (156, 40),
        "west": (164, 42),
        "midwest": (129, 33),
        "europe": (129, 33),
        "canada": (40, 11),
    }
)
"""Patients of each region that train and that test, in FLamby's order."""
N_READINGS = 39
AGE = (60, 10)
"""Zero and unit of the age, in years; all other readings are 0 or 1."""

_MAX_BYTES = 1 << 20  # the larger file has 113 kB
_SOURCE = "brca.csv and dataset_creation_scripts/train_test_split.csv of FLamby's fed_tcga_brca"
_PARTS = ("train", "test")


def read_tcga_brca(data: DataTable, _seed: int) -> Domains:
    """Return the patients by region; raises as `load_tcga_brca`."""
    return load_tcga_brca(data.folder)


def load_tcga_brca(root: str | Path) -> Mapping[str, Split]:
    """Load the patients by region, in the table's order, as FLamby divides them, in 64 bits.

    Readings are FLamby's, but for the age, which it has in years: here it counts tens of years from
    60, so that one learning rate serves all. A linear model is the same model, its coefficient of
    the age ten times as large.

    Args:
        root: holds brca.csv, and train_test_split.csv beside it or where FLamby has it.

    Returns splits of x (n, 39) and y (n, 2): days, and 1 for death. FLamby has them as (E, T).

    Raises:
        DataError: a file is missing, or is damaged or another one.
    """
    path = locate(Path(root), ("brca.csv",), _SOURCE)
    names = ("train_test_split.csv", "dataset_creation_scripts/train_test_split.csv")
    divided = locate(Path(root), names, _SOURCE)
    part_of = _parts(divided)
    header, rows = _rows(path)
    if (header[:2], header[-2:], len(header)) != (["pid", "age_at_index"], ["E", "T"], 42):
        raise DataError(
            f"{path}: {len(header)} columns, {header[0]} to {header[-1]}; expected pid, "
            f"age_at_index, {N_READINGS - 1} more readings, E and T"
        )
    x, y = _numbers(path, rows)
    place = np.array([part_of.get(row[0], "") for row in rows])
    if len({row[0] for row in rows}) != len(rows):
        raise DataError(f"{path}: has a patient twice; get the file again")
    domains = {}
    for region, (name, sizes) in enumerate(REGIONS.items()):
        train, test = (torch.from_numpy(np.flatnonzero(place == f"{p}_{region}")) for p in _PARTS)
        if (len(train), len(test)) != sizes:
            raise DataError(
                f"{divided}: {len(train)} + {len(test)} patients of {name} in {path.name}, the "
                f"data set has {sizes[0]} + {sizes[1]}; get both files again"
            )
        domains[name] = Split(x[train], y[train], x[test], y[test])
    return domains


def _parts(path: Path) -> Mapping[str, str]:
    """Return each patient's part: `train_0` to `test_5`."""
    header, rows = _rows(path)
    if header != ["pid", "fold", "fold2"]:
        raise DataError(f"{path}: its columns are {', '.join(header)}; expected pid,fold,fold2")
    return {pid: part for pid, _, part in rows}


def _rows(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        lines = csv.reader(io.StringIO(read(path, _MAX_BYTES).decode("utf-8-sig")), strict=True)
        header, *rows = [line for line in lines if line] or [[""]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: is no table of text ({error}); get the file again") from error
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise DataError(
                f"{path}: patient {number} has {len(row)} fields, and the first line {len(header)}"
            )
    return header, rows


def _numbers(path: Path, rows: list[list[str]]) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        found = np.array([row[1:] for row in rows], dtype=np.float64).reshape(-1, N_READINGS + 2)
    except ValueError as error:
        raise DataError(f"{path}: {error}; get the file again") from error
    binary = found[:, 1:-1]
    if not (np.isfinite(found).all() and np.isin(binary, (0, 1)).all()):
        raise DataError(f"{path}: a reading is neither 0 nor 1, or an age or time is no number")
    x, event, time = found[:, :N_READINGS].copy(), found[:, -2], found[:, -1]
    x[:, 0] = (x[:, 0] - AGE[0]) / AGE[1]
    return torch.from_numpy(x), torch.from_numpy(np.stack([time, event], axis=1))
