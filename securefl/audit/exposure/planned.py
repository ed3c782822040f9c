"""Messages that the settings have no place for, and those that are missing in a ledger."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from securefl.audit.exposure.views import Leak, way
from securefl.federation.incidents import PASSED, SPOILED, Incident
from securefl.federation.ledger import AUTHORITY, SERVER, Entry
from securefl.types import Kind

_NOT_ADDED = {Kind.PROFILES, Kind.SELECTION, Kind.CARDS}
_OPENED = {(SERVER, AUTHORITY), (AUTHORITY, SERVER)}
"""What is opened stands in the authority's log."""


@final
@dataclass(frozen=True, slots=True)
class Absences:
    """Who was out of a round, with a reason: nothing is missing of them."""

    finished: Collection[int]
    """Rounds that were done: of any other one, messages may be missing."""
    incidents: Sequence[Incident]
    latecomers: bool
    """Whether clients join by themselves: one may be away for whole rounds."""
    _since: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for incident in self.incidents:
            first = self._since.get(incident.client, incident.round)
            self._since[incident.client] = min(first, incident.round)

    def excuse(self, round_number: int, client: str, *, silent: bool) -> bool:
        """Whether a client may have sent or received less; `silent` where it did neither."""
        if round_number not in self.finished:
            return True
        if any(i.client == client and i.round == round_number for i in self.incidents):
            return True
        return silent and (self.latecomers or self.had_one(round_number, client))

    @property
    def spoiled(self) -> frozenset[int]:
        """Rounds that have left the model as it was: a total of theirs was refused, or too few."""
        return frozenset(i.round for i in self.incidents if i.name in {SPOILED, PASSED})

    def had_one(self, round_number: int, client: str) -> bool:
        """Whether something of a client was refused before: it is asked, and sent, again."""
        return self._since.get(client, round_number) < round_number


def unplanned(
    ledger: Sequence[Entry], expected: Sequence[Entry], absences: Absences
) -> Iterator[Leak]:
    """What one ledger has and the other has not; either may be in another form or length."""
    last = max((entry.round for entry in ledger), default=0)
    found = Counter(_what(e) for e in ledger if _counts(e))
    due = Counter(_what(e) for e in expected if _counts(e) and e.round <= last)
    heard = {(m.round, m.client) for m in found}
    again = _asked_again(expected)
    for m, times in (found - due).items():
        if absences.had_one(m.round, m.client) and (m.name, m.n_values) in again and times == 1:
            continue
        why = f"{times} x {m.n_values} values that no round of these settings has"
        yield Leak(m.round, m.name, m.way, why)
    for m, times in (due - found).items():
        if m.name.startswith("model/") and any(number < m.round for number in absences.spoiled):
            continue  # it had the model already, which has not changed
        silent = (m.round, m.client) not in heard
        if not absences.excuse(m.round, m.client, silent=silent):
            why = f"{times} x {m.n_values} values were sent and not written down"
            yield Leak(m.round, m.name, m.way, why)


def planned_sums(expected: Sequence[Entry]) -> Mapping[int, Collection[tuple[str, int]]]:
    """By round, name and size of what clients have added up."""
    found: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for entry in expected:
        if entry.receiver == SERVER and entry.kind not in _NOT_ADDED:
            found[entry.round].add((entry.name, entry.n_values))
    return found


@dataclass(frozen=True, slots=True)
class _Message:
    round: int
    name: str
    client: str
    way: str
    n_values: int


def _what(entry: Entry) -> _Message:
    client = entry.receiver if entry.sender == SERVER else entry.sender
    return _Message(entry.round, entry.name, client, way(entry), entry.n_values)


def _counts(entry: Entry) -> bool:
    """Whether it is of a round: cards are of a session (`cards.wrongly_carded`)."""
    return entry.kind is not Kind.CARDS and (entry.sender, entry.receiver) not in _OPENED


def _asked_again(expected: Sequence[Entry]) -> set[tuple[str, int]]:
    """Before a selection, of a client whose answer was refused."""
    return {(m.name, m.n_values) for e in expected if e.exchange == 0 for m in [_what(e)]}
