"""Accuracy against what it costs on simulated devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from securefl.report.clock import hours, watt_hours
from securefl.report.drawing import COLOURS, STYLES, bare
from securefl.runrecord import RoundMetrics


def cost_figure(runs: Mapping[str, Sequence[RoundMetrics]]) -> Figure | None:
    """Test accuracy (in %) by simulated hours and by Wh, a line for each run.

    None where a run has no devices.
    """
    figure = Figure(figsize=(10, 4), layout="constrained")
    by_time, by_energy = figure.subplots(1, 2, sharey=True)
    for i, (name, metrics) in enumerate(runs.items()):
        time_h, energy_wh = hours(metrics), watt_hours(metrics)
        if time_h is None or energy_wh is None:
            return None
        accuracy = [100 * m.accuracy for m in metrics]
        line = {"color": COLOURS[i % len(COLOURS)], "ls": STYLES[i % len(STYLES)], "lw": 1.6}
        by_time.plot(time_h, accuracy, label=name, **line)
        by_energy.plot(energy_wh, accuracy, **line)
    by_time.set(xlabel="simulated hours", ylabel="test accuracy (%)", ylim=(0, 100))
    by_energy.set(xlabel="energy of all devices (Wh)")
    for axes in (by_time, by_energy):
        bare(axes)
    by_time.legend(frameon=False, loc="lower right")
    return figure
