"""Leaks: messages and files of a run that are not as the settings promise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from securefl.federation.ledger import Entry


@final
@dataclass(frozen=True, slots=True, order=True)
class Leak:
    """Message or file that is not as the settings promise."""

    round: int
    what: str
    """Field of a message, or name of a file."""
    who: str
    """Sender and receiver, or the file."""
    why: str

    @classmethod
    def of(cls, entry: Entry, why: str) -> "Leak":
        """Return the leak of one message."""
        return cls(entry.round, entry.name, way(entry), why)


def way(entry: Entry) -> str:
    """Return sender and receiver, as "a -> b"."""
    return f"{entry.sender} -> {entry.receiver}"


@final
@dataclass(frozen=True, slots=True)
class InspectedRounds:
    """First rounds of a run, played again with every byte looked at."""

    rounds: int
    leaks: Sequence[Leak]
    seen_bytes: int
    ledger_bytes: int
    stopped: str = ""
    """Reason for an end before the rounds that were asked for; empty where there was none."""
