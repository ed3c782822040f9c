"""The recipes that come with SecureFL: each one runs, and prints what its paper printed."""

from __future__ import annotations

import re
import statistics

import pytest

from securefl.build.job import planned_spending
from securefl.privacy.accountants import epsilon
from securefl.recipes.recipe import load_recipe
from securefl.task import configured_task
from securefl_cli.reproduce import SCALES, shipped_recipes

NAMES = sorted(shipped_recipes("paper"))
OURS = ["batch-size", "cures", "fedprof", "fnr", "momentum", "privacy", "privacy-releases"]
"""Tables at digits scale that no paper has."""
OF_ITS_OWN = [
    "azpro",
    "digits-4-sources-cnn",
    "digits-4-sources-cnn-unseen",
    "digits-by-source",
    "digits-by-source-cnn",
    "digits-by-source-cnn-unseen",
    "fashion-mnist",
    "heart",
    "lung",
    "mnist-5000",
    "opt",
]
"""Tables on data that were collected apart, or are larger than the digits, which no paper has."""
PAPER_ALONE = ["fedprof-table3", "fedprof-table5"]
"""Other data sets under the rows of fedprof-table4."""
FAMILIES = {"noise (%)": 3, "blur (%)": 4, "weather (%)": 3, "digital (%)": 5}
"""Clients of each of Table III's columns."""


def recipe(name, scale):
    return load_recipe(shipped_recipes(scale)[name])


def means(name, scale):
    """Each row's printed mean over all clients, in order."""
    table = recipe(name, scale)
    rows = {row: [] for row in table.rows}
    for cell in table.cells:
        rows[cell.row] += [cell.printed.mean] * FAMILIES.get(cell.column, 1)
    return [statistics.mean(values) for values in rows.values()]


def test_each_table_has_both_scales():
    """What there is at paper scale runs on the digits, too, but for two of FedProf's tables."""
    assert sorted(shipped_recipes("natural")) == OF_ITS_OWN
    assert sorted([*shipped_recipes("digits"), *PAPER_ALONE]) == sorted([*NAMES, *OURS])
    names = {"fedtan", "fixbn", "unifed", "fedprof", "fnr"}
    assert {name.split("-")[0] for name in NAMES} == names


@pytest.mark.parametrize(
    ("name", "scale"), [(name, scale) for scale in SCALES for name in shipped_recipes(scale)]
)
def test_all_settings_of_a_recipe_go_together(name, scale):
    """Every cell of every table is a run that SecureFL knows how to start."""
    table = recipe(name, scale)
    assert table.seeds in ({5, 10} if scale == "digits" else {1, 3, 5})
    for cell in table.cells:
        config = cell.config(seed=1)
        assert not config.exchange.encrypt or "encrypted" in cell.row
        assert (config.data.dataset == "digits") == (scale == "digits")
        assert (config.data.dataset in name) == (scale == "natural")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in PAPER_ALONE])
def test_both_scales_have_the_same_rows_and_printed_values(name):
    """Digits stand beside the paper's own numbers; only figures' columns are cut to size."""
    paper, digits = (recipe(name, scale) for scale in ("paper", "digits"))
    assert len(paper.rows) == len(digits.rows)
    printed = [[cell.printed for cell in table.cells if cell.printed] for table in (paper, digits)]
    assert printed[0] == printed[1]
    assert printed[0] or "figure" in name


@pytest.mark.parametrize("scale", ["digits", "paper"])
@pytest.mark.parametrize(
    ("name", "gains"),
    [
        ("unifed-table2", [3.54, 3.19, 3.41, 3.55, 3.84, 3.49, 3.06, 1.31]),
        ("unifed-table3", [9.62, 8.30, 9.72, 9.71, 7.21, 10.60, 8.79, 8.54, 3.90]),
    ],
)
def test_unifeds_values_give_the_gains_that_it_prints(name, scale, gains):
    """A row with client-specific BN lies above the row before it by the paper's own difference."""
    rows = means(name, scale)
    found = [ours - base for base, ours in zip(rows[::2], rows[1::2], strict=True)]
    assert found == pytest.approx(gains, abs=0.011)


def test_fedtans_tables_agree_where_they_print_the_same():
    """Table 2's runs with momentum are Table 1's, and FixBN's Table 5 quotes them."""
    one, two = (recipe(name, "paper") for name in ("fedtan-table1", "fedtan-table2"))
    quoted = recipe("fixbn-table5", "paper")

    def fedtan(table):
        return [cell.printed.mean for cell in table.cells if cell.row == "FedTAN"]

    assert fedtan(one) == fedtan(two)[2:] == fedtan(quoted)[1:] == [91.26, 87.66]


def printed(number):
    """A table of FedProf's: its printed means by row, then by the column's first word."""
    table = recipe(f"fedprof-table{number}", "paper")
    rows = {row: {} for row in table.rows}
    for cell in table.cells:
        if cell.printed:
            rows[cell.row][cell.column.split()[0]] = cell.printed.mean
    return rows


def test_fedprofs_values_give_the_gains_that_it_prints():
    """Up to 1.8, 1.7 and 6.8 points; 2.1 and 2.4 times faster; 58.9 % and 64.4 % less energy."""
    tables = {number: printed(number) for number in (3, 4, 5)}
    pairs = (("FedAvg, full", "FedProf, full"), ("FedAvg-RP", "FedProf, partial"))
    gains = {
        number: max(rows[ours]["best"] - rows[base]["best"] for base, ours in pairs)
        for number, rows in tables.items()
    }
    assert gains == pytest.approx({3: 1.8, 4: 1.7, 5: 6.8})
    cifar, ours = tables[5], tables[5]["FedProf, partial"]
    gas = tables[3]
    speed_up = gas["FedAvg, full"]["minutes"] / gas["FedProf, full"]["minutes"]
    assert round(speed_up, 1) == 2.1
    assert round(cifar["FedAvg-RP"]["minutes"] / ours["minutes"], 1) == 2.4
    saved = [1 - ours["Wh"] / cifar[row]["Wh"] for row in ("FedAvg-RP", "FedADAM")]
    assert [round(100 * share, 1) for share in saved] == [58.9, 64.4]
    assert round(100 * (1 - ours["minutes"] / cifar["FedADAM"]["minutes"]), 1) == 65.7


def test_afl_does_not_reach_the_target_that_fedprof_prints_for_cifar_10():
    """The paper has dashes there."""
    assert printed(5)["AFL"] == {"best": 59.9}


@pytest.mark.parametrize(
    ("name", "scale"),
    [(name, scale) for scale in SCALES for name in shipped_recipes(scale) if "fnr" in name],
)
def test_all_rows_of_fnrs_tables_leave_the_public_samples_out(name, scale):
    """FedAvg's clients have the samples that FNR-FL's have, and no more."""
    cells = recipe(name, scale).cells
    assert len({cell.config(seed=0).data.public for cell in cells}) == 1
    assert all(cell.tables["data"]["public"] for cell in cells)


@pytest.mark.parametrize("name", ["privacy", "privacy-releases"])
def test_each_row_spends_the_epsilon_that_the_table_says(name):
    """Its σ, with all its releases counted, give that ε or less, and a thousandth less at most."""
    spent = {}
    for cell in recipe(name, "digits").cells:
        named = re.search(r"ε = ([0-9]+)", f"{cell.row} {cell.column}")
        if named:
            config = cell.config(seed=0)
            assert config.privacy.noise == "seeded"
            spending = planned_spending(config, configured_task(config))(config.privacy.sigma)
            events = spending.history(config.run.rounds).events(spending.level)
            spent[cell.row] = epsilon(events, config.privacy.delta) / int(named[1])
    assert len(spent) == {"privacy": 7, "privacy-releases": 5}[name]
    assert all(0.999 <= share <= 1 for share in spent.values()), spent
