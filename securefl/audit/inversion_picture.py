"""Originals, and below each what every attacker made of it."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from securefl.audit.findings import Picture
from securefl.audit.image_quality import Images
from securefl.audit.inversion import Attacked
from securefl.report.drawing import png

COLUMNS = 8
INCHES = 0.8


def rebuilt_picture(title: str, attacked: Attacked) -> Picture:
    """The first eight images, a row for the originals, the baseline and each attacker."""
    rows: dict[str, Images] = {"original": attacked.originals, "baseline": attacked.baseline.images}
    rows |= {name.value: rebuilt.images for name, rebuilt in attacked.by.items()}
    figure = Figure(figsize=((COLUMNS + 1.6) * INCHES, len(rows) * INCHES))
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(rows), COLUMNS, squeeze=False)
    for (name, images), line in zip(rows.items(), grid, strict=True):
        for axes in line:
            axes.set_axis_off()
        for axes, image in zip(line, images, strict=False):
            _show(axes, image)
        line[0].text(-0.2, 0.5, name, transform=line[0].transAxes, ha="right", va="center")
    figure.subplots_adjust(left=1.5 / (COLUMNS + 1.6), right=0.99, top=0.99, bottom=0.01)
    described = f"Rows of images: {', '.join(rows)}. {title}."
    return Picture(f"Originals and reconstructions: {title}", described, png(figure))


def _show(axes: Axes, image: Images) -> None:
    """Channels last; of other than three channels, the first."""
    if image.ndim == 3:
        image = np.moveaxis(image, 0, -1) if len(image) == 3 else image[0]
    axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
