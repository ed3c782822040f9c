"""Scales of a site's columns: whether these can be standardised, and by which unit they could be.

Sums of a column and of its squares travel, in a range, and one that hardly varies is taken for
constant. So a column has a size that nobody's data need tell: a public unit.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from securefl.data.catalogue import Targets
from securefl.errors import DataError
from securefl.settings.samples import SamplesTable

LEAST_DEVIATION = 0.01
"""Least standard deviation of a column in its unit at one site."""
MOST_TARGET = 100.0
"""Largest root mean square of a target in its unit: SGD diverges at 30 with a rate of 0.1, and at
300 with 0.01."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_MOST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class _Column:
    """A column that does not suit its unit."""

    name: str
    why: str
    exponent: int | None
    """Power of ten to divide its values by; None where no unit helps."""


def check_scales(x: Tensor, y: Tensor, form: SamplesTable, limit: float, where: str) -> None:
    """Raise DataError where training samples do not suit their units; it names columns and units.

    Args:
        x: samples, as the model reads them.
        y: their targets.
        form: the form that all sites' samples have.
        limit: largest absolute mean or variance that a site can send.
        where: stands in front of the message.
    """
    found = [*_of_columns(x, form, limit), *_of_target(y, form)]
    if not found:
        return
    reasons = [f"{column.name!r:.60} {column.why}" for column in found[:_MOST_SHOWN]]
    if len(found) > _MOST_SHOWN:
        reasons.append(f"and {len(found) - _MOST_SHOWN} more")
    raise DataError(f"{where}: {'; '.join(reasons)}: {_way_out(found, form)}")


def _of_columns(x: Tensor, form: SamplesTable, limit: float) -> Iterator[_Column]:
    if not form.standardise:
        return
    places: Mapping[str, int] = form.numbers
    if form.shape:
        places = {f"x[:, {channel}]": channel for channel in range(x.shape[1])}
    kind = torch.finfo(x.dtype)
    for name, place in places.items():
        values = x[:, place].double()
        least, most = float(values.min()), float(values.max())
        size, reach = max(-least, most), (most - least) / 2
        deviation = float(values.std(correction=0))
        about = f"goes from {least:.2g} to {most:.2g}, with a standard deviation of {deviation:.2g}"
        exponent = _exponent(deviation or size, max(size / limit, reach / math.sqrt(limit)))
        if 0 < deviation < 100 * kind.eps * size:
            yield _Column(name, f"{about}, too little for {kind.bits} bits", None)
        elif size > limit or reach > math.sqrt(limit):  # no batch's variance is above reach squared
            rule = f"at most ±{limit:.4g}, and {2 * math.sqrt(limit):.0f} apart, can be sent"
            yield _Column(name, f"{about}, and {rule}", exponent)
        elif 0 < deviation < LEAST_DEVIATION:
            yield _Column(name, f"{about}, and {LEAST_DEVIATION} is the least", exponent)


def _of_target(y: Tensor, form: SamplesTable) -> Iterator[_Column]:
    if form.targets is not Targets.NUMBERS:  # of times, the order alone counts
        return
    size, deviation = float(y.double().square().mean().sqrt()), float(y.double().std(correction=0))
    about = f"has a mean of {float(y.double().mean()):.2g}, a standard deviation of {deviation:.2g}"
    exponent = _exponent(deviation or size, size / 10)
    if size > MOST_TARGET:
        yield _Column(form.target, f"{about}, and training needs at most {MOST_TARGET:g}", exponent)
    elif 0 < deviation < LEAST_DEVIATION:
        yield _Column(form.target, f"{about}, and training needs {LEAST_DEVIATION}", exponent)


def _exponent(spread: float, least: float) -> int:
    """Return that of the power of ten next to `spread`, and not below `least`; 0 for zeros."""
    if not spread:
        return 0
    above = math.ceil(math.log10(least)) if least else -1000
    return max(round(math.log10(spread)), above)


def _way_out(found: list[_Column], form: SamplesTable) -> str:
    """Return what all sites can do about these columns."""
    ways = []
    units = {c.name: c.exponent for c in found if c.exponent is not None}
    arrays = {name: units.pop(name) for name in [*units] if form.shape and name != form.target}
    if units:
        known = {name: f"{unit:g}" for name, unit in form.units.items()}
        own = {n: f"1e{e + round(math.log10(form.units.get(n, 1)))}" for n, e in units.items()}
        line = ", ".join(f"{_key(name)} = {unit}" for name, unit in {**known, **own}.items())
        ways.append(f"have all sites set samples.units = {{ {line} }}")
    if arrays:
        ways.append(f"have all sites give arrays that are divided by 1e{max(arrays.values())}")
    if any(column.exponent is None for column in found):
        ways.append("have all sites leave out of it what all samples share, as in years since 2000")
    return f"{'; '.join(ways)}; or mend what is mistyped"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)
