"""Keys of a run, by what was opened under them."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from securefl.federation.opening import Opening


@dataclass(frozen=True, slots=True)
class KeyTally:
    """Totals and scores that were asked for under one key."""

    key_id: str
    epoch: int
    opened: int
    refused: int


def key_tallies(openings: Iterable[Opening]) -> Iterator[KeyTally]:
    """Yield each key that totals or scores were asked for under, by epoch."""
    opened, refused = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for row in openings:
        (refused if row.refused else opened)[row.key_id, row.epoch] += 1
    for key_id, epoch in sorted({*opened, *refused}, key=lambda key: (key[1], key[0])):
        yield KeyTally(key_id, epoch, opened[key_id, epoch], refused[key_id, epoch])
