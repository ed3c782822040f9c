"""Quantities that a table's cells hold: a row each in `QUANTITIES`, read from a run's folder.

A new quantity is a function and its row.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from securefl.errors import RunFolderError
from securefl.evaluation.named_data import evaluate, load_trained
from securefl.federation.ledger import Entry, Ledger
from securefl.report.census import hours, selected_share, times_selected, watt_hours
from securefl.runs.folder_reader import METRICS, QUALITIES, read_metrics, read_run
from securefl.settings.tables import Config

QualityName = Literal["normal", "irrelevant", "blurred", "salt-and-pepper", "polluted", "noisy"]
LAST = 10
"""Rounds of a mean accuracy."""
MINUTES_PER_HOUR = 60
GIB_IN_MIB = 1024
BITS = 8
MODEL = ("model/", "update/")
"""How the names of messages begin that carry the model: its broadcast, and clients' updates."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that a run's folder tells, as a row of `QUANTITIES`."""

    name: str
    decimals: int
    """Digits after the point that tables show."""
    of: Callable[[Path, Measure], float | None]
    """The quantity of a complete run in this folder; None where the target was never reached."""
    needs: str = ""
    """Key of `Measure` that goes with it, and must."""
    takes: str = ""
    """Key of `Measure` that goes with it, and may be absent."""
    missing: Callable[[Config], str] = lambda _: ""
    """Reason why runs of these settings leave no such number behind; empty where they do."""


def _scores(folder: Path) -> list[float]:
    """Return the test accuracy of each round in %; of a regression R², times 100."""
    return [100 * m.score for m in read_metrics(folder)]


def _external_accuracy(folder: Path, measure: Measure) -> float:
    """Return the final global model's accuracy on clients that never trained, their mean, in %."""
    trained = load_trained(folder)
    tau, batch_size = measure.adapt_bn, measure.batch_size
    scores = [
        evaluate(trained.model, data, adapt_bn=tau, batch_size=batch_size, loss=trained.task.loss)
        for data in trained.task.external.values()
    ]
    return 100 * statistics.mean(score.value for score in scores)


def _everybody_trains(config: Config) -> str:
    if config.data.leave_out is not None:
        return ""
    return "every client trains; name those who do not in data.leave_out"


def _place_of_target(folder: Path, measure: Measure) -> int | None:
    """Return the place of the first round whose test accuracy is at least the target."""
    target = measure.target or 0
    return next((i for i, score in enumerate(_scores(folder)) if score >= target), None)


def _rounds_to_target(folder: Path, measure: Measure) -> float | None:
    place = _place_of_target(folder, measure)
    return None if place is None else read_metrics(folder)[place].round


def _minutes_to_target(folder: Path, measure: Measure) -> float | None:
    """Return the time that the rounds up to the target took on simulated devices."""
    place = _place_of_target(folder, measure)
    if place is None:
        return None
    return MINUTES_PER_HOUR * _known(hours(read_metrics(folder)), folder)[place]


def _wh_to_target(folder: Path, measure: Measure) -> float | None:
    """Return what all devices had spent when the target was reached, in Wh."""
    place = _place_of_target(folder, measure)
    return None if place is None else _known(watt_hours(read_metrics(folder)), folder)[place]


def _known(sums: list[float] | None, folder: Path) -> list[float]:
    """A recipe with such a quantity simulates devices, so the folder is at fault."""
    if sums is None:
        raise RunFolderError(
            f"{folder / METRICS}: damaged (a round has no simulated time or energy)"
        )
    return sums


def _no_devices(config: Config) -> str:
    if config.devices.specification is not None:
        return ""
    return "nothing takes time without devices; set devices.preset"


def _selected_share(folder: Path, measure: Measure) -> float:
    """Return the share of all selections that clients of some qualities had, in %."""
    record = read_run(folder)
    unknown = sorted(times_selected(record).keys() - record.qualities.keys())
    if unknown or not record.participants:
        what = f"{QUALITIES} says nothing of {', '.join(unknown)}" if unknown else "no selections"
        raise RunFolderError(
            f'{folder}: {what}; measure.quantity = "{measure.quantity}" needs settings that '
            "select, and clients of known quality"
        )
    return 100 * selected_share(record, measure.qualities)


def _nobody_selects(config: Config) -> str:
    if config.selection.name != "all":
        return ""
    return "all clients are in every round; set selection.name"


def _rounds(folder: Path) -> list[list[Entry]]:
    rounds: dict[int, list[Entry]] = {}
    for entry in read_run(folder).ledger:
        rounds.setdefault(entry.round, []).append(entry)
    return list(rounds.values())


def _exchanges(rounds: Iterable[list[Entry]]) -> int:
    """Return the communication rounds of these rounds: 3L + 1 for each of FedTAN."""
    return sum(Ledger(entries).communication_rounds(entries[0].round) for entries in rounds)


def _megabytes(rounds: Iterable[list[Entry]]) -> float:
    """Return the traffic as FedTAN's Table 3 counts it, in MiB."""
    return sum(Ledger(entries).paper_megabytes(entries[0].round) for entries in rounds)


def _extra_exchanges(folder: Path, _measure: Measure) -> float:
    """Return the share of the exchanges that carry something else than the model, in %."""
    rounds = _rounds(folder)  # the model alone takes one exchange a round
    return 100 * (1 - len(rounds) / _exchanges(rounds))


def _megabytes_per_round(folder: Path, _measure: Measure) -> float:
    rounds = _rounds(folder)
    return _megabytes(rounds) / len(rounds)


def _extra_traffic(folder: Path, _measure: Measure) -> float:
    """Return the share of the traffic that is something else than the model, in %."""
    rounds = _rounds(folder)
    of_model = ([entry for entry in r if entry.name.startswith(MODEL)] for r in rounds)
    return 100 * (1 - _megabytes(of_model) / _megabytes(rounds))


_ROWS = (
    Quantity("accuracy", 2, lambda folder, _: _scores(folder)[-1]),
    Quantity(
        "mean-accuracy",
        2,
        lambda folder, measure: statistics.mean(_scores(folder)[-(measure.last or LAST) :]),
        takes="last",
    ),
    Quantity("best-accuracy", 2, lambda folder, _: max(_scores(folder))),
    Quantity(
        "external-accuracy", 2, _external_accuracy, takes="adapt_bn", missing=_everybody_trains
    ),
    Quantity("rounds-to-target", 1, _rounds_to_target, needs="target"),
    Quantity("minutes-to-target", 3, _minutes_to_target, needs="target", missing=_no_devices),
    Quantity("wh-to-target", 4, _wh_to_target, needs="target", missing=_no_devices),
    Quantity("selected-share", 1, _selected_share, needs="qualities", missing=_nobody_selects),
    Quantity("exchanges", 0, lambda folder, _: _exchanges(_rounds(folder))),
    Quantity("extra-exchanges", 2, _extra_exchanges),
    Quantity("megabytes-per-round", 4, _megabytes_per_round),
    Quantity("gigabytes", 4, lambda folder, _: _megabytes(_rounds(folder)) / GIB_IN_MIB),
    Quantity("gigabits", 4, lambda folder, _: BITS * _megabytes(_rounds(folder)) / GIB_IN_MIB),
    Quantity("extra-traffic", 4, _extra_traffic),
)
QUANTITIES = {row.name: row for row in _ROWS}

_NEEDED = {
    "target": "a target in %, such as 90.0, and no other takes one",
    "qualities": 'some, such as ["blurred"], and no other takes them',
}


def _known_name(name: str) -> str:
    if name not in QUANTITIES:
        raise ValueError(
            f"measure.quantity = {name!r:.200}: must be one of {', '.join(QUANTITIES)}"
        )
    return name


class Measure(BaseModel):
    """Table `measure` of a recipe, its rows and its columns."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    quantity: Annotated[str, AfterValidator(_known_name)] = "accuracy"
    """A name in `QUANTITIES`."""
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

    @property
    def row(self) -> Quantity:
        """The quantity's row."""
        return QUANTITIES[self.quantity]

    @model_validator(mode="after")
    def _fits_together(self) -> Measure:
        for reason in self._clashes():
            raise ValueError(reason)
        return self

    def _clashes(self) -> Iterator[str]:
        """Yield what the quantity needs and was not told, and what it was told in vain."""
        for key in dict.fromkeys(k for row in _ROWS for k in (row.needs, row.takes) if k):
            value = getattr(self, key)
            given = value not in {None, ()}
            names = " or ".join(f'"{r.name}"' for r in _ROWS if key in {r.needs, r.takes})
            if key in _NEEDED and (self.row.needs == key) != given:
                value = list(value) if isinstance(value, tuple) else value
                yield (
                    f'measure.quantity = "{self.quantity}" with measure.{key} = {value}: {names} '
                    f"needs {_NEEDED[key]}"
                )
            if key not in _NEEDED and given and self.row.takes != key:
                yield (
                    f'measure.{key} = {value} with measure.quantity = "{self.quantity}": it goes '
                    f"with {names} alone"
                )


def measured(folder: Path, measure: Measure) -> float | None:
    """Return the quantity of a complete run; None where the target was never reached.

    Raises:
        RunFolderError: no run's folder, or a damaged one.
    """
    return measure.row.of(folder, measure)
