"""Gain of each row of a reproduced table on one of its rows, seed by seed, as Markdown.

securefl reproduce fedprof && python docs/paired_gains.py runs/fedprof-digits --base random

Where rounds select clients, also in how many of them both rows selected the same ones.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from securefl.runs.folder_files import SELECTIONS
from securefl.runs.folder_reader import read_rows
from securefl.selection.round_participants import RoundParticipants

Cell = Mapping[str, Any]
"""Cell of results.json: a row's values in a column, and its runs' folders, one for each seed."""


def page(folder: Path, base: str | None = None) -> str:
    """Return a line for each row but the base, which is the first row unless it is named."""
    found = {
        (cell["row"], cell["column"]): cell
        for cell in json.loads((folder / "results.json").read_text())["cells"]
        if cell["measure"]["quantity"].endswith(("accuracy", "score"))
    }
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*found, strict=True))
    base = base or rows[0]
    if base not in rows:
        raise SystemExit(f"--base {base!r}: no row of this table; it has {rows}")
    lines = [[f"gain on {base}", *columns], ["---", *["--:"] * len(columns)]]
    for row in rows:
        if row != base:
            pairs = [(found.get((row, column)), found.get((base, column))) for column in columns]
            lines.append([row, *(_compared(folder, *pair) for pair in pairs)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _compared(folder: Path, one: Cell | None, base: Cell | None) -> str:
    if one is None or base is None:
        return ""
    return _gain(one, base) + _same_clients(folder, one, base)


def _gain(one: Cell, base: Cell) -> str:
    """Return gains in points; of the seeds of which both runs have a value."""
    pairs = list(zip(one["values"], base["values"], strict=True))
    gains = [a - b for a, b in pairs if not isinstance(a, str) and not isinstance(b, str)]
    text = f"{mean(gains):+.2f}" if gains else "-"
    text += f" ± {stdev(gains):.2f}" if len(gains) > 1 else ""
    return text if len(gains) == len(pairs) else f"{text} ({len(gains)} of {len(pairs)} seeds)"


def _same_clients(folder: Path, one: Cell, base: Cell) -> str:
    """Return in how many rounds of a seed both runs selected the same clients, or nothing."""
    same = []
    for runs in zip(one["runs"], base["runs"], strict=True):
        rounds = (read_rows(folder / run / SELECTIONS, RoundParticipants) for run in runs)
        same += [a.selected == b.selected for a, b in zip(*rounds, strict=False)]
    return f"; same clients in {sum(same)} of {len(same)} rounds" if same else ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--base", metavar="ROW", help="the first row where absent")
    args = parser.parse_args()
    sys.stdout.write(page(args.folder, args.base))
