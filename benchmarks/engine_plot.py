"""Lines over two logarithmic axes, as a PNG."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from securefl.report.plots import COLOURS, STYLES, bare, png


def curves(lines: Mapping[str, Mapping[int, float]], x: str, y: str) -> bytes:
    """Draw a line for each name; `x` and `y` name the axes."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for i, (name, line) in enumerate(lines.items()):
        style = STYLES[i // len(COLOURS) % len(STYLES)]
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(list(line), list(line.values()), style, color=colour, marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    axes.legend(frameon=False)
    bare(axes)
    return png(figure)
