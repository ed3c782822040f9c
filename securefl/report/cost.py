"""The score against what it costs on simulated devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from securefl.report.clock import hours, watt_hours
from securefl.report.drawing import COLOURS, STYLES, bare
from securefl.report.plots import label_scores, plotted
from securefl.runs.folder_reader import RoundMetrics


def cost_figure(runs: Mapping[str, Sequence[RoundMetrics]]) -> Figure | None:
    """Test score (accuracies in %) by simulated hours and by Wh, a line for each run.

    None where a run has no devices.
    """
    figure = Figure(figsize=(10, 4), layout="constrained")
    by_time, by_energy = figure.subplots(1, 2, sharey=True)
    for i, (name, metrics) in enumerate(runs.items()):
        time_h, energy_wh = hours(metrics), watt_hours(metrics)
        if time_h is None or energy_wh is None:
            return None
        score = plotted(metrics)
        line = {"color": COLOURS[i % len(COLOURS)], "ls": STYLES[i % len(STYLES)], "lw": 1.6}
        by_time.plot(time_h, score, label=name, **line)
        by_energy.plot(energy_wh, score, **line)
    by_time.set(xlabel="simulated hours")
    label_scores(by_time, runs)
    by_energy.set(xlabel="energy of all devices (Wh)")
    for axes in (by_time, by_energy):
        bare(axes)
    by_time.legend(frameon=False, loc="lower right")
    return figure
