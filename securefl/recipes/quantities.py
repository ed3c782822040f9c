"""Quantities that a table's cells hold: a row each, as a function of a run's figures.

A new quantity is one row. Rows are read without torch, as settings are.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from securefl.settings.tables import Config

if TYPE_CHECKING:
    from securefl.recipes.figures import RunFigures

QualityName = Literal["normal", "irrelevant", "blurred", "salt-and-pepper", "polluted", "noisy"]
LAST = 10
"""Rounds of a mean accuracy."""
MINUTES_PER_HOUR = 60
GIB_IN_MIB = 1024
BITS = 8


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that a run's folder tells, as a row of `QUANTITIES`."""

    name: str
    decimals: int
    """Digits after the point that tables show."""
    of: Callable[[RunFigures, Measure], float | None]
    """The quantity of a complete run; None where the target was never reached."""
    needs: str = ""
    """Key of `Measure` that goes with it, and must."""
    takes: str = ""
    """Key of `Measure` that goes with it, and may be absent."""
    missing: Callable[[Config], str] = lambda _: ""
    """Reason why runs of these settings leave no such number behind; empty where they do."""


def _mean_accuracy(run: RunFigures, measure: Measure) -> float:
    return statistics.mean(run.scores[-(measure.last or LAST) :])


def _pooled_score(run: RunFigures, _: Measure) -> float:
    pooled = run.metrics[-1].pooled
    return 100 * (math.nan if pooled is None else pooled.value)


def _own_tests(config: Config) -> str:
    own_test = config.data.traits.by_domain or config.data.corruptions
    return "" if own_test else "all clients share one test set; have data by domain"


def _reached(run: RunFigures, measure: Measure, counted: Callable[[], list[float]]) -> float | None:
    """Return what is counted up to the first round whose test accuracy is at least the target."""
    target = measure.target or 0
    place = next((i for i, score in enumerate(run.scores) if score >= target), None)
    return None if place is None else counted()[place]


def _rounds_to_target(run: RunFigures, measure: Measure) -> float | None:
    return _reached(run, measure, lambda: [m.round for m in run.metrics])


def _minutes_to_target(run: RunFigures, measure: Measure) -> float | None:
    return _reached(run, measure, lambda: [MINUTES_PER_HOUR * h for h in run.hours])


def _wh_to_target(run: RunFigures, measure: Measure) -> float | None:
    return _reached(run, measure, lambda: run.watt_hours)


def _sealed_to_target(run: RunFigures, measure: Measure) -> float | None:
    return _reached(run, measure, lambda: run.sealed_megabytes)


def _all_train(config: Config) -> str:
    all_train = config.data.leave_out is None
    return "every client trains; name those who do not in data.leave_out" if all_train else ""


def _no_devices(config: Config) -> str:
    none = config.devices.specification is None
    return "nothing takes time without devices; set devices.preset" if none else ""


def _nothing_sealed(config: Config) -> str:
    none = not config.exchange.seals_anything
    return 'nothing is encrypted; set exchange.encrypt = "model"' if none else ""


def _no_choice(config: Config) -> str:
    none = not config.selection.selects
    return "all clients are in every round; set selection.name" if none else ""


def _one_test(config: Config) -> str:
    own_model = config.models_at_clients
    own_test = config.data.traits.by_domain or config.data.corruptions
    why = "all clients share one model and one test set; have data by domain, or data.corruptions"
    return "" if own_model or own_test else why


_ROWS = (
    # Test accuracy in %: after the last round, mean of the last ones, best of any, on one client's
    # own test data, and on clients that never trained.
    Quantity("accuracy", 2, lambda run, _: run.scores[-1]),
    Quantity("mean-accuracy", 2, _mean_accuracy, takes="last"),
    Quantity("best-accuracy", 2, lambda run, _: max(run.scores)),
    Quantity(
        "client-accuracy",
        2,
        lambda run, measure: 100 * run.client_accuracy(measure.client or ""),
        needs="client",
        missing=_one_test,
    ),
    Quantity(
        "external-accuracy",
        2,
        lambda run, measure: (
            100 * run.external_accuracy(adapt_bn=measure.adapt_bn, batch_size=measure.batch_size)
        ),
        takes="adapt_bn",
        missing=_all_train,
    ),
    # The metric's value over all clients' own test samples, times 100, whatever metric it is.
    Quantity("pooled-score", 2, _pooled_score, missing=_own_tests),
    # Rounds until the target is reached, what they took on simulated devices, and spent.
    Quantity("rounds-to-target", 1, _rounds_to_target, needs="target"),
    Quantity("minutes-to-target", 3, _minutes_to_target, needs="target", missing=_no_devices),
    Quantity("wh-to-target", 4, _wh_to_target, needs="target", missing=_no_devices),
    # The share of all selections that clients of some qualities had, in %.
    Quantity(
        "selected-share",
        1,
        lambda run, measure: 100 * run.selected_share(measure.qualities),
        needs="qualities",
        missing=_no_choice,
    ),
    # Exchanges and traffic; "extra" is the share in % of what is something else than the model,
    # which alone takes one exchange a round.
    Quantity("exchanges", 0, lambda run, _: run.exchanges),
    Quantity("extra-exchanges", 2, lambda run, _: 100 * (1 - len(run.rounds) / run.exchanges)),
    Quantity("megabytes-per-round", 4, lambda run, _: run.megabytes / len(run.rounds)),
    Quantity("gigabytes", 4, lambda run, _: run.megabytes / GIB_IN_MIB),
    Quantity("gigabits", 4, lambda run, _: run.megabytes * BITS / GIB_IN_MIB),
    Quantity("extra-traffic", 4, lambda run, _: 100 * (1 - run.model_megabytes / run.megabytes)),
    # Ciphertext that clients send, in MiB: in the whole run, and until the target is reached.
    Quantity(
        "sealed-megabytes", 1, lambda run, _: run.sealed_megabytes[-1], missing=_nothing_sealed
    ),
    Quantity(
        "sealed-megabytes-to-target",
        1,
        _sealed_to_target,
        needs="target",
        missing=_nothing_sealed,
    ),
)
QUANTITIES = {row.name: row for row in _ROWS}

_NEEDED = {
    "target": "a target in %, such as 90.0, and no other takes one",
    "client": 'the name of one, such as "client-1", and no other takes one',
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
    client: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Name of the client of `client-accuracy` alone: `client-1` for the first domain."""
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
