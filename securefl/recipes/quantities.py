"""Quantities that a table's cells hold, and their reading from a run's folder."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from securefl.errors import RunFolderError
from securefl.evaluation.named_data import evaluate, load_trained
from securefl.federation.ledger import Entry, Ledger
from securefl.report.census import hours, selected_share, times_selected, watt_hours
from securefl.runs.folder_reader import METRICS, QUALITIES, read_metrics, read_run


class Quantity(StrEnum):
    """Number that a run's folder tells."""

    ACCURACY = "accuracy"
    """Test accuracy after the last round, in %; here and below of a regression R², times 100."""
    MEAN_ACCURACY = "mean-accuracy"
    """Test accuracy, mean over the last rounds, in %."""
    BEST_ACCURACY = "best-accuracy"
    """Test accuracy of the best round, in %."""
    EXTERNAL_ACCURACY = "external-accuracy"
    """Accuracy of the final global model on clients that never trained, their mean, in %."""
    ROUNDS_TO_TARGET = "rounds-to-target"
    """First round whose test accuracy is at least the target."""
    MINUTES_TO_TARGET = "minutes-to-target"
    """Minutes on simulated devices of the rounds up to that one."""
    WH_TO_TARGET = "wh-to-target"
    """Energy of all devices by then, in Wh."""
    SELECTED_SHARE = "selected-share"
    """Share of all selections that clients of some qualities had, in %."""
    EXCHANGES = "exchanges"
    """Communication rounds of the whole run: 3L + 1 for each round of FedTAN."""
    EXTRA_EXCHANGES = "extra-exchanges"
    """Share of the exchanges that carry something else than the model, in %."""
    MEGABYTES_PER_ROUND = "megabytes-per-round"
    """Traffic as FedTAN's Table 3 counts it, in MiB, mean over the rounds."""
    GIGABYTES = "gigabytes"
    """Traffic of the whole run in the same count, in GiB."""
    GIGABITS = "gigabits"
    """Traffic of the whole run in the same count, in 2^30 bits."""
    EXTRA_TRAFFIC = "extra-traffic"
    """Share of the traffic that is something else than the model, in %."""

    @property
    def decimals(self) -> int:
        """Digits after the point that tables show."""
        return DECIMALS[self]


DECIMALS = {
    Quantity.ACCURACY: 2,
    Quantity.MEAN_ACCURACY: 2,
    Quantity.BEST_ACCURACY: 2,
    Quantity.EXTERNAL_ACCURACY: 2,
    Quantity.ROUNDS_TO_TARGET: 1,
    Quantity.MINUTES_TO_TARGET: 3,
    Quantity.WH_TO_TARGET: 4,
    Quantity.SELECTED_SHARE: 1,
    Quantity.EXCHANGES: 0,
    Quantity.EXTRA_EXCHANGES: 2,
    Quantity.MEGABYTES_PER_ROUND: 4,
    Quantity.GIGABYTES: 4,
    Quantity.GIGABITS: 4,
    Quantity.EXTRA_TRAFFIC: 4,
}
SIMULATED = {Quantity.MINUTES_TO_TARGET, Quantity.WH_TO_TARGET}
TARGETED = {Quantity.ROUNDS_TO_TARGET, *SIMULATED}
QualityName = Literal["normal", "irrelevant", "blurred", "salt-and-pepper", "polluted", "noisy"]


class Measure(BaseModel):
    """Table `measure` of a recipe, its rows and its columns."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    quantity: Quantity = Quantity.ACCURACY
    target: Annotated[float, Field(gt=0, le=100, strict=True)] | None = None
    """Test accuracy in %, for the quantities `…-to-target` alone."""
    last: Annotated[int, Field(ge=1, le=10**6, strict=True)] | None = None
    """Rounds of `mean-accuracy` alone; 10 where absent."""
    qualities: tuple[QualityName, ...] = ()
    """Those of `selected-share` alone."""
    adapt_bn: Annotated[float, Field(ge=0, lt=1, strict=True)] | None = None
    """τ of the BN statistics re-estimated from test batches, for `external-accuracy` alone; the
    global statistics where absent."""
    batch_size: Annotated[int, Field(ge=1, le=10**6, strict=True)] = 32
    """Number of samples in these test batches."""

    @model_validator(mode="after")
    def _fits_together(self) -> Measure:
        if (self.quantity in TARGETED) != (self.target is not None):
            raise ValueError(
                f'measure.quantity = "{self.quantity}" with measure.target = {self.target}: '
                '"rounds-to-target" (or minutes, or wh) needs a target in %, such as 90.0, and no '
                "other takes one"
            )
        if self.last is not None and self.quantity is not Quantity.MEAN_ACCURACY:
            raise ValueError(
                f'measure.last = {self.last} with measure.quantity = "{self.quantity}": it goes '
                'with "mean-accuracy" alone'
            )
        if (self.quantity is Quantity.SELECTED_SHARE) != bool(self.qualities):
            raise ValueError(
                f'measure.quantity = "{self.quantity}" with measure.qualities = '
                f'{list(self.qualities)}: "selected-share" needs some, such as ["blurred"], and '
                "no other takes them"
            )
        if self.adapt_bn is not None and self.quantity is not Quantity.EXTERNAL_ACCURACY:
            raise ValueError(
                f'measure.adapt_bn = {self.adapt_bn} with measure.quantity = "{self.quantity}": it '
                'goes with "external-accuracy" alone'
            )
        return self


LAST = 10
"""Number of rounds of a mean accuracy."""
MINUTES_PER_HOUR = 60
GIB_IN_MIB = 1024
BITS = 8
MODEL = ("model/", "update/")
"""Beginnings of the names of messages that carry the model: its broadcast, clients' updates."""


def measured(folder: Path, measure: Measure) -> float | None:
    """Return the quantity of a complete run; None where the target was never reached.

    Raises:
        RunFolderError: no run's folder, or a damaged one.
    """
    match measure.quantity:
        case Quantity.ACCURACY | Quantity.MEAN_ACCURACY | Quantity.BEST_ACCURACY:
            return _score([100 * m.score for m in read_metrics(folder)], measure)
        case Quantity.ROUNDS_TO_TARGET | Quantity.MINUTES_TO_TARGET | Quantity.WH_TO_TARGET:
            return _to_target(folder, measure)
        case Quantity.SELECTED_SHARE:
            return _selected_share(folder, measure)
        case Quantity.EXTERNAL_ACCURACY:
            return _external_accuracy(folder, measure)
        case _:
            return _traffic(_by_round(read_run(folder).ledger), measure.quantity)


def _score(by_round: Sequence[float], measure: Measure) -> float:
    match measure.quantity:
        case Quantity.MEAN_ACCURACY:
            return statistics.mean(by_round[-(measure.last or LAST) :])
        case Quantity.BEST_ACCURACY:
            return max(by_round)
        case _:
            return by_round[-1]


def _to_target(folder: Path, measure: Measure) -> float | None:
    metrics, target = read_metrics(folder), measure.target or 0
    place = next((i for i, m in enumerate(metrics) if 100 * m.score >= target), None)
    if place is None:
        return None
    match measure.quantity:
        case Quantity.MINUTES_TO_TARGET:
            return MINUTES_PER_HOUR * _known(hours(metrics), folder)[place]
        case Quantity.WH_TO_TARGET:
            return _known(watt_hours(metrics), folder)[place]
        case _:
            return metrics[place].round


def _known(sums: list[float] | None, folder: Path) -> list[float]:
    """Require values: such a quantity's recipe simulates devices, so the folder is at fault."""
    if sums is None:
        raise RunFolderError(
            f"{folder / METRICS}: damaged (a round has no simulated time or energy)"
        )
    return sums


def _selected_share(folder: Path, measure: Measure) -> float:
    record = read_run(folder)
    unknown = sorted(times_selected(record).keys() - record.qualities.keys())
    if unknown or not record.participants:
        what = f"{QUALITIES} says nothing of {', '.join(unknown)}" if unknown else "no selections"
        raise RunFolderError(
            f'{folder}: {what}; measure.quantity = "{measure.quantity}" needs settings that '
            "select, and clients of known quality"
        )
    return 100 * selected_share(record, measure.qualities)


def _external_accuracy(folder: Path, measure: Measure) -> float:
    trained = load_trained(folder)
    tau, batch_size = measure.adapt_bn, measure.batch_size
    scores = [
        evaluate(trained.model, data, adapt_bn=tau, batch_size=batch_size, loss=trained.task.loss)
        for data in trained.task.external.values()
    ]
    return 100 * statistics.mean(score.value for score in scores)


def _traffic(rounds: list[list[Entry]], quantity: Quantity) -> float:
    megabytes = sum(map(_megabytes, rounds))
    exchanges = sum(map(_exchanges, rounds))
    match quantity:
        case Quantity.EXCHANGES:
            return exchanges
        case Quantity.EXTRA_EXCHANGES:  # the model alone takes one exchange a round
            return 100 * (1 - len(rounds) / exchanges)
        case Quantity.MEGABYTES_PER_ROUND:
            return megabytes / len(rounds)
        case Quantity.GIGABYTES:
            return megabytes / GIB_IN_MIB
        case Quantity.GIGABITS:
            return megabytes * BITS / GIB_IN_MIB
        case _:
            return 100 * (1 - sum(map(_model_megabytes, rounds)) / megabytes)


def _by_round(ledger: Iterable[Entry]) -> list[list[Entry]]:
    rounds: dict[int, list[Entry]] = {}
    for entry in ledger:
        rounds.setdefault(entry.round, []).append(entry)
    return list(rounds.values())


def _exchanges(entries: list[Entry]) -> int:
    return Ledger(entries).communication_rounds(entries[0].round)


def _megabytes(entries: list[Entry]) -> float:
    return Ledger(entries).paper_megabytes(entries[0].round)


def _model_megabytes(entries: list[Entry]) -> float:
    return _megabytes([entry for entry in entries if entry.name.startswith(MODEL)])
