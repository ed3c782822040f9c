"""Accuracy against sealed bytes of a reproduced table, as a plot.

securefl reproduce mnist-5000 --scale natural
python docs/sealed_bytes.py runs/mnist-5000-natural sealed-bytes.png

A curve is a row with a cell of the quantity `sealed-megabytes-to-target`. Each of its points is a
round: ciphertext that clients had sent by then, and the best test accuracy by then, both means over
the seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter

from securefl.recipes.figures import RunFigures
from securefl.report.plots import COLOURS, STYLES, bare, png

QUANTITY = "sealed-megabytes-to-target"
SHOWN = 20
"""Points below the target that are in the picture."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Means over a row's seeds, by round."""

    megabytes: list[float]
    """Ciphertext that clients had sent, in MiB."""
    accuracy: list[float]
    """Best test accuracy so far, in %."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Curves of a table, by row, in its order."""

    target: float
    """Test accuracy in % that the table asks for."""
    by_row: dict[str, Curve]


def curves(folder: Path) -> Curves:
    """Return the curves of a table's folder, less rows with a run that diverged."""
    cells = json.loads((folder / "results.json").read_text())["cells"]
    asked = [cell for cell in cells if cell["measure"]["quantity"] == QUANTITY]
    if not asked:
        raise SystemExit(f"{folder}: no cell of this table is of the quantity {QUANTITY}")
    found = {
        cell["row"]: _curve([RunFigures(folder / run) for run in cell["runs"]])
        for cell in asked
        if "diverged" not in cell["values"]
    }
    return Curves(asked[0]["measure"]["target"], found)


def figure(found: Curves) -> Figure:
    """Draw accuracy against MiB on a logarithmic axis, with a line at the target."""
    drawn = Figure(figsize=(8, 4.5), layout="constrained")
    axes = drawn.subplots()
    for i, (name, curve) in enumerate(found.by_row.items()):
        axes.plot(
            curve.megabytes,
            curve.accuracy,
            color=COLOURS[i % len(COLOURS)],
            ls=STYLES[i % len(STYLES)],
            lw=1.4,
            label=name.removesuffix(", encrypted"),
        )
    axes.axhline(found.target, color="black", lw=0.8, label="target")
    axes.set(
        xlabel="ciphertext that all clients had sent (MiB)",
        ylabel="best test accuracy so far (%)",
        xscale="log",
        xlim=(_first_shown(found), None),
        ylim=(found.target - SHOWN, found.target + 3),
    )
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    bare(axes)
    axes.legend(frameon=False, loc="lower right", fontsize="small")
    return drawn


def _first_shown(found: Curves) -> float:
    """Return the MiB at which the first curve comes into the picture."""
    return min(
        mebibytes
        for curve in found.by_row.values()
        for mebibytes, accuracy in zip(curve.megabytes, curve.accuracy, strict=True)
        if accuracy >= found.target - SHOWN
    )


def _curve(runs: list[RunFigures]) -> Curve:
    return Curve(
        _means([run.sealed_megabytes for run in runs]),
        _means([list(accumulate(run.scores, max)) for run in runs]),
    )


def _means(by_run: list[list[float]]) -> list[float]:
    return [statistics.mean(values) for values in zip(*by_run, strict=True)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("picture", type=Path, help="the plot's PNG file")
    args = parser.parse_args()
    args.picture.write_bytes(png(figure(curves(args.folder))))
