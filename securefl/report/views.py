"""Views of each party of a run: every byte of the ledger, and what it shows."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import final

from securefl.federation.ledger import AUTHORITY, SERVER, Entry, Form
from securefl.types import Kind

OUTSIDER = "outside reader"
_NUMBERS = re.compile(r"\d+")


class Shows(StrEnum):
    """Content that a field tells whoever received it."""

    ONE_CLIENT = "one client's own values"
    SCORES = "a score of each client"
    KEYS = "the secret that a client's keys follow from"
    TOTAL = "totals over clients"
    MODEL = "the global model"
    LENGTH = "its length alone"


@final
@dataclass(frozen=True, slots=True)
class Field:
    """Messages of one kind of content that a party received."""

    name: str
    """Name as in the ledger, with * for the layer's number."""
    kind: Kind
    form: Form
    senders: tuple[str, ...]
    times: int
    n_values: int
    bytes: int
    shows: Shows


@final
@dataclass(frozen=True, slots=True)
class PartyView:
    """View of one party: all that it received."""

    party: str
    fields: tuple[Field, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all messages."""
        return sum(field.bytes for field in self.fields)

    @property
    def reads_single_clients(self) -> tuple[Field, ...]:
        """Fields that the party could read of one client alone."""
        return tuple(f for f in self.fields if f.shows is Shows.ONE_CLIENT)


def views(ledger: Sequence[Entry]) -> tuple[PartyView, ...]:
    """Return the views of the server, the authority, each client, and a reader of the wire.

    Every message has one receiver, so that the first views' bytes add up to the ledger's. The last
    is of somebody who taps all wires and breaks no TLS: it has lengths alone.
    """
    receivers = dict.fromkeys(entry.receiver for entry in ledger)
    clients = sorted((r for r in receivers if r not in {SERVER, AUTHORITY}), key=_natural)
    parties = [r for r in (SERVER, AUTHORITY) if r in receivers] + clients
    own = [view_of(party, (e for e in ledger if e.receiver == party)) for party in parties]
    return (*own, PartyView(OUTSIDER, _fields(ledger, lambda _entry: Shows.LENGTH)))


def view_of(party: str, received: Iterable[Entry]) -> PartyView:
    """Return one party's view, from what it received."""
    return PartyView(party, _fields(received, shown))


def shown(entry: Entry) -> Shows:
    """Return what a message tells its receiver."""
    from_client = entry.sender not in {SERVER, AUTHORITY}
    if from_client:
        return Shows.ONE_CLIENT if entry.form == "plaintext" else Shows.LENGTH
    if entry.kind is Kind.CARDS:
        return Shows.KEYS
    if entry.sender == AUTHORITY and entry.form == "ciphertext":
        return Shows.LENGTH  # sealed for clients
    if AUTHORITY in {entry.receiver, entry.sender}:
        return Shows.SCORES if entry.kind is Kind.PROFILES else Shows.TOTAL
    return Shows.MODEL if entry.exchange == 0 else Shows.TOTAL


def _fields(entries: Iterable[Entry], shows: Callable[[Entry], Shows]) -> tuple[Field, ...]:
    found: dict[tuple[str, Kind, Form, Shows], list[Entry]] = {}
    for entry in entries:
        key = of_all_layers(entry.name), entry.kind, entry.form, shows(entry)
        found.setdefault(key, []).append(entry)
    return tuple(
        Field(
            name,
            kind,
            form,
            tuple(sorted({e.sender for e in same}, key=_natural)),
            len(same),
            sum(e.n_values for e in same),
            sum(e.bytes for e in same),
            what,
        )
        for (name, kind, form, what), same in sorted(found.items())
    )


def of_all_layers(name: str) -> str:
    """Return one name for what layers of several numbers have: `stage*.bn/mean`."""
    return _NUMBERS.sub("*", name)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sorting key that puts client-2 before client-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
