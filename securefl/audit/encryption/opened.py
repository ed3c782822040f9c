"""What the authority's log says was decrypted: how often, of how many clients, by which key."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import final

from securefl.exchange.matching import SCORE
from securefl.federation.opening import Opening


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
    """Uses of the keys that clients make cards for in an epoch, by the log: for sums, or scores."""

    key_id: str
    epoch: int
    scores: bool
    """True where scores of profiles were asked for, not totals."""
    openings: int
    """Requests, refused ones among them: some were refused after officers had answered, and the log
    does not say which."""
    fewest: int
    """Clients on a list that was answered, at least; 0 where none was."""


def key_uses(openings: Iterable[Opening]) -> tuple[KeyUse, ...]:
    """By epoch and key."""
    keys: dict[tuple[bool, int, str], list[Opening]] = defaultdict(list)
    for row in openings:
        keys[row.name == SCORE, row.epoch, row.key_id].append(row)
    return tuple(_use(*key, rows) for key, rows in sorted(keys.items()))


def _use(scores: bool, epoch: int, key_id: str, rows: Sequence[Opening]) -> KeyUse:
    fewest = min((len(set(row.signers)) for row in rows if not row.refused), default=0)
    return KeyUse(key_id, epoch, scores, len(rows), fewest)


def answered_again(openings: Iterable[Opening]) -> int:
    """Return how many totals were opened for a session, round and name that had one before.

    The difference of two shows the clients that are in one of them alone. Scores count by client:
    a second one is a second number of its profile.
    """
    times = Counter(
        (row.run, row.round, row.name, client)
        for row in openings
        if row.run and not row.refused
        for client in (row.signers if row.name == SCORE else ("",))
    )
    return sum(n - 1 for n in times.values())


def refusals(openings: Iterable[Opening]) -> dict[str, int]:
    """How often each reason was given, without round and name; the most frequent first."""
    reasons = (_reason(row) for row in openings if row.refused)
    return dict(sorted(Counter(reasons).items(), key=lambda item: (-item[1], item[0])))


def _reason(row: Opening) -> str:
    return row.refused.removeprefix(f"round {row.round}, {row.name!r}: ")


def differing_by_one(openings: Iterable[Opening]) -> int:
    """Return the number of pairs of groups of opened totals that differ by one client.

    The totals are of one name, or of one round, as one message may follow from another. Their
    difference is that client's value, as far as the others' have not changed.
    """
    groups: dict[str | tuple[str, int], set[frozenset[str]]] = defaultdict(set)
    for row in openings:
        if not row.refused and row.name != SCORE:
            for alike in (row.name, (row.run, row.round)):
                groups[alike].add(frozenset(row.signers))
    pairs = {frozenset(pair) for found in groups.values() for pair in combinations(found, 2)}
    return sum(len(one ^ two) == 1 for one, two in pairs)
