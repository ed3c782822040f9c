"""Messages that the settings plan: which there are in a round, and how long each is."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from securefl.audit.exposure.leaks import Leak, way
from securefl.crypto.params import SUMS
from securefl.exchange.blind import n_answer_bytes, n_client_bytes
from securefl.exchange.card_keys import Quorum, cards_bytes
from securefl.exchange.one_time_match import profile_bytes
from securefl.exchange.plain import PlainChannel
from securefl.exchange.profile_match import SCORE, UNIT, PlainMatch
from securefl.exchange.sums import ONE_TIME, ONE_TIME_PROFILE
from securefl.federation.incidents import BOOKKEEPING_BYTES, PASSED, SPOILED, Incident
from securefl.federation.ledger import AUTHORITY, SERVER, Entry
from securefl.federation.message import (
    CARD_FORM,
    NUMBER,
    NUMBER_FORM,
    Expected,
    n_message_bytes,
)
from securefl.federation.opening import Opening
from securefl.federation.total import RELEASED, n_total_bytes
from securefl.types import Floats, Kind

_NOT_ADDED = {Kind.PROFILES, Kind.SELECTION, Kind.CARDS}
_OPENED = {(SERVER, AUTHORITY), (AUTHORITY, SERVER)}
"""Senders and receivers of what is opened, which the authority's log has."""


@final
@dataclass(frozen=True, slots=True)
class Absences:
    """Absences from rounds with a reason: nothing is missing of these clients."""

    finished: Collection[int]
    """Rounds that were done: of any other one, messages may be missing."""
    incidents: Sequence[Incident]
    latecomers: bool
    """True where clients join by themselves: one may be away for whole rounds."""
    _since: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for incident in self.incidents:
            first = self._since.get(incident.client, incident.round)
            self._since[incident.client] = min(first, incident.round)

    def excuse(self, round_number: int, client: str, *, silent: bool) -> bool:
        """Return whether a client may have sent or received less; `silent` where it did neither."""
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
        """Return whether something of a client was refused before: it is asked, and sent, again."""
        return self._since.get(client, round_number) < round_number


def unplanned(
    ledger: Sequence[Entry], expected: Sequence[Entry], absences: Absences
) -> Iterator[Leak]:
    """Yield what one ledger has and the other has not; either may be in another form or length."""
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
    """Return name and size of what clients have added up, by round."""
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
    """Return whether a message is of a round: cards are of a session (`wrongly_carded`)."""
    return entry.kind is not Kind.CARDS and (entry.sender, entry.receiver) not in _OPENED


def _asked_again(expected: Sequence[Entry]) -> set[tuple[str, int]]:
    """Return what is asked before a selection, and again of a client whose answer was refused."""
    return {(m.name, m.n_values) for e in expected if e.exchange == 0 for m in [_what(e)]}


_ANY_HASH = "0" * 64
_UNDER_A_MODEL = set(Kind) - {Kind.SELECTION, Kind.CARDS}
"""Kinds whose messages name the model that their senders were sent."""
_ANY_EPOCH = (1, 10, 100)
"""Epochs that are tried where no log names a key's: its digits are part of a header."""
Epochs = Mapping[tuple[int, str, str], int]


@final
@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of a run's messages, by its settings and its log of openings."""

    dtype: Floats
    """Number format of the model."""
    epochs: Epochs
    """Epochs of keys, by round, name and client."""
    quorum: Quorum
    """Officers that clients make cards for."""
    lists: Mapping[tuple[int, str], Sequence[Sequence[str]]]
    """Clients of each total that was opened, by round and name."""

    @classmethod
    def of(cls, dtype: Floats, openings: Sequence[Opening], quorum: Quorum) -> "Lengths":
        """Take the authority's word for the keys that messages were sealed under."""
        epochs = {(o.round, o.name, signer): o.epoch for o in openings for signer in o.signers}
        lists = defaultdict[tuple[int, str], list[Sequence[str]]](list)
        for o in openings:
            lists[o.round, o.name].append(o.signers)
        return cls(dtype, epochs, quorum, lists)

    def due(self, entry: Entry) -> frozenset[int]:
        """Return the lengths that a message may have; none of what a server shows the authority.

        But for cards, which it passes on: `wrongly_carded` compares those. None either of a total
        that is sealed for clients, where no log names them.
        """
        if entry.form == "ciphertext" and AUTHORITY != entry.receiver != SERVER:
            return frozenset(self._blind(entry, n_client_bytes))
        if entry.form == "ciphertext" and entry.sender == AUTHORITY:
            return frozenset(self._blind(entry, n_answer_bytes))
        if entry.sender == SERVER:
            return frozenset(() if entry.receiver == AUTHORITY else [self._to_client(entry)])
        if entry.sender == AUTHORITY:
            return frozenset([8 * entry.n_values + (entry.name != SCORE) * BOOKKEEPING_BYTES])
        return frozenset(self._from_client(entry))

    def _blind(self, entry: Entry, n_bytes: Callable[[Sequence[str], int], int]) -> Iterator[int]:
        content = n_total_bytes(entry.n_values, RELEASED)
        for names in self.lists.get((entry.round, entry.name), ()):
            yield n_bytes(names, content)

    def _to_client(self, entry: Entry) -> int:
        if entry.name == UNIT:
            return NUMBER.size
        n_bytes = entry.n_values * np.dtype(self.dtype).itemsize
        return n_bytes + (BOOKKEEPING_BYTES if entry.exchange else 0)

    def _from_client(self, entry: Entry) -> Iterator[int]:
        form, n_values, payload_bytes = self._payload(entry)
        logged = SCORE if entry.kind is Kind.PROFILES else entry.name
        sealed = entry.form == "ciphertext"
        known = self.epochs.get((entry.round, logged, entry.sender))
        key_id = _ANY_HASH if sealed else ""
        for epoch in (_ANY_EPOCH if known is None else (known,)) if sealed else (0,):
            state = _ANY_HASH if entry.kind in _UNDER_A_MODEL else ""
            model = "" if entry.kind is Kind.PROFILES else state
            about = entry.round, entry.name, form, key_id, epoch, n_values, state, model
            if entry.kind is Kind.CARDS:
                about = 0, *about[1:]  # they are of a session, whatever round they come before
            yield n_message_bytes(Expected(_ANY_HASH, *about), entry.sender, payload_bytes)

    def _payload(self, entry: Entry) -> tuple[str, int, int]:
        """Return a payload's encoding, the values that its header names, and its length."""
        n, sealed = entry.n_values, entry.form == "ciphertext"
        if entry.kind is Kind.SELECTION:
            return NUMBER_FORM, n, NUMBER.size
        if entry.kind is Kind.CARDS:
            return CARD_FORM, n, cards_bytes(self.quorum)
        if entry.kind is Kind.PROFILES:
            match = PlainMatch()
            in_clear = match.form, n, match.n_bytes(n // 2)
            return (ONE_TIME_PROFILE, n, profile_bytes(n // 2)) if sealed else in_clear
        plain = PlainChannel(self.dtype)
        return (ONE_TIME, n, SUMS.message_bytes(n)) if sealed else (plain.form, n, plain.n_bytes(n))
