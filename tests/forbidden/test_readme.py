"""README and docs/simulations.md promise no command that fails, and no number that no page has."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from pathlib import Path

import click
import pytest
from parsed_command import parsed

from securefl.settings.axes import AXES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SIMULATIONS = (ROOT / "docs/simulations.md").read_text()


def blocks(page):
    return re.findall(r"^```\w*\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def commands(page):
    lines = [line for block in blocks(page) for line in block.splitlines()]
    return [shlex.split(of, comments=True)[1:] for of in lines if of.startswith("securefl ")]


COMMANDS = {"README": commands(README), "simulations": commands(SIMULATIONS)}
PARTIES = ("server", "authority", "site")
"""Commands that each party of a consortium runs."""
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
WRITTEN = {"out", "plot", "init directory", "request names", "track folder"}
"""Parameters that name what a command makes; by the command where others read by that name."""


def paths(context):
    """What a command writes, and what it reads."""
    written, read = set(), set()
    for parameter in context.command.params:
        names = {parameter.name, f"{context.command.name} {parameter.name}"}
        makes = bool(names & WRITTEN)
        if makes or isinstance(parameter.type, click.Path):
            value = context.params[parameter.name]
            values = value if isinstance(value, tuple) else (value,)
            (written if makes else read).update(Path(v) for v in values if v not in {None, Path()})
    return written, read


def test_there_are_commands():
    """The tests below look at something."""
    assert len(COMMANDS["README"]) == 5
    assert len(COMMANDS["simulations"]) > 20


def test_a_consortiums_three_lines_are_those_of_the_page_of_processes():
    """Whose keys and settings that page makes."""
    there = (ROOT / "docs/processes.md").read_text().splitlines()
    lines = [line for block in blocks(README) for line in block.splitlines()]
    three = [line for line in lines if line.split()[1:2] and line.split()[1] in PARTIES]
    assert [line in there for line in three] == [True] * 3


@pytest.mark.parametrize("page", COMMANDS)
def test_what_a_command_reads_an_earlier_one_has_written(page):
    """In a fresh checkout all work in the order they stand in, and none writes what is there."""
    made: set[Path] = set()
    for arguments in (of for of in COMMANDS[page] if of[0] not in PARTIES):
        written, read = paths(parsed(arguments))
        for path in read:
            there = (ROOT / path).exists() or made & {path, *path.parents}
            assert there, f"{' '.join(arguments)}: nobody has written {path}"
        assert not written & made, f"{' '.join(arguments)}: is there already"
        made |= written


def test_axes_are_as_many_as_rows():
    """Of the table of algorithms."""
    (said,) = re.findall(r"## Choices\n(\w+) axes", SIMULATIONS)
    table = SIMULATIONS.split("| axis | setting | choices |\n")[1].split("\n\n")[0]
    assert len(table.splitlines()) - 1 == NUMBERS.index(said.lower())


OPEN = [axis for axis in AXES if axis.open_base]
AXES_BY_TABLE = pytest.mark.parametrize("axis", OPEN, ids=lambda axis: axis.table)


@AXES_BY_TABLE
def test_the_page_lists_the_choices_of_each_axis(axis):
    """All of ours, and no other."""
    row = next(line for line in SIMULATIONS.splitlines() if f"| `{axis.table}.name` |" in line)
    assert {*re.findall(r"`([\w-]+)`", row.split("|")[3])} == {*axis.own()}


@AXES_BY_TABLE
def test_the_example_lists_the_choices_of_each_axis(axis):
    """In the comment on the name, up to the comment on a key."""
    text = (ROOT / "examples/fedtan_digits.toml").read_text()
    first, *others = text.split(f"\n[{axis.table}]\n")[1].splitlines()
    beside = takewhile(lambda line: line.startswith(" ") and ":" not in line, others)
    listed = re.findall(r"[a-z][\w-]*", " ".join([first.removeprefix("name = "), *beside]))
    assert {*listed} - {"or"} == {*axis.own()}


def test_what_the_demo_prints_fits_80_columns():
    """As it is shown, a terminal of the usual width shows it."""
    (block,) = (block for block in blocks(SIMULATIONS) if "FedAvg + GN" in block)
    assert max(map(len, block.splitlines())) <= 80


def test_the_python_example_is_the_one_that_is_tested():
    """examples/own_model.py, which another test runs."""
    (block,) = (block for block in blocks(README) if block.startswith("import torch"))
    script = (ROOT / "examples/own_model.py").read_text().split('"""\n\n')[1]
    assert block == script.replace("  # noqa: T201", "")


PLAIN_README = " ".join(README.split())


def test_group_normalisation_is_answered_with_the_means_of_five_seeds():
    """Those of docs/results/cures.md, and the bytes of the demo."""
    first_table, *_ = (ROOT / "docs/results/cures.md").read_text().split("\n## ")
    rows = {
        cells[1].strip(): [float(n) for n in re.findall(r"[\d.]+", "".join(cells[2:4]))]
        for cells in (line.split("|") for line in first_table.splitlines())
        if len(cells) > 3
    }
    (gn, gn_std, *_), (tan, tan_std, *_) = (rows[name] for name in ("FedAvg, GN", "FedTAN"))
    means = f"{gn:.1f} ± {gn_std:.1f} %, FedTAN {tan:.1f} ± {tan_std:.1f} %"
    assert f"does as well for a seventh of the bytes: {means}" in PLAIN_README
    of_gn, of_tan = (
        float(re.findall(rf"^{re.escape(name)} .* ([\d.]+) +\d+ ", SIMULATIONS, re.MULTILINE)[0])
        for name in ("FedAvg + GN", "FedTAN,")
    )
    assert round(of_tan / of_gn) == 7


PLAIN = ("FedAvg, BN", "SingleNet", "centralised, BN")
OF_MLP = tuple(f"MLP, BN, {name}" for name in ("FedAvg", "each alone", "centralised"))
CURES = (
    *("FedTAN", "FixBN", "FedAvg, GN", "SiloBN", "FedBN", "BN-SCAFFOLD, SCAFFOLD", "FBN", "HBN"),
    *("FedWon", "FedPer", "FedAvg, Ditto"),
)
APART = {
    "heart disease": ("Heart disease", ("FedAvg, Ditto", *PLAIN)),
    "digits of 3 sources": (
        "Digits of three sources: a CNN",
        ("FedBN, equal weights", "FedAvg, BN, equal weights", *PLAIN[1:]),
    ),
    "lung cancer": ("Survival with lung cancer", ("MLP, BN, FedBN", *OF_MLP)),
    "days in 17 hospitals": ("Days in 17 hospitals", ("MLP, BN, FixBN", *OF_MLP)),
}
"""Section of docs/results/natural.md, and its rows, of each row of its table in short."""


def test_means_on_data_that_were_collected_apart_are_those_of_the_page():
    """Each is the first mean of its row on the page, with its deviation; no cure is better."""
    page = (ROOT / "docs/results/natural.md").read_text()
    table = page.split("| | our best cure |")[1].split("\n\n")[0].splitlines()[2:]
    assert len(table) == len(APART)
    gains = {}
    for line, (begin, (section, names)) in zip(table, APART.items(), strict=True):
        _, head, *cells, _ = (cell.strip() for cell in line.split("|"))
        assert head.startswith(begin)
        rows = page.split(f"\n## {section}")[1].split("\n## ")[0]
        found = {
            name: (float(mean), float(deviation))
            for name, mean, deviation in reversed(  # the first table of a section counts
                re.findall(r"\n\| (?:MLP, )?(?:BN, )?([^|]+) \| ([\d.]+) ± ([\d.]+)", rows)
            )
        }
        pairs = [found[name.removeprefix("MLP, BN, ")] for name in names]
        wanted = [f"{mean:.1f} ± {deviation:.1f}" for mean, deviation in pairs]
        assert [" ".join(cell.split()[-3:]) for cell in cells] == wanted
        (best, _), (averaged, _), (alone, _), _ = pairs
        assert max(found[name] for name in CURES if name in found)[0] <= best
        gains[best - averaged] = alone > best
    said = f"the best cure adds {min(gains):.1f} to {max(gains):.0f} points, and where it adds most"
    assert f"{said} each site alone is better" in PLAIN_README
    assert gains[max(gains)]


@pytest.mark.parametrize("page", ["README.md", "SECURITY.md"])
def test_a_hole_can_be_reported_in_private(page):
    """A reader finds how."""
    assert "security advisory" in " ".join((ROOT / page).read_text().split())
