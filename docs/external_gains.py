"""Gain of test-time BN over all external clients, as Markdown, from a reproduced UniFed table.

securefl reproduce unifed-table3 && python docs/external_gains.py runs/unifed-table3-digits
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from securefl.runs.folder_reader import read_config
from securefl.task import configured_task

ADAPTED = " + UniFed"


def means(folder: Path) -> dict[str, float]:
    """Return accuracy in % by row: the mean over the external clients of all columns."""
    sums: dict[str, float] = {}
    clients: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for cell in json.loads((folder / "results.json").read_text())["cells"]:
        row, column = cell["row"], cell["column"]
        if column not in sizes:  # as many clients are left out in every row
            config = read_config(folder / cell["runs"][0])
            sizes[column] = len(configured_task(config).external)
        sums[row] = sums.get(row, 0.0) + cell["mean"] * sizes[column]
        clients[row] = clients.get(row, 0) + sizes[column]
    return {row: total / clients[row] for row, total in sums.items()}


def page(folder: Path) -> str:
    """Return pairs of rows, NAME and NAME + UniFed; every other row by itself."""
    found = means(folder)
    lines = ["| | global statistics | adapted | gain |", "| --- | --: | --: | --: |"]
    for row, before in found.items():
        after = found.get(row + ADAPTED)
        if after is not None:
            lines.append(f"| {row} | {before:.2f} | {after:.2f} | {after - before:+.2f} |")
        elif not row.endswith(ADAPTED):
            lines.append(f"| {row} | {before:.2f} | | |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(Path(sys.argv[1])))
