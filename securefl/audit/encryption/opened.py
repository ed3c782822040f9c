"""What the authority's log says was decrypted: how often, of how many clients, by which key."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import final

from securefl.crypto.params import SUMS
from securefl.exchange.match_flood import MAX_RELEASES
from securefl.exchange.matching import SCORE
from securefl.exchange.policy import Flooding
from securefl.federation.authority import Opening


@final
@dataclass(frozen=True, slots=True)
class Opened:
    """Openings of one kind of name."""

    what: str
    """`*/mean` for all layers' means; else the name."""
    times: int
    """That were opened."""
    n_values: int
    """In all of them."""
    fewest: int
    """Clients in one of them, at least; 0 where none was opened."""
    refused: int

    @property
    def of_single_clients(self) -> bool:
        """Scores of profiles are: each is of one client, where a total is of all of its."""
        return self.what == SCORE


def opened_by_name(openings: Iterable[Opening]) -> tuple[Opened, ...]:
    """By kind of name, in alphabetical order."""
    groups: dict[str, list[Opening]] = defaultdict(list)
    for opening in openings:
        groups[kind_of_name(opening.name)].append(opening)
    return tuple(_group(what, groups[what]) for what in sorted(groups))


def kind_of_name(name: str) -> str:
    """A layer's sums under one name for all layers: `stage1.0.bn1/mean` as `*/mean`."""
    layer, slash, what = name.rpartition("/")
    return name if not slash or layer in {"update", "profile"} else f"*/{what}"


def _group(what: str, rows: Sequence[Opening]) -> Opened:
    done = [row for row in rows if not row.refused]
    return Opened(
        what,
        len(done),
        sum(row.n_values for row in done),
        min((row.n_clients for row in done), default=0),
        len(rows) - len(done),
    )


@final
@dataclass(frozen=True, slots=True)
class KeyUse:
    """What one key has released, by the log."""

    key_id: str
    epoch: int
    scores: bool
    """Whether it is a key of profile matches."""
    openings: int
    released: int
    """Values, a ciphertext's N/2 slots each time. Refused ones count: some were refused after they
    had been decrypted, and the log does not say which. So it is this many at most."""
    allowed: int | None
    """τ; None without flooding."""

    @property
    def left(self) -> int | None:
        """Values that it may still release; None where nothing bounds them."""
        return None if self.allowed is None else max(0, self.allowed - self.released)


def key_uses(openings: Iterable[Opening], flooding: Flooding | None) -> tuple[KeyUse, ...]:
    """By epoch and key."""
    keys: dict[tuple[bool, int, str], list[Opening]] = defaultdict(list)
    for row in openings:
        keys[row.name == SCORE, row.epoch, row.key_id].append(row)
    return tuple(_use(*key, rows, flooding) for key, rows in sorted(keys.items()))


def _use(
    scores: bool,
    epoch: int,
    key_id: str,
    rows: Sequence[Opening],
    flooding: Flooding | None,
) -> KeyUse:
    if scores:
        released, allowed = sum(row.n_values for row in rows), MAX_RELEASES
        return KeyUse(key_id, epoch, scores, len(rows), released, allowed)
    released = sum(SUMS.n_released(row.n_values) for row in rows)
    most = flooding.releases if flooding else None
    return KeyUse(key_id, epoch, scores, len(rows), released, most)


def refusals(openings: Iterable[Opening]) -> dict[str, int]:
    """How often each reason was given, without round and name; the most frequent first."""
    reasons = (_reason(row) for row in openings if row.refused)
    return dict(sorted(Counter(reasons).items(), key=lambda item: (-item[1], item[0])))


def _reason(row: Opening) -> str:
    return row.refused.removeprefix(f"round {row.round}, {row.name!r}: ")


def differing_by_one(openings: Iterable[Opening]) -> int:
    """Pairs of groups of clients of which totals of one name were opened, and one more is in one.

    Their difference is that client's value, as far as the others' have not changed.
    """
    groups: dict[str, set[frozenset[str]]] = defaultdict(set)
    for row in openings:
        if not row.refused and row.name != SCORE:
            groups[row.name].add(frozenset(row.signers))
    return sum(
        len(one ^ two) == 1 for found in groups.values() for one, two in combinations(found, 2)
    )
