"""Reading of a recipe's quantities from a run's folder."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from securefl.errors import RunFolderError
from securefl.evaluation.named_data import evaluate, load_trained
from securefl.federation.ledger import Entry, Ledger
from securefl.recipes.quantities import Measure, Quantity
from securefl.report.census import hours, selected_share, times_selected, watt_hours
from securefl.runs.folder_reader import METRICS, QUALITIES, read_metrics, read_run

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
