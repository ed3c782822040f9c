"""Two logs of the same openings, row by row: the run folder's, and the authority's own."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import final

from securefl.federation.opening import Opening

_FIELDS = tuple(field.name for field in fields(Opening))
_MOST_SHOWN = 80
"""Characters of a field's value."""
_ALIKE: tuple[Callable[[Opening], Hashable], ...] = (
    lambda row: row,  # equal rows may have two times
    lambda row: (row.run, row.round, row.name, row.signers),
    lambda row: (row.run, row.round, row.name),
    lambda row: replace(row, run=""),
    lambda row: replace(row, round=0),
    lambda row: replace(row, name=""),
)
"""Keys by which two rows are of one opening, one of them changed; the nearest first."""


@final
@dataclass(frozen=True, slots=True)
class Difference:
    """Opening of which two logs do not say the same."""

    row: Opening
    """Row of the log that has it; the folder's where both have one."""
    in_own: bool
    """True where the authority's own log has a row of it."""
    why: str
    """Difference in words."""


def differences(
    folder: Sequence[Opening], own: Sequence[Opening], *, timed: bool
) -> tuple[Difference, ...]:
    """Return where two logs differ: a changed row is one difference, and no second opening.

    Args:
        folder: rows of the run's folder.
        own: rows of the authority's own log.
        timed: True where one log is a copy of the other, so that times are alike; not where
            another process has written it, by a clock of its own.
    """
    if not timed:
        folder, own = ([replace(row, at="") for row in rows] for rows in (folder, own))
    here, there = (Counter((row, row.at) for row in rows) for rows in (folder, own))
    alone, others = ([row for row, _ in rows.elements()] for rows in (here - there, there - here))
    return tuple(_paired(alone, others))


def _paired(alone: Sequence[Opening], others: Sequence[Opening]) -> Iterator[Difference]:
    for key in _ALIKE:
        waiting = defaultdict[Hashable, deque[Opening]](deque)
        for row in others:
            waiting[key(row)].append(row)
        rest = list[Opening]()
        for row in alone:
            if near := waiting[key(row)]:
                yield Difference(row, True, _in_words(row, near.popleft()))
            else:
                rest.append(row)
        alone, others = rest, [row for rows in waiting.values() for row in rows]
    yield from (Difference(row, False, "not in the authority's own log") for row in alone)
    yield from (Difference(row, True, "opened, and not in the folder") for row in others)


def _in_words(here: Opening, there: Opening) -> str:
    return "; ".join(
        f"{name} {_said(of)} in the folder, and {_said(other)} in the authority's own log"
        for name in _FIELDS
        if (of := getattr(here, name)) != (other := getattr(there, name))
    )


def _said(value: object) -> str:
    said = ", ".join(value) if isinstance(value, tuple) else str(value)
    return f"{said:.{_MOST_SHOWN}}" or "empty"
