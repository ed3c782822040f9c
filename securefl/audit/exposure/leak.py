"""Something that is not as a run's settings promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from securefl.federation.ledger import Entry


@final
@dataclass(frozen=True, slots=True, order=True)
class Leak:
    """One message or file."""

    round: int
    what: str
    """The field."""
    who: str
    """Sender and receiver, or the file."""
    why: str

    @classmethod
    def of(cls, entry: Entry, why: str) -> Leak:
        """About one message."""
        return cls(entry.round, entry.name, way(entry), why)


def way(entry: Entry) -> str:
    """From whom to whom."""
    return f"{entry.sender} -> {entry.receiver}"
