"""Section on gradient inversion: protection of images by hiding BN's statistics.

A picture shows originals, and below each what every attacker made of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from securefl.audit.findings import FindingsTable, Number, Picture, Section
from securefl.audit.inversion.gradient_matching import Search
from securefl.audit.inversion.hidden_statistics import (
    Attacker,
    Hidden,
    HiddenStatistics,
    Images,
    mean_interval,
    units,
)
from securefl.audit.inversion.rebuilding import Attacked, Rebuilt, attacked, protection
from securefl.audit.inversion.target import NormalisedBatch, Target
from securefl.audit.inversion.verdict import RULES, if_sealed, united
from securefl.audit.rules import decided
from securefl.audit.statistics import Interval
from securefl.errors import DataError
from securefl.report.plots import png

BATCHES = (1, 8)
METHOD = (
    "rebuilt images: gradient matching by the cosine distance (Geiping et al. 2020) with "
    "a Gaussian prior of public images; mean and 95 % t interval over mini-batches"
)
_METHODS = {
    "baseline": "the mean public image of the class, in the place of rebuilt ones",
    Attacker.FIRST_LAYER.value: "images solved for from the first layer's gradient (dW = g xᵀ)",
}

COMMON_NOTES = (
    (
        "Attackers know the model, the gradient of one mini-batch, its labels, the range of "
        "pixels and public images. They have the same prior, starts, steps and restarts; "
        "restarts are chosen by the objective, never by the originals."
    ),
    "One local step is assumed: the update of several steps shows less.",
    (
        "The baseline is the mean public image of the label's class. The images of a mini-batch "
        "have no order: each attacker's, and the baseline's, are set beside the originals that "
        "they fit best."
    ),
    (
        "PSNR ends at 60 dB, beyond which pixels are the same in 8 bits. Intervals are over "
        "mini-batches, or over the images of a single one."
    ),
    (
        "The best adaptive attacker is chosen on the images that it is scored on, in the "
        "attackers' favour. A negative difference says that a search with free statistics went "
        "better, which is open to who knows them, too. A stronger attack may find more than "
        "these."
    ),
    (
        "Where running statistics are not listed (population), they are the exact ones, or "
        "fresh (none)."
    ),
)


_FIRST = {
    Hidden.NOTHING: (
        "The run hides nothing: the server had gradients and statistics of single clients. Had it "
        "sealed the statistics:"
    ),
    Hidden.STATISTICS: "Of an update of one local step:",
    Hidden.UPDATES: (
        "Nobody received a single client's update. All receive the sum, which after one step is "
        "the gradient of all clients' batches together: with two or three clients and as many "
        "images, images come back from it, too; it was not attacked here. Had the statistics alone "
        "been sealed:"
    ),
}


@final
@dataclass(frozen=True, slots=True)
class InversionEffort:
    """Effort of the attacks: numbers of mini-batches, and length of each search."""

    images: int
    """Mini-batches of one image."""
    batches: int
    """Mini-batches of eight."""
    search: Search


QUICK = InversionEffort(8, 8, Search(steps=300, restarts=2))
FULL = InversionEffort(16, 8, Search(steps=1500, restarts=4))


def inversion_section(
    targets: Sequence[Target],
    seed: int,
    effort: InversionEffort = QUICK,
    hidden: Hidden = Hidden.STATISTICS,
) -> Section:
    """Attack mini-batches of 1 and of 8 of each target; of 1 only where it can be trained.

    The verdict is of a run that hides what `hidden` says.

    Raises:
        DataError: no target, fewer than eight images, or a model without BN.
    """
    if not targets:
        raise DataError("gradient inversion: no model was given to attack")
    found = [
        attacked(
            target, effort.images if batch == 1 else effort.batches, batch, effort.search, seed
        )
        for target in targets
        for batch in BATCHES
        if batch > 1 or target.normalised is not NormalisedBatch.BATCH
    ]
    compared = [(one, protection(one)) for one in found]
    return Section(
        key="inversion",
        title="Gradient inversion with and without BN statistics",
        verdict=united([decided(RULES[hidden], comparison)[0] for _, comparison in compared]),
        words=" ".join([_FIRST[hidden], *_words(compared)]).strip(),
        numbers=[number for pair in compared for number in _numbers(*pair, seed)],
        tables=[_table(*pair) for pair in compared],
        pictures=[rebuilt_picture(title(one), one) for one in found],
        notes=_notes(targets),
    )


def title(one: Attacked) -> str:
    """Return the target's name and the size of its mini-batches."""
    return f"{one.target.name}, mini-batches of {one.batch}"


def _words(compared: Sequence[tuple[Attacked, HiddenStatistics]]) -> Iterator[str]:
    """Yield sentences; what is the same of several sizes is said once."""
    alike: dict[str, list[str]] = {}
    for one, found in compared:
        known, best = (_psnr(one.by[name]).value for name in (Attacker.EXACT, found.best))
        guess = _psnr(one.baseline).value
        figures = f"{title(one)}: {best:.0f} dB without them, {known:.0f} with, {guess:.0f} guessed"
        alike.setdefault(if_sealed(found), []).append(figures)
    for said, each in alike.items():
        yield f"{said} ({'; '.join(each)})."


def _numbers(one: Attacked, found: HiddenStatistics, seed: int) -> list[Number]:
    rows = {"baseline": one.baseline, **{name.value: r for name, r in one.by.items()}}
    numbers = []
    for name, row in rows.items():
        how = _METHODS.get(name, METHOD)
        numbers += [
            Number.of(f"{title(one)}: PSNR, {name}", _psnr(row), f"PSNR of {how}", seed, "dB"),
            Number.of(f"{title(one)}: SSIM, {name}", _ssim(row), f"SSIM of the same; {how}", seed),
        ]
    method = f"PSNR of {METHOD}; paired; best adaptive is chosen on the same images: {found.best}"
    numbers.append(
        Number.of(f"{title(one)}: exact less best adaptive", found.difference, method, seed, "dB")
    )
    return numbers


def _table(one: Attacked, found: HiddenStatistics) -> FindingsTable:
    rows = [("baseline", _decibel(_psnr(one.baseline)), _plain(_ssim(one.baseline)), "", "")]
    alarming = set()
    exact_NB = one.by[Attacker.EXACT].psnr_NB
    for name, row in one.by.items():
        gain = mean_interval(units(row.psnr_NB - one.baseline.psnr_NB))
        less = mean_interval(units(exact_NB - row.psnr_NB))
        if gain.low > 0 and name is not Attacker.EXACT:
            alarming.add(len(rows))
        shown = "" if name is Attacker.EXACT else _decibel(less)
        label = f"{name} (best adaptive)" if name is found.best else name.value
        rows.append((label, _decibel(_psnr(row)), _plain(_ssim(row)), _decibel(gain), shown))
    columns = ("attacker", "PSNR, dB", "SSIM", "gain over baseline, dB", "exact less this, dB")
    return FindingsTable(f"Rebuilt images: {title(one)}", columns, rows, frozenset(alarming))


def _psnr(row: Rebuilt) -> Interval:
    return mean_interval(units(row.psnr_NB))


def _ssim(row: Rebuilt) -> Interval:
    return mean_interval(units(row.ssim_NB))


def _decibel(found: Interval) -> str:
    return f"{found.value:.1f} ({found.low:.1f} to {found.high:.1f})"


def _plain(found: Interval) -> str:
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def _notes(targets: Sequence[Target]) -> list[str]:
    found = [*COMMON_NOTES]
    if any(s.normalised is NormalisedBatch.GIVEN for s in targets):
        found.append(
            "Constant statistics can be computed from the gradients for γ, β, weight and bias of "
            "the layers around them (attacker 'derived'), and a first linear layer behind which a "
            "ReLU is off shows its inputs, whatever the statistics (attacker 'first layer', "
            "after SPEAR, Dimitrov et al. 2024)."
        )
    if any(s.normalised is NormalisedBatch.POOLED for s in targets):
        found.append(
            "FedTAN's gradient is attacked as it is: the gradients for the pooled statistics "
            "follow from the sums of all clients' gradients for γ and β, which the server sees "
            "where parameters travel in the clear."
        )
        found.append(
            "FedTAN's statistics are totals, which the server passes on: it is the attacker "
            "'exact' also where each client's are sealed. With exchange.blind it cannot read them, "
            "and has what the update gives away of them."
        )
    if any(s.normalised is NormalisedBatch.BATCH for s in targets):
        found.append(
            "Where BN of the mini-batch itself stands right behind the first linear layer, the "
            "gradient is the same for images that are all shifted alike: their mean is in the "
            "statistics alone, and other attackers take it from public images."
        )
    return found


COLUMNS = 8
INCHES = 0.8


def rebuilt_picture(title: str, attacked: Attacked) -> Picture:
    """Draw the first eight images, a row for originals, the baseline and each attacker."""
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
    """Return images side by side with a white gap; channels last, or the first if not three."""
    framed = []
    for image in images[:COLUMNS]:
        one = image if image.ndim == 2 else image[0]
        one = np.moveaxis(image, 0, -1) if image.ndim == 3 and len(image) == 3 else one
        gap = ((0, 0), (0, max(1, one.shape[1] // 8)), (0, 0))
        framed.append(np.pad(one, gap[: one.ndim], constant_values=1.0))
    row: Images = np.concatenate(framed, axis=1)
    return row
