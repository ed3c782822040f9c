"""Gas Turbine CO and NOx Emission Data Set (Kaya, Tüfekci & Uzun 2019; UCI), from local files.

Hourly readings of nine sensors of a power plant's gas turbine, and what left its flue.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from securefl.data.files import check_sizes, locate, read
from securefl.data.split import Split
from securefl.errors import DataError
from securefl.settings.data import DataTable

INPUTS = ("AT", "AP", "AH", "AFDP", "GTEP", "TIT", "TAT", "TEY", "CDP")
TARGETS = ("CO", "NOX")
YEARS = range(2011, 2016)
SIZES: Mapping[str, tuple[int, int]] = MappingProxyType({"gas-turbine": (25_713, 11_020)})
"""Hours that train and that test."""
TEST_SHARE = 0.3
"""Share of readings that test: 11.0k of 36.7k (FedProf, Table 2)."""

_MAX_BYTES = 1 << 24  # the largest of the five has half a megabyte
_SOURCE = "gt_2011.csv to gt_2015.csv of UCI's Gas Turbine CO and NOx Emission Data Set (id 551)"


# Two splits are compared by identity: tensors have no single truth value to compare by.
@dataclass(frozen=True, slots=True, eq=False)
class Emissions:
    """Readings and emissions, each standardised by its mean and deviation over `train`."""

    train_x: Float[Tensor, "train 9"]
    train_y: Float[Tensor, "train 2"]
    test_x: Float[Tensor, "test 9"]
    test_y: Float[Tensor, "test 2"]
    target_std: Float[Tensor, " 2"]
    """Unit of y, in mg/m³."""

    def as_split(self) -> Split:
        """Return the same without its units."""
        return Split(self.train_x, self.train_y, self.test_x, self.test_y)


def read_gas_turbine(data: DataTable, seed: int) -> Split:
    """Return readings and emissions.

    Raises:
        DataError: as `load_gas_turbine`, or there is another number of hours.
    """
    split = load_gas_turbine(data.folder, seed, torch.float64).as_split()
    check_sizes(data.folder, {"gas-turbine": split.sizes}, SIZES)
    return split


def load_gas_turbine(
    root: str | Path, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Emissions:
    """Load all five years in random order; three tenths are held out for testing.

    Args:
        root: holds gt_2011.csv to gt_2015.csv.
        seed: chooses the hours that are held out.
        dtype: of readings and emissions alike.

    Raises:
        DataError: a file is missing or is another one; the message says what to put where.
    """
    names = [f"gt_{year}.csv" for year in YEARS]
    paths = [locate(Path(root), (name, f"pp_gas_emission/{name}"), _SOURCE) for name in names]
    rows = np.concatenate([_rows(path) for path in paths])
    rows = rows[np.random.default_rng(seed).permutation(len(rows))]
    n_test = round(TEST_SHARE * len(rows))
    train, test = rows[n_test:], rows[:n_test]
    mean, std = train.mean(axis=0), train.std(axis=0)
    if not (n_test and std.all()):
        raise DataError(f"{root}: {len(rows)} hours with a column that never changes")
    parts = [torch.tensor((part - mean) / std, dtype=dtype) for part in (train, test)]
    n = len(INPUTS)
    (train_x, train_y), (test_x, test_y) = ((p[:, :n], p[:, n:]) for p in parts)
    return Emissions(train_x, train_y, test_x, test_y, torch.tensor(std[n:], dtype=dtype))


def _rows(path: Path) -> Float64[np.ndarray, "n 11"]:
    columns = (*INPUTS, *TARGETS)
    try:
        text = read(path, _MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is no text; get the file again") from error
    header, _, body = text.partition("\n")
    found = tuple(name.strip().strip('"') for name in header.split(","))
    if found != columns:
        raise DataError(f"{path}: its columns are {', '.join(found)}; expected {','.join(columns)}")
    if not body.strip():
        raise DataError(f"{path}: has no line below its header; get the file again")
    try:
        rows = np.loadtxt(io.StringIO(body), delimiter=",", ndmin=2, comments=None)
    except ValueError as error:
        raise DataError(f"{path}: {error}; get the file again") from error
    if rows.shape[1] != len(columns) or not np.isfinite(rows).all():
        raise DataError(
            f"{path}: lines of {rows.shape[1]} numbers, or one that is not finite; expected "
            f"{len(columns)} finite ones"
        )
    return rows
