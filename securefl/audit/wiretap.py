"""Looks at every byte on its way, and says of which messages something is readable.

A message is prefix, header, signature and payload. The header is the one that its ledger entry
implies, the signature its sender's; a payload in the clear is as long as its values; a sealed one
is ciphertexts that are uniform modulo each prime, and that open to nothing but what a client may
send. So nothing else fits between them. What hides in the noise of a ciphertext, or in when it is
sent, is not found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log, sqrt
from typing import final

import numpy as np

from securefl.audit.evidence import MEANS, VARIANCES, Leak
from securefl.config.schema import Config
from securefl.crypto.params import BOOKKEEPING_SLOTS, COUNT_TOLERANCE
from securefl.crypto.ring import RingFrame
from securefl.errors import MessageRefused
from securefl.exchange.base import Channel
from securefl.exchange.ckks import CkksSealer
from securefl.exchange.keyset import KeySet
from securefl.exchange.match_ckks import CkksProfileSealer
from securefl.exchange.match_forms import FORMS
from securefl.exchange.match_open import MatchKeys
from securefl.exchange.match_plain import PlainMatch
from securefl.exchange.matching import HEADER_BYTES
from securefl.exchange.plain import PlainChannel
from securefl.roles import wire
from securefl.roles.ledger import AUTHORITY, SERVER, Content, Entry
from securefl.terms import sealed_kinds
from securefl.types import Kind

UNEVEN = 1e-9
"""The probability that uniform coefficients look as uneven as is called readable here."""


@final
@dataclass(slots=True)
class Wiretap:
    """Inspects a run's messages; `Ledger.tap` of it."""

    config: Config
    keys: KeySet
    """The run's, since only who can open a ciphertext knows what is in it."""
    match_keys: MatchKeys
    """Of its profiles."""
    roster: wire.Roster
    plain: PlainChannel
    leaks: list[Leak] = field(default_factory=list)
    n_bytes: int = 0
    """Seen so far; of what a simulation hands over in memory, as it would be on a wire."""
    _run: str = ""

    def __call__(self, entry: Entry, content: Content) -> None:
        """Look at one message."""
        self.n_bytes += len(content) if isinstance(content, bytes) else entry.bytes
        try:
            why = self._readable(entry, content)
        except MessageRefused as error:
            why = str(error)
        if why:
            way = f"{entry.sender} -> {entry.receiver}"
            self.leaks.append(Leak(entry.round, entry.name, way, why))

    def _readable(self, entry: Entry, content: Content) -> str:
        """What is wrong with it; empty where nothing is."""
        if not isinstance(content, bytes):
            n = sum(value.numel() for value in content.values())
            return "" if n == entry.n_values else f"{n} values, {entry.n_values} are written down"
        if len(content) != entry.bytes:
            return f"{len(content):,} bytes, {entry.bytes:,} are written down"
        if entry.receiver == AUTHORITY:
            return self._to_authority(entry, content)
        if entry.sender in {SERVER, AUTHORITY} or entry.name in {MEANS, VARIANCES}:
            return ""
        return self._from_client(entry, content)

    def _from_client(self, entry: Entry, message: bytes) -> str:
        sealed = entry.kind in sealed_kinds(self.config)
        signed, payload = wire.split(message, len(message))
        self._run = self._run or signed.header.run
        channel, n = self._channel(entry.kind, sealed=sealed), entry.n_values
        due = wire.Expected.over(channel, self._run, entry.round, entry.name, n)
        if entry.kind is Kind.SELECTION:
            due = wire.number_expected(self._run, entry.round, entry.name)
        self.roster.check(signed, due)
        if signed.header != wire.describe(due, entry.sender, payload):
            return "its header says more than which message it is"
        if entry.kind is Kind.PROFILES:
            return self._profile(payload) if sealed else ""
        if entry.kind is Kind.SELECTION:
            return "" if len(payload) == wire.NUMBER.size else "more than one number"
        if sealed:
            return self._sealed(payload, n)
        too_many = len(payload) - self.plain.n_bytes(n)
        return f"{too_many} bytes too many" if too_many else ""

    def _channel(self, kind: Kind, *, sealed: bool) -> Channel:
        if kind is Kind.PROFILES:
            form = FORMS[self.config.selection.match]
            return CkksProfileSealer(form, self.match_keys.public) if sealed else PlainMatch()
        return CkksSealer(self.keys.public) if sealed else self.plain

    def _to_authority(self, entry: Entry, content: bytes) -> str:
        if entry.kind is Kind.PROFILES:
            return ""  # scores, each behind its exponent, which the authority opens
        frame = self.keys.adding.frame
        n_bytes = self.keys.public.parameters.message_bytes(entry.n_values)
        return _uneven(frame, frame.chunks(content[:n_bytes], n_bytes // frame.n_bytes))

    def _profile(self, payload: bytes) -> str:
        frame, sealed = self.match_keys.scoring.frame, payload[HEADER_BYTES:]
        return _uneven(frame, frame.chunks(sealed, len(sealed) // frame.n_bytes))

    def _sealed(self, payload: bytes, n_values: int) -> str:
        frame, parameters = self.keys.adding.frame, self.keys.public.parameters
        chunks = frame.chunks(payload, parameters.n_ciphertexts(n_values))
        if why := _uneven(frame, chunks):
            return why
        opened = np.stack([self.keys.secret.decrypt(chunk) for chunk in chunks])
        values, (weight, one) = opened[:, :-BOOKKEEPING_SLOTS].ravel(), opened[0, -2:]
        if not (abs(one - 1) <= COUNT_TOLERANCE and 0 < weight <= 1 + COUNT_TOLERANCE):
            return "it opens to no contribution of one client"
        padding = np.abs(values[n_values:]).max(initial=0.0)
        return "" if padding <= COUNT_TOLERANCE else "something stands behind its values"


def _uneven(frame: RingFrame, ciphertexts: Sequence[bytes]) -> str:
    """Where coefficients are not uniform modulo their prime, as those of ciphertexts are."""
    moduli, n = np.array(frame.moduli, np.float64)[:, None], frame.poly_degree
    allowed = sqrt(log(2 / UNEVEN) / (2 * n))  # Massart 1990: P[D > allowed] <= UNEVEN
    for ciphertext in ciphertexts:
        shares_PN = np.sort((frame.from_wire(ciphertext) / moduli).reshape(-1, n))
        if np.abs(shares_PN - np.arange(1, n + 1) / n).max() > allowed + 1 / n:
            return "its payload is no ciphertext: coefficients are not uniform"
    return ""
