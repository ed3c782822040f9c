"""What a run's folder tells about a recipe's quantities."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path

from securefl.external import evaluate, load_trained
from securefl.recipes.measure import Measure, Quantity
from securefl.roles.ledger import Entry, Ledger
from securefl.runrecord import read_metrics, read_run

GIB_IN_MIB = 1024
BITS = 8
MODEL = ("model/", "update/")
"""How the names of messages begin that carry the model: its broadcast, and clients' updates."""


def measured(folder: Path, measure: Measure) -> float | None:
    """The quantity of a complete run; None where the target was never reached.

    Raises:
        RunFolderError: no run's folder, or a damaged one.
    """
    match measure.quantity:
        case Quantity.ACCURACY:
            return 100 * read_metrics(folder)[-1].accuracy
        case Quantity.ROUNDS_TO_TARGET:
            target = measure.target or 0
            return next((m.round for m in read_metrics(folder) if 100 * m.accuracy >= target), None)
        case Quantity.EXTERNAL_ACCURACY:
            return _external_accuracy(folder, measure)
        case _:
            return _traffic(_by_round(read_run(folder).ledger), measure.quantity)


def _external_accuracy(folder: Path, measure: Measure) -> float:
    trained = load_trained(folder)
    tau, batch_size = measure.adapt_bn, measure.batch_size
    scores = [
        evaluate(trained.model, data, adapt_bn=tau, batch_size=batch_size)
        for data in trained.task.external.values()
    ]
    return 100 * statistics.mean(score.accuracy for score in scores)


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
