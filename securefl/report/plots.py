"""Plots of a run as PNG bytes: scores, traffic, cost, selections (FedProf, Figs. 6 and 7).

Array names end with their axes: K clients, T rounds.
"""

import io
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from securefl.federation.ledger import MEBIBYTE, Entry, Ledger
from securefl.io.text import printable
from securefl.metrics.by_name import SHARES, title
from securefl.report.census import (
    KNOWN,
    by_quality,
    clients,
    hours,
    most_selected_first,
    times_selected,
    watt_hours,
)
from securefl.runs.folder_reader import RunRecord
from securefl.runs.round_metrics import RoundMetrics

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#7f7f7f", "#cc79a7", "#56b4e9", "#e69f00")
"""Palette of Okabe and Ito, which colour-blind readers can tell apart."""
BLUE, VERMILLION, GREEN, GREY, PURPLE, SKY, ORANGE = COLOURS
STYLES = ("-", "--", "-.", ":")
MAX_NAMES = 30
"""Number of clients whose names there is room for on an axis."""


def bare(axes: Axes) -> None:
    """Leave out the frame above and to the right, and draw a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)


def by_round(axes: Axes) -> None:
    """Label the horizontal axis with rounds, which are whole."""
    axes.set(xlabel="round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def plain(name: str) -> str:
    """Return a name from outside as text that Matplotlib shows: no formula, and not hidden."""
    shown = printable(name).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown  # a legend leaves out labels with a _


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG file's content."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def score_plot(runs: Mapping[str, Sequence[RoundMetrics]]) -> bytes:
    """Plot test score (accuracies in %) and test loss by round, a line for each run."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    score, loss = figure.subplots(1, 2)
    draw_scores(score, runs)
    for i, metrics in enumerate(runs.values()):
        loss.plot([m.round for m in metrics], [m.loss for m in metrics], **_line(i))
    loss.set(ylabel="test loss", yscale="log")
    bare(loss)
    by_round(loss)
    return png(figure)


def draw_scores(axes: Axes, runs: Mapping[str, Sequence[RoundMetrics]]) -> None:
    """Draw the test score by round, a line for each run."""
    for i, (name, metrics) in enumerate(runs.items()):
        axes.plot([m.round for m in metrics], plotted(metrics), label=plain(name), **_line(i))
    label_scores(axes, runs)
    bare(axes)
    by_round(axes)
    axes.legend(frameon=False, loc="lower right")


def _line(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % len(COLOURS)], "ls": STYLES[i % len(STYLES)], "lw": 1.6}


def plotted(metrics: Sequence[RoundMetrics]) -> list[float]:
    """Return the score by which rounds are compared, of each; in % where it is an accuracy."""
    return [100 * m.compared if m.metric in SHARES else m.compared for m in metrics]


def label_scores(axes: Axes, runs: Mapping[str, Sequence[RoundMetrics]]) -> None:
    """Name the axis of `plotted` values by the metrics that the runs have."""
    metrics = dict.fromkeys(m.metric for rounds in runs.values() for m in rounds)
    names = [f"{title(name)} (%)" if name in SHARES else title(name) for name in metrics]
    axes.set_ylabel(plain(f"test {', '.join(names)}"))
    if metrics.keys() <= SHARES:
        axes.set_ylim(0, 100)


def by_client_figure(metrics: Sequence[RoundMetrics]) -> Figure:
    """Plot the clients' median score by round, between the lowest and the highest of any."""
    rows = [[of.score for of in m.clients.values() if not math.isnan(of.score)] for m in metrics]
    known = [(m.round, sorted(row)) for m, row in zip(metrics, rows, strict=True) if row]
    factor = 100 if metrics[-1].metric in SHARES else 1
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes, rounds = figure.subplots(), [number for number, _ in known]
    low, high = ([factor * row[at] for _, row in known] for at in (0, -1))
    axes.fill_between(rounds, low, high, color=BLUE, alpha=0.2, lw=0)
    axes.plot(rounds, [factor * float(np.median(row)) for _, row in known], color=BLUE)
    label_scores(axes, {"": metrics})
    bare(axes)
    by_round(axes)
    return figure


def epsilon_plot(metrics: Sequence[RoundMetrics]) -> bytes:
    """Plot ε spent by round; rounds in which nothing bounds it are left out."""
    spent = [(m.round, m.epsilon) for m in metrics if m.epsilon is not None]
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*spent, strict=True), color=VERMILLION)
    axes.set(ylabel="ε spent")
    bare(axes)
    by_round(axes)
    return png(figure)


def traffic_figure(entries: Sequence[Entry]) -> Figure:
    """Plot MiB sent in the whole run, by what was sent and in which form."""
    sums = Ledger(list(entries)).bytes_by_kind()
    labels = [plain(f"{kind}, {form}") for kind, form in sums]
    figure = Figure(figsize=(8, 1.2 + 0.45 * len(sums)), layout="constrained")
    axes = figure.subplots()
    colours = [COLOURS[2] if form == "ciphertext" else COLOURS[1] for _, form in sums]
    bars = axes.barh(labels, [n / MEBIBYTE for n in sums.values()], color=colours)
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.set(xlabel="MiB in the whole run, all parties")
    axes.margins(x=0.12)
    bare(axes)
    return figure


def cost_figure(runs: Mapping[str, Sequence[RoundMetrics]]) -> Figure | None:
    """Plot test score (accuracies in %) by simulated hours and by Wh, a line for each run.

    None where a run has no devices.
    """
    figure = Figure(figsize=(10, 4), layout="constrained")
    by_time, by_energy = figure.subplots(1, 2, sharey=True)
    for i, (name, metrics) in enumerate(runs.items()):
        time_h, energy_wh = hours(metrics), watt_hours(metrics)
        if time_h is None or energy_wh is None:
            return None
        score, line = plotted(metrics), _line(i)
        by_time.plot(time_h, score, label=plain(name), **line)
        by_energy.plot(energy_wh, score, **line)
    by_time.set(xlabel="simulated hours")
    label_scores(by_time, runs)
    by_energy.set(xlabel="energy of all devices (Wh)")
    for axes in (by_time, by_energy):
        bare(axes)
    by_time.legend(frameon=False, loc="lower right")
    return figure


PALETTE: dict[str | None, str] = dict(
    zip(KNOWN, (GREEN, VERMILLION, BLUE, ORANGE, PURPLE, SKY), strict=True)
)


def selections_figure(record: RunRecord) -> Figure:
    """Plot a bar for each client, sorted by quality and count; a colour for each quality."""
    counts, groups = times_selected(record), most_selected_first(record)
    n_clients = sum(map(len, groups.values()))
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    left, colours = 0, _colours(groups)
    for quality, names in groups.items():
        places = range(left, left + len(names))
        heights = [counts[client] for client in names]
        label = plain(quality or "quality unknown")
        axes.bar(places, heights, color=colours[quality], label=label)
        left += len(names)
    rounds = len(record.participants)
    axes.set(ylabel=f"times selected in {rounds} round{'s' if rounds != 1 else ''}")
    if n_clients <= MAX_NAMES:
        names = [plain(client) for group in groups.values() for client in group]
        axes.set_xticks(range(n_clients), names, rotation=90)
    else:
        axes.set(xlabel=f"{n_clients} clients", xticks=[])
    axes.margins(x=0.01)
    bare(axes)
    if record.qualities:
        figure.legend(frameon=False, loc="outside upper center", ncols=len(groups))
    return figure


def _colours(qualities: Collection[str | None]) -> dict[str | None, str]:
    """Return colours: the same in every picture, but for names that a user's own task gives."""
    own = [quality for quality in qualities if quality and quality not in PALETTE]
    spare = [colour for colour in COLOURS if colour not in map(PALETTE.get, qualities)]
    given = {quality: spare[i % len(spare)] for i, quality in enumerate(own)}
    return {None: GREY} | PALETTE | given


def scores_figure(record: RunRecord) -> Figure | None:
    """Plot a heat map of FedProf's λ, or of another selector's measurement; None without one.

    A client keeps its last score in the rounds that have none of it, and is grey before the first.
    """
    rows = [each.scores for each in record.participants]
    label = "score λ"
    if not any(rows):
        rows = [each.measured for each in record.participants]
        label = plain(record.config.selection.measured or "measured")
    if not any(rows):
        return None
    groups = by_quality(clients(record), record)
    names = [client for group in groups.values() for client in group]
    figure = Figure(figsize=(10, min(6, 1.5 + 0.15 * len(names))), layout="constrained")
    axes = figure.subplots()
    rounds = [each.round for each in record.participants]
    image = axes.imshow(
        np.ma.masked_invalid(carried_forward(names, rows)),
        aspect="auto",
        interpolation="nearest",
        vmin=0,
        cmap=mpl.colormaps["viridis"].with_extremes(bad="0.85"),
        extent=(rounds[0] - 0.5, rounds[-1] + 0.5, len(names) - 0.5, -0.5),
    )
    by_round(axes)
    _label_rows(axes, groups)
    figure.colorbar(image, label=label)
    return figure


def carried_forward(
    names: Sequence[str], rows: Iterable[Mapping[str, float]]
) -> Float64[np.ndarray, "K T"]:
    """Return each client's last value in each round; NaN before its first."""
    last = dict.fromkeys(names, math.nan)
    columns = []
    for row in rows:
        last |= row
        columns.append([last[name] for name in names])
    return np.array(columns, dtype=np.float64).T


def _label_rows(axes: Axes, groups: Mapping[str | None, Sequence[str]]) -> None:
    """Label rows by quality where known, with lines between; else by name where there is room."""
    names = [plain(client) for group in groups.values() for client in group]
    if set(groups) == {None}:
        shown = len(names) <= MAX_NAMES
        axes.set_yticks(range(len(names)) if shown else [], names if shown else [])
        axes.set_ylabel("" if shown else f"{len(names)} clients")
        return
    ends = np.cumsum([len(group) for group in groups.values()])
    starts = [0, *ends[:-1]]
    middles = [(start + end - 1) / 2 for start, end in zip(starts, ends, strict=True)]
    axes.set_yticks(middles, [plain(quality or "quality unknown") for quality in groups])
    axes.hlines(ends[:-1] - 0.5, *axes.get_xlim(), colors="white")
