"""UCI's gas turbine files become standardised readings, or an error that says what to put where."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from securefl.data.gas_turbine import INPUTS, TARGETS, YEARS, load_gas_turbine
from securefl.errors import DataError

HEADER = ",".join((*INPUTS, *TARGETS))


def rows(year, n=40):
    """Hours whose columns differ in mean and deviation; AP is the hour's own number."""
    values = np.random.default_rng(year).normal(size=(n, 11)) * np.arange(1, 12) + 100
    values[:, 1] = year * 1000 + np.arange(n)
    return values


@pytest.fixture
def folder(tmp_path):
    """Five years of forty hours."""
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
