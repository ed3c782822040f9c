"""How long each message must be: what is beside its values would be something else's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from securefl.crypto.params import SUMS
from securefl.exchange.blind import n_answer_bytes, n_client_bytes
from securefl.exchange.card_keys import Quorum, cards_bytes
from securefl.exchange.one_time_match import profile_bytes
from securefl.exchange.plain import PlainChannel
from securefl.exchange.profile_match import SCORE, UNIT, PlainMatch
from securefl.exchange.sums import ONE_TIME, ONE_TIME_PROFILE
from securefl.federation.incidents import BOOKKEEPING_BYTES
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

_ANY_HASH = "0" * 64
_UNDER_A_MODEL = set(Kind) - {Kind.SELECTION, Kind.CARDS}
"""Whose messages name the model that their senders were sent."""
_ANY_EPOCH = (1, 10, 100)
"""Where no log names a key's epoch: its digits are part of a header."""
Epochs = Mapping[tuple[int, str, str], int]


@final
@dataclass(frozen=True, slots=True)
class Lengths:
    """Of a run's messages, by its settings and its log of openings."""

    dtype: Floats
    """Of the model."""
    epochs: Epochs
    """By round, name and client."""
    quorum: Quorum
    """Officers that clients make cards for."""
    lists: Mapping[tuple[int, str], Sequence[Sequence[str]]]
    """Clients of each total that was opened, by round and name."""

    @classmethod
    def of(cls, dtype: Floats, openings: Sequence[Opening], quorum: Quorum) -> Lengths:
        """As the authority has logged which keys messages were sealed under."""
        epochs = {(o.round, o.name, signer): o.epoch for o in openings for signer in o.signers}
        lists = defaultdict[tuple[int, str], list[Sequence[str]]](list)
        for o in openings:
            lists[o.round, o.name].append(o.signers)
        return cls(dtype, epochs, quorum, lists)

    def due(self, entry: Entry) -> frozenset[int]:
        """The lengths that a message may have; none of what a server shows the authority.

        But for cards, which it passes on: `Cards` compares those. None either of a total that is
        sealed for clients, where no log names them.
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
        """Its encoding, the values that its header names, and its length."""
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
