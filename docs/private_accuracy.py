"""Accuracy against ε of a reproduced table, as Markdown and as a plot.

securefl reproduce privacy && python docs/private_accuracy.py runs/privacy-digits privacy.png

It reads the rows whose names end in `, ε = 3` or `, ε = ∞`; a curve is what such names begin with.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from securefl.report.plots import COLOURS, STYLES, bare, png

ROW = re.compile(r"(.+), ε = ([0-9.]+|∞)")
STEP = 2.5
"""Place of ∞ on the axis, as a multiple of the largest finite ε."""


@dataclass(frozen=True, slots=True)
class Point:
    """Accuracy in %, over the seeds."""

    mean: float
    std: float


Curves = Mapping[str, Mapping[float, Point]]
"""Points by ε, by the curve's name."""


def curves(folder: Path) -> Curves:
    """Return curves in the table's order, less rows without ε or with a run without value."""
    found: dict[str, dict[float, Point]] = {}
    for cell in json.loads((folder / "results.json").read_text())["cells"]:
        named = ROW.fullmatch(cell["row"])
        if named and not any(isinstance(value, str) for value in cell["values"]):
            epsilon = inf if named[2] == "∞" else float(named[2])
            found.setdefault(named[1], {})[epsilon] = Point(cell["mean"], cell["std"] or 0.0)
    if not found:
        raise SystemExit(f"{folder}: no row of this table ends in `, ε = 3` or the like")
    return found


def page(found: Curves) -> str:
    """Return a line for each curve, a column for each ε."""
    all_epsilon = _all_epsilon(found)
    lines = [
        ["accuracy (%)", *(f"ε = {_shown(epsilon)}" for epsilon in all_epsilon)],
        ["---", *["--:"] * len(all_epsilon)],
    ]
    for name, points in found.items():
        lines.append([name, *(_text(points.get(epsilon)) for epsilon in all_epsilon)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def figure(found: Curves) -> Figure:
    """Draw mean and standard deviation by ε on a logarithmic axis, with ∞ at its right end."""
    drawn = Figure(figsize=(6, 4), layout="constrained")
    axes = drawn.subplots()
    all_epsilon = _all_epsilon(found)
    beyond = STEP * max((epsilon for epsilon in all_epsilon if epsilon < inf), default=1.0)
    for i, (name, points) in enumerate(found.items()):
        shift = 1 + 0.02 * i  # so that no bar hides another
        axes.errorbar(
            [shift * min(epsilon, beyond) for epsilon in sorted(points)],
            [points[epsilon].mean for epsilon in sorted(points)],
            [points[epsilon].std for epsilon in sorted(points)],
            color=COLOURS[i % len(COLOURS)],
            ls=STYLES[i % len(STYLES)],
            marker="o",
            capsize=3,
            label=name,
        )
    axes.set(xlabel="ε of one record", ylabel="test accuracy (%), mean ± std", xscale="log")
    _tick(axes, all_epsilon, beyond)
    bare(axes)
    axes.legend(frameon=False, loc="lower right")
    return drawn


def _tick(axes: Axes, all_epsilon: list[float], beyond: float) -> None:
    places = [min(epsilon, beyond) for epsilon in all_epsilon]
    axes.set_xticks(places, [_shown(epsilon) for epsilon in all_epsilon])
    axes.set_xticks([], minor=True)


def _all_epsilon(found: Curves) -> list[float]:
    return sorted({epsilon for points in found.values() for epsilon in points})


def _shown(epsilon: float) -> str:
    return "∞" if epsilon == inf else f"{epsilon:g}"


def _text(point: Point | None) -> str:
    return f"{point.mean:.2f} ± {point.std:.2f}" if point else ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("picture", type=Path, help="the plot's PNG file")
    args = parser.parse_args()
    found = curves(args.folder)
    args.picture.write_bytes(png(figure(found)))
    sys.stdout.write(page(found))
