"""Turns of ways, so that whatever else the machine does is felt by all of them alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping
from statistics import median
from typing import Any, TypeVar

from measure import timed

Key = TypeVar("Key", bound=Hashable)
Seconds = dict[Key, list[float]]
"""Seconds by way, one reading for each repeat."""


def in_turns(
    ways: Mapping[Key, Callable[[], Any]], repeats: int, wait: Callable[[], None] | None = None
) -> Seconds[Key]:
    """Return each way's seconds: `repeats` turns in an order that changes, after one rehearsal.

    `wait` comes back once the machine has done what a turn has told it to do; it counts.
    """
    found: Seconds[Key] = {way: [] for way in ways}
    for i in range(repeats + 1):
        for way in random.sample(list(ways), len(ways)):
            _, seconds = timed(_awaited, ways[way], wait)
            if i:  # the first is a rehearsal
                found[way].append(seconds)
    return found


def _awaited(way: Callable[[], Any], wait: Callable[[], None] | None) -> None:
    way()
    if wait:
        wait()


def typical_ratio(one: list[float], other: list[float]) -> float:
    """Return the median of one / other over the repeats: within one, both felt the same machine."""
    return median(a / b for a, b in zip(one, other, strict=True))
