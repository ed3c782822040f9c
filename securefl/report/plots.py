"""Plots as PNG bytes: score and loss by round, and traffic by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from securefl.federation.ledger import MEBIBYTE, Entry, Ledger
from securefl.metrics import SHARES, title
from securefl.report.drawing import COLOURS, STYLES, bare, by_round, png
from securefl.runs.folder_reader import RoundMetrics


def score_plot(runs: Mapping[str, Sequence[RoundMetrics]]) -> bytes:
    """Test score (accuracies in %) and test loss by round, a line for each run."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    score, loss = figure.subplots(1, 2)
    for i, (name, metrics) in enumerate(runs.items()):
        rounds = [m.round for m in metrics]
        line = {"color": COLOURS[i % len(COLOURS)], "ls": STYLES[i % len(STYLES)], "lw": 1.6}
        score.plot(rounds, plotted(metrics), label=name, **line)
        loss.plot(rounds, [m.loss for m in metrics], **line)
    label_scores(score, runs)
    loss.set(ylabel="test loss", yscale="log")
    for axes in (score, loss):
        bare(axes)
        by_round(axes)
    score.legend(frameon=False, loc="lower right")
    return png(figure)


def plotted(metrics: Sequence[RoundMetrics]) -> list[float]:
    """The score of each round, in % where it is an accuracy."""
    return [100 * m.score if m.metric in SHARES else m.score for m in metrics]


def label_scores(axes: Axes, runs: Mapping[str, Sequence[RoundMetrics]]) -> None:
    """Name the axis of `plotted` values by the metrics that the runs have."""
    metrics = dict.fromkeys(m.metric for rounds in runs.values() for m in rounds)
    names = [f"{title(name)} (%)" if name in SHARES else title(name) for name in metrics]
    axes.set_ylabel(f"test {', '.join(names)}")
    if metrics.keys() <= SHARES:
        axes.set_ylim(0, 100)


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
