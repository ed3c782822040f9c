"""Products of settings: those that have every pair run on each change, the rest with all tests.

What goes wrong between settings goes wrong between two of them, nearly always: a tenth of the
products has all pairs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from itertools import combinations, product
from pathlib import Path

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
    shown = {names: refused(axes, names) or set(_pairs(names)) for names in product(*axes)}
    missing, found = set().union(*shown.values()), []
    while missing:
        best = max(shown, key=lambda names: len(shown[names] & missing))
        missing -= shown[best]
        found.append(best)
    return found


def each(axes: Axes, products: Iterable[Names]) -> list[Names]:
    """Return few of these products, with every name and none refused: for what is beside them."""
    left = [names for names in products if not refused(axes, names)]
    missing, found = {place for names in left for place in enumerate(names)}, []
    while missing:
        best = max(left, key=lambda names: len(missing.intersection(enumerate(names))))
        missing -= set(enumerate(best))
        found.append(best)
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
