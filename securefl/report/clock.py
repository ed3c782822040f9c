"""What a run's rounds took on simulated devices, added up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from securefl.runs.folder_reader import RoundMetrics

SECONDS_PER_HOUR = 3600


def hours(metrics: Sequence[RoundMetrics]) -> list[float] | None:
    """Simulated hours at the end of each round; None where no devices are simulated."""
    seconds = _sums(m.simulated_s for m in metrics)
    return None if seconds is None else [s / SECONDS_PER_HOUR for s in seconds]


def watt_hours(metrics: Sequence[RoundMetrics]) -> list[float] | None:
    """What all devices had spent at the end of each round; None where none are simulated."""
    return _sums(m.energy_wh for m in metrics)


def _sums(values: Iterable[float | None]) -> list[float] | None:
    known = list(values)
    numbers = [value for value in known if value is not None]
    return list(accumulate(numbers)) if known and len(numbers) == len(known) else None
