"""What all pictures share: colours, bare axes, and PNG bytes."""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#7f7f7f", "#cc79a7", "#56b4e9", "#e69f00")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""
STYLES = ("-", "--", "-.", ":")
MAX_NAMES = 30
"""Clients whose names there is room for on an axis."""


def bare(axes: Axes) -> None:
    """Leave out the frame above and to the right, and draw a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)


def by_round(axes: Axes) -> None:
    """Label the horizontal axis with rounds, which are whole."""
    axes.set(xlabel="round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def png(figure: Figure) -> bytes:
    """The figure as a PNG file's content."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
