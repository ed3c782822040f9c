"""Originals, and below each what every attacker made of it."""

from __future__ import annotations

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from securefl.audit.findings import Picture
from securefl.audit.inversion.image_quality import Images
from securefl.audit.inversion.rebuilding import Attacked
from securefl.report.drawing import png

COLUMNS = 8
INCHES = 0.8


def rebuilt_picture(title: str, attacked: Attacked) -> Picture:
    """The first eight images, a row for the originals, the baseline and each attacker."""
    rows: dict[str, Images] = {"original": attacked.originals, "baseline": attacked.baseline.images}
    rows |= {name.value: rebuilt.images for name, rebuilt in attacked.by.items()}
    figure = Figure(figsize=((COLUMNS + 1.6) * INCHES, len(rows) * INCHES))
    FigureCanvasAgg(figure)
    lines = figure.subplots(len(rows), squeeze=False)[:, 0]
    for (name, images), axes in zip(rows.items(), lines, strict=True):
        axes.set_axis_off()
        axes.imshow(_in_a_row(images), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.text(-0.02, 0.5, name, transform=axes.transAxes, ha="right", va="center")
    figure.subplots_adjust(left=1.5 / (COLUMNS + 1.6), right=0.99, top=0.99, bottom=0.01)
    described = f"Rows of images: {', '.join(rows)}. {title}."
    return Picture(f"Originals and reconstructions: {title}", described, png(figure))


def _in_a_row(images: Images) -> Images:
    """Side by side with a white gap; channels last, and of other than three the first."""
    framed = []
    for image in images[:COLUMNS]:
        one = image if image.ndim == 2 else image[0]
        one = np.moveaxis(image, 0, -1) if image.ndim == 3 and len(image) == 3 else one
        gap = ((0, 0), (0, max(1, one.shape[1] // 8)), (0, 0))
        framed.append(np.pad(one, gap[: one.ndim], constant_values=1.0))
    row: Images = np.concatenate(framed, axis=1)
    return row
