"""What a selector goes by, by client and round (Wu et al., FedProf, Fig. 7).

Array names end with their axes: K clients, T rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import matplotlib as mpl
import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from securefl.report.census import by_quality, clients
from securefl.report.drawing import MAX_NAMES, by_round
from securefl.runs.folder_reader import RunRecord

MEASURED = {"afl": "mean loss", "fedprof": "divergence"}
"""What of a client is measured, by selector."""


def scores_figure(record: RunRecord) -> Figure | None:
    """A heat map of FedProf's λ, or of what another selector measures; None where nothing is.

    A client keeps its last score in the rounds that have none of it, and is grey before the first.
    """
    rows = [each.scores for each in record.participants]
    label = "score λ"
    if not any(rows):
        rows = [each.measured for each in record.participants]
        label = MEASURED.get(record.config.selection.name, "measured")
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
    """Each client's last value in each round; NaN before its first."""
    last = dict.fromkeys(names, math.nan)
    columns = []
    for row in rows:
        last |= row
        columns.append([last[name] for name in names])
    return np.array(columns, dtype=np.float64).T


def _label_rows(axes: Axes, groups: Mapping[str | None, Sequence[str]]) -> None:
    """Qualities where they are known, with lines between them; else names where there is room."""
    names = [client for group in groups.values() for client in group]
    if set(groups) == {None}:
        shown = len(names) <= MAX_NAMES
        axes.set_yticks(range(len(names)) if shown else [], names if shown else [])
        axes.set_ylabel("" if shown else f"{len(names)} clients")
        return
    ends = np.cumsum([len(group) for group in groups.values()])
    starts = [0, *ends[:-1]]
    middles = [(start + end - 1) / 2 for start, end in zip(starts, ends, strict=True)]
    axes.set_yticks(middles, [quality or "quality unknown" for quality in groups])
    axes.hlines(ends[:-1] - 0.5, *axes.get_xlim(), colors="white")
