"""Products of settings: those that have every pair run on each change, the rest with all tests.

What goes wrong between settings goes wrong between two of them, nearly always: a tenth of the
products has all pairs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
from combinations import Settings, reason

Axes = tuple[Mapping[str, Settings], ...]
Names = tuple[str, ...]


def refused(axes: Axes, names: Names) -> set[tuple[int, Names]]:
    """Return pairs in a product that do not go together."""
    chosen = [axis[name] for axis, name in zip(axes, names, strict=True)]
    clashes = [bool(reason(*pair)) for pair in combinations(chosen, 2)]
    return {pair for pair, clash in zip(_pairs(names), clashes, strict=True) if clash}


def covering(*axes: Mapping[str, Settings]) -> list[Names]:
    """Return few products with every pair, refused ones too: the next has most new ones.

    A product that is refused shows no more than that: it counts for the pairs that clash in it.
    """
    return _few({n: refused(axes, n) or set(_pairs(n)) for n in product(*axes)})


def each(axes: Axes, products: Iterable[Names]) -> list[Names]:
    """Return few of these products, with every name and none refused: for what is beside them."""
    return _few({n: set(enumerate(n)) for n in products}, lambda n: not refused(axes, n))


def _few(
    shown: Mapping[Names, set[tuple[int, Any]]], fits: Callable[[Names], bool] = lambda _: True
) -> list[Names]:
    """Return few that fit and show whatever those do: the next has most that is new.

    Of several it is the first. One that is not asked about shows nothing new: asking takes long.
    """
    missing, found = set().union(*shown.values()), []
    left = [(-len(shown[names]), place, names) for place, names in enumerate(shown)]
    heapify(left)
    while missing and left:
        _, place, names = heappop(left)
        new = shown[names] & missing
        if left and (-len(new), place) > left[0][:2]:  # that one had more, and may have still
            heappush(left, (-len(new), place, names))
        elif new and fits(names):
            missing -= new
            found.append(names)
    return found


def marked(products: Iterable[Names], few: Iterable[Names]) -> list[pytest.ParameterSet]:
    """Return these products for `parametrize`; whatever is not among the few is marked `full`."""
    few = set(few)
    return [
        pytest.param(*names, id="-".join(names), marks=() if names in few else pytest.mark.full)
        for names in products
    ]


def grid(*axes: Mapping[str, Settings]) -> list[pytest.ParameterSet]:
    """Return all products for `parametrize`; whatever is no part of `covering` is marked `full`."""
    return marked(product(*axes), covering(*axes))


def _pairs(names: Names) -> list[tuple[int, Names]]:
    return list(enumerate(combinations(names, 2)))
