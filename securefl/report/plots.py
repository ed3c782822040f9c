"""Plots as PNG bytes: accuracy and loss by round, and traffic by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from securefl.report.drawing import COLOURS, STYLES, bare, by_round, png
from securefl.roles.ledger import MEBIBYTE, Entry, Ledger
from securefl.runrecord import RoundMetrics


def accuracy_plot(runs: Mapping[str, Sequence[RoundMetrics]]) -> bytes:
    """Test accuracy (in %) and test loss by round, a line for each run."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    accuracy, loss = figure.subplots(1, 2)
    for i, (name, metrics) in enumerate(runs.items()):
        rounds = [m.round for m in metrics]
        line = {"color": COLOURS[i % len(COLOURS)], "ls": STYLES[i % len(STYLES)], "lw": 1.6}
        accuracy.plot(rounds, [100 * m.accuracy for m in metrics], label=name, **line)
        loss.plot(rounds, [m.loss for m in metrics], **line)
    accuracy.set(ylabel="test accuracy (%)", ylim=(0, 100))
    loss.set(ylabel="test loss", yscale="log")
    for axes in (accuracy, loss):
        bare(axes)
        by_round(axes)
    accuracy.legend(frameon=False, loc="lower right")
    return png(figure)


def traffic_plot(entries: Sequence[Entry]) -> bytes:
    """MiB sent in the whole run, by what was sent and in which form."""
    sums = Ledger(list(entries)).bytes_by_kind()
    labels = [f"{kind}, {form}" for kind, form in sums]
    figure = Figure(figsize=(8, 1.2 + 0.45 * len(sums)), layout="constrained")
    axes = figure.subplots()
    colours = [COLOURS[2] if form == "ciphertext" else COLOURS[1] for _, form in sums]
    bars = axes.barh(labels, [n / MEBIBYTE for n in sums.values()], color=colours)
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.set(xlabel="MiB in the whole run, all parties")
    axes.margins(x=0.12)
    bare(axes)
    return png(figure)
