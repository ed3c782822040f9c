"""Section on gradient inversion: protection of samples by hiding BN's statistics.

A picture shows what every attacker made of the same records. Originals are in no report.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, final

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from securefl.audit.findings import Number, Section
from securefl.audit.inversion.gradient_matching import Search
from securefl.audit.inversion.hidden_statistics import (
    Attacker,
    Hidden,
    HiddenStatistics,
    gain,
    units,
)
from securefl.audit.inversion.limits import most_matched, require_within
from securefl.audit.inversion.opened_total import OpenedRound
from securefl.audit.inversion.rebuilding import Attacked, Rebuilt, attacked, protection
from securefl.audit.inversion.sample_kind import Scores, Values, mean_interval
from securefl.audit.inversion.sum_attacks import SumEffort
from securefl.audit.inversion.sum_section import NOTES as SUM_NOTES
from securefl.audit.inversion.sum_section import figures, sum_numbers, sum_table, tried_sums
from securefl.audit.inversion.target import NormalisedBatch, Target
from securefl.audit.inversion.verdict import (
    RULES,
    UPDATES_SEALED,
    if_nothing_is_sealed,
    if_sealed,
    of_smaller,
    united,
)
from securefl.audit.rules import decided
from securefl.audit.statistics import Interval
from securefl.errors import DataError
from securefl.io.html import PageTable, Picture
from securefl.report.plots import png

BATCHES = (1, 8)
METHOD = (
    "gradient matching by the cosine distance (Geiping et al. 2020) with a Gaussian prior of "
    "public samples"
)
NOTHING, BASELINE = "no information", "baseline"
_METHODS = {
    NOTHING: "the mean public sample in the place of rebuilt ones",
    BASELINE: "the guess from the label in the place of rebuilt ones",
    Attacker.FIRST_LAYER.value: "solved for from the first layer's gradient (dW = g xᵀ)",
}

COMMON_NOTES = (
    (
        "Attackers differ in what they take for BN's statistics: those that normalised the "
        "mini-batch (exact), the model's running ones (population), a fresh layer's (none), public "
        "samples' (public), any, which they search for beside the samples (joint), or those that "
        "the gradient gives away (derived). 'First layer' needs none: it reads inputs off the "
        "first layer's gradient."
    ),
    (
        "Attackers know the model, the gradient of one mini-batch, its labels, the range of "
        "each feature and public samples. They have the same prior, starts, steps and restarts; "
        "restarts are chosen by the objective, never by the originals."
    ),
    "Of a single client's update one local step is assumed.",
    (
        "The baseline is the mean public sample of the label's class, or of targets that are "
        "numbers the line through public samples; without information it is the mean of all. The "
        "samples of a mini-batch have no order: each attacker's, and the baseline's, are set "
        "beside the originals that they fit best."
    ),
    (
        "The best adaptive attacker is chosen on the samples that it is scored on, in the "
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
        "The run hides nothing: the server had updates and statistics of single clients. "
        "Attacked were updates of one local step."
    ),
    Hidden.STATISTICS: "Attacked were updates of one local step.",
    Hidden.UPDATES: "What follows is of this run, had it sealed its statistics alone.",
}


SUMS = SumEffort(sums=8, most_matched=16, search=Search(steps=200, restarts=1))


_WITHOUT_BN = {
    False: (
        "The model has no BN, so no statistics to hide. Attacked were updates of one local step."
    ),
    True: "What follows is of this run, had it not sealed single clients' updates.",
}


@final
@dataclass(frozen=True, slots=True)
class InversionEffort:
    """Effort of the attacks: numbers of mini-batches, and length of each search."""

    singles: int
    """Mini-batches of one sample."""
    batches: int
    """Mini-batches of eight."""
    search: Search
    sums: SumEffort = SUMS


QUICK = InversionEffort(8, 8, Search(steps=300, restarts=2))
FULL = InversionEffort(16, 8, Search(1500, 4), SumEffort(16, 128, Search(1500, 2)))


def inversion_section(
    targets: Sequence[Target],
    seed: int,
    effort: InversionEffort = QUICK,
    hidden: Hidden = Hidden.STATISTICS,
    opened: OpenedRound | None = None,
) -> Section:
    """Attack mini-batches of 1 and of 8 of each target; of 1 only where it can be trained.

    The verdict is of a run that hides what `hidden` says. Where that is single clients' updates,
    it follows from attacks on the sums that `opened` makes.

    Fewer mini-batches are attacked of large models, and none where one is too much: see `limits`.

    Raises:
        DataError: no target, fewer than eight samples, or all too large.
    """
    if not targets:
        raise DataError("gradient inversion: no model was given to attack")
    require_within(targets[0].client[0].shape[1:])
    found, left_out = list[Attacked](), list[str]()
    for target in targets:
        most = most_matched(target.model, target.client[0][:1])
        for batch in BATCHES:
            if batch == 1 and target.normalised is NormalisedBatch.BATCH:
                continue
            n = min(effort.singles if batch == 1 else effort.batches, most // batch)
            if n < (2 if batch == 1 else 1):  # an interval is over mini-batches, or one's samples
                left_out.append(f"{target.name}, mini-batches of {batch}")
            else:
                found.append(attacked(target, n, batch, effort.search, seed))
    if not found:
        raise DataError(_too_large(left_out))
    compared = [(one, protection(one)) for one in found]
    first = _FIRST[hidden]
    if not any(comparison.there for _, comparison in compared):
        first = _WITHOUT_BN[hidden is Hidden.UPDATES]
        hidden = Hidden.NOTHING
    verdict, do = united([decided(RULES[hidden], comparison) for _, comparison in compared])
    pictures = [rebuilt_picture(title(one), one) for one in found if one.baseline.is_image]
    section = Section(
        key="inversion",
        title="Gradient inversion with and without BN statistics",
        verdict=verdict,
        do=do,
        words=" ".join([first, *_words(compared, hidden)]),
        trials=_if_statistics_were_sealed(compared) if hidden is Hidden.NOTHING else "",
        numbers=[number for pair in compared for number in _numbers(*pair, seed)],
        tables=[_table(*pair) for pair in compared],
        pictures=pictures,
        pictures_of_records=bool(pictures),
        notes=[*_notes(found), *([_too_large(left_out)] if left_out else [])],
    )
    return section if opened is None else _with_sums(section, opened, effort, seed)


def _too_large(left_out: Sequence[str]) -> str:
    return (
        "The model is too large for a search on gradients that ends in time, so these were not "
        f"attacked, which says nothing for them: {'; '.join(left_out)}"
    )


def _with_sums(
    section: Section, opened: OpenedRound, effort: InversionEffort, seed: int
) -> Section:
    """Return the section with attacks on sums of updates before all else, and their verdict.

    Its own tables and pictures are of single updates, which this run sealed: they become trials.
    """
    tried = tried_sums(opened, effort.sums, seed)
    kind = opened.kind()
    found = tried.found(kind.noun)
    verdict, words, do = decided(UPDATES_SEALED, found)
    return replace(
        section,
        verdict=verdict,
        do=do,
        words=f"{words}{figures(tried.own)}.",
        trials=f"{of_smaller(found)}{figures(*tried.small)}. {section.words}",
        numbers=[*sum_numbers(tried, seed), *section.numbers],
        tables=[sum_table(tried, kind), *map(_as_trial, section.tables)],
        pictures=[*map(_as_trial, section.pictures)],
        notes=[*SUM_NOTES, *section.notes],
    )


Shown = TypeVar("Shown", PageTable, Picture)


def _as_trial(shown: Shown) -> Shown:
    return replace(shown, title=f"Trial, had updates not been sealed: {shown.title}")


def title(one: Attacked) -> str:
    """Return the target's name and the size of its mini-batches."""
    return f"{one.target.name}, mini-batches of {one.batch}"


def _words(compared: Sequence[tuple[Attacked, HiddenStatistics]], hidden: Hidden) -> Iterator[str]:
    """Yield sentences on this run; of one that hides updates they are on sealed statistics."""
    of_run = if_nothing_is_sealed if hidden is Hidden.NOTHING else if_sealed
    yield from _grouped((of_run(found), _figures(one, found)) for one, found in compared)


def _if_statistics_were_sealed(compared: Sequence[tuple[Attacked, HiddenStatistics]]) -> str:
    """Return sentences on a run that hides nothing, had it; empty where there are none to seal."""
    if not any(found.there for _, found in compared):
        return ""
    said = _grouped((if_sealed(found), title(one)) for one, found in compared)
    return " ".join(["What follows is of this run, had it sealed its statistics.", *said])


def _grouped(said: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield each sentence once, with all that it is about."""
    alike: dict[str, list[str]] = {}
    for words, about in said:
        alike.setdefault(words, []).append(about)
    yield from (f"{words} ({'; '.join(about)})." for words, about in alike.items())


def _figures(one: Attacked, found: HiddenStatistics) -> str:
    rows = (one.by[found.best], one.by[Attacker.EXACT], one.baseline)
    best, known, guess = (one.kind.told(_score(one, row).value) for row in rows)
    scores_NB = one.by[found.best].score_NB
    clear = int((one.kind.sign * (scores_NB - one.kind.clear) >= 0).sum())
    back = f"recovered {clear} of {scores_NB.size}"
    if not found.there:
        return f"{title(one)}: {best}, {guess} guessed, {back}"
    return f"{title(one)}: {best} without them, {known} with, {guess} guessed, {back}"


def _numbers(one: Attacked, found: HiddenStatistics, seed: int) -> list[Number]:
    kind, numbers = one.kind, []
    average = f"{kind.middle} and 95 % interval over mini-batches"
    for name, row in _rows(one).items():
        how = f"{_METHODS.get(name, METHOD)}; {average}"
        about = f"{kind.measure} of {kind.noun}: {how}"
        named = f"{title(one)}: {kind.measure}, {name}"
        numbers.append(Number.of(named, _score(one, row), about, seed, kind.unit))
        if row.ssim_NB is not None:
            about, named = f"SSIM of the same; {how}", f"{title(one)}: SSIM, {name}"
            numbers.append(Number.of(named, likeness(row.ssim_NB), about, seed))
    method = f"{kind.measure} of {kind.noun}: {METHOD}; {average}; paired; best adaptive is chosen "
    method += f"on the same {kind.noun}: {found.best}"
    named = f"{title(one)}: {_less(one, 'exact', 'best adaptive')}"
    numbers.append(Number.of(named, found.difference, method, seed, kind.unit))
    return numbers


def _rows(one: Attacked) -> dict[str, Rebuilt]:
    guessed = {NOTHING: one.nothing, BASELINE: one.baseline}
    return guessed | {name.value: row for name, row in one.by.items()}


def _less(one: Attacked, nearer: str, other: str) -> str:
    """Return in words how much nearer one attacker is: more decibels, or less of an error."""
    return f"{nearer} less {other}" if one.kind.sign > 0 else f"{other} less {nearer}"


def _table(one: Attacked, found: HiddenStatistics) -> PageTable:
    kind, exact, images = one.kind, one.by[Attacker.EXACT], one.baseline.is_image
    rows, alarming = list[tuple[str, ...]](), set[int]()
    for name, row in _rows(one).items():
        gained, behind = (
            gain(kind, a.score_NB, b.score_NB) for a, b in ((row, one.baseline), (exact, row))
        )
        guessed = name in {NOTHING, BASELINE}
        cells = [f"{name} (best adaptive)" if name == found.best else name]
        cells.append("" if guessed else kind.shown(gained))
        cells.append(kind.shown(_score(one, row)))
        cells.append("" if guessed or row is exact else kind.shown(behind))
        cells += [_plain(likeness(row.ssim_NB))] if row.ssim_NB is not None else []
        exempt = guessed or (row is exact and found.there)
        if gained.low > 0 and not exempt:
            alarming.add(len(rows))
        rows.append(tuple(cells))
    unit = kind.unit
    columns = ["attacker", f"gain over baseline, {unit}", f"{kind.measure}, {unit}"]
    columns += [f"{_less(one, 'exact', 'this')}, {unit}", *(["SSIM"] if images else [])]
    about = f"Rebuilt {kind.noun}: {title(one)}"
    return PageTable(about, columns, rows, frozenset(alarming))


def _score(one: Attacked, row: Rebuilt) -> Interval:
    return one.kind.interval(units(row.score_NB))


def likeness(ssim_NB: Scores) -> Interval:
    """Return the mean structural similarity, in an interval that ends where it can: -1 and 1."""
    found = mean_interval(units(ssim_NB))
    return Interval(found.value, max(found.low, -1.0), min(found.high, 1.0))


def _plain(found: Interval) -> str:
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def _notes(attacks: Sequence[Attacked]) -> list[str]:
    targets = [one.target for one in attacks]
    found = [*COMMON_NOTES, *dict.fromkeys(one.kind.note for one in attacks)]
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
            "gradient is the same for samples that are all shifted alike: their mean is in the "
            "statistics alone, and other attackers take it from public samples."
        )
    return found


COLUMNS = 8
INCHES = 0.8
"""Width of an image. On a phone all have the room of four, so the names beside them are large."""
LABEL = 2.2
"""Width of the names beside the images, in images."""


def rebuilt_picture(title: str, attacked: Attacked) -> Picture:
    """Draw the first eight images, a row for the baseline and each attacker; no original."""
    rows: dict[str, Values] = {name: rebuilt.samples for name, rebuilt in _rows(attacked).items()}
    figure = Figure(figsize=((COLUMNS + LABEL) * INCHES, len(rows) * INCHES))
    FigureCanvasAgg(figure)
    lines = figure.subplots(len(rows), squeeze=False)[:, 0]
    for (name, images), axes in zip(rows.items(), lines, strict=True):
        axes.set_axis_off()
        axes.imshow(_in_a_row(images), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.text(-0.02, 0.5, name, transform=axes.transAxes, ha="right", va="center", fontsize=14)
    figure.subplots_adjust(
        left=(LABEL - 0.1) / (COLUMNS + LABEL), right=0.99, top=0.99, bottom=0.01
    )
    described = f"Rows of images: {', '.join(rows)}. {title}."
    return Picture(f"Reconstructions: {title}", described, png(figure))


def _in_a_row(images: Values) -> Values:
    """Return images side by side with a white gap; channels last, or the first if not three."""
    framed = []
    for image in images[:COLUMNS]:
        one = image if image.ndim == 2 else image[0]
        one = np.moveaxis(image, 0, -1) if image.ndim == 3 and len(image) == 3 else one
        gap = ((0, 0), (0, max(1, one.shape[1] // 8)), (0, 0))
        framed.append(np.pad(one, gap[: one.ndim], constant_values=1.0))
    row: Values = np.concatenate(framed, axis=1)
    return row
