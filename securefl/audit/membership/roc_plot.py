"""ROC curves on logarithmic axes, where few false alarms can be seen (Carlini et al., 2022)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from securefl.audit.roc import Roc
from securefl.report.drawing import COLOURS, STYLES, bare, png


def roc_plot(attacks: Mapping[str, Roc]) -> bytes:
    """A PNG with a curve for each attack by name, and the diagonal of chance.

    It begins where one non-member is a false alarm: nothing is known to the left of it.
    """
    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots()
    least = 1 / max(len(roc.others) for roc in attacks.values())
    for i, (name, roc) in enumerate(attacks.items()):
        false, true = roc.curve()
        (line,) = axes.step(np.maximum(false, least / 2), true, where="post", lw=1.6, label=name)
        line.set(color=COLOURS[i % len(COLOURS)], linestyle=STYLES[i % len(STYLES)])
    axes.plot([least / 2, 1], [least / 2, 1], color="black", lw=0.8, label="chance")
    axes.axvline(0.01, color="black", lw=0.6, ls=":")
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1))
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    bare(axes)
    axes.legend(frameon=False, loc="lower right", fontsize="small")
    return png(figure)
