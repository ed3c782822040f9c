"""Ledger of all messages, one entry each, and traffic as the papers count it."""

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, cast

from securefl.types import LOSS, SIZE, Kind, NamedTensors

SERVER = "server"
AUTHORITY = "authority"
PAPER_VALUE_BYTES = 4
MEBIBYTE = 2**20
ANSWERS = {SIZE: "numbers of samples", LOSS: "mean losses"}
"""Words for what clients tell a selector, always in the clear, by the message's name."""
MOST_SENDERS = 10
"""Clients that a notebook shows one by one."""

Form = Literal["plaintext", "ciphertext"]
Row = TypeVar("Row")


def utc_now() -> str:
    """Return the time, UTC, to the second: `2026-11-26T08:15:30Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def as_written(row: Row, line: bytes) -> Row:
    """Return a row read from a line of JSON, without a time where the line has none.

    Older folders' lines have none, and the time of reading would stand for it.
    """
    return row if b'"at":' in line else cast("Row", replace(cast("Any", row), at=""))


@dataclass(frozen=True, slots=True)
class Entry:
    """Ledger entry of one message."""

    round: int
    exchange: int
    """Number of the exchange in its round, from 0, the broadcast of the model; messages that travel
    together share it."""
    name: str
    kind: Kind
    sender: str
    receiver: str
    form: Form
    n_values: int
    bytes: int
    """Length of the whole message in bytes, header and signature included."""
    at: str = field(default_factory=utc_now, compare=False, repr=False)
    """Time, UTC."""
    run: str = field(default="", compare=False, repr=False)
    """Id of the session in which it was written; empty before that."""


Content: TypeAlias = "bytes | NamedTensors"
"""Content of a message: its bytes, or the tensors that a simulation hands over in memory."""


class Tap(Protocol):
    """Reader of messages on their way (audits)."""

    def __call__(self, entry: Entry, content: Content) -> None:
        """Read one message, before its receiver does."""


@dataclass(slots=True, repr=False)
class Ledger:
    """All messages of a run, in order."""

    entries: list[Entry] = field(default_factory=list)
    tap: Tap | None = None

    def note(self, entry: Entry, content: Content) -> None:
        """Write down a message that is on its way."""
        self.entries.append(entry)
        if self.tap:
            self.tap(entry, content)

    def upload_bytes(self) -> dict[str, int]:
        """Return the number of bytes that each client sent."""
        sent: dict[str, int] = defaultdict(int)
        for entry in self.entries:
            if entry.receiver == SERVER and entry.sender != AUTHORITY:
                sent[entry.sender] += entry.bytes
        return dict(sent)

    def bytes_by_kind(self) -> dict[tuple[Kind, str], int]:
        """Return the number of bytes of all messages by kind and form."""
        sums: dict[tuple[Kind, str], int] = defaultdict(int)
        for entry in self.entries:
            sums[entry.kind, entry.form] += entry.bytes
        return dict(sums)

    def server_reads(self) -> set[Kind]:
        """Return the kinds of values that single clients sent to the server in the clear."""
        return {
            entry.kind
            for entry in self.entries
            if entry.receiver == SERVER and entry.sender != AUTHORITY and entry.form == "plaintext"
        }

    def server_reads_in_words(self) -> list[str]:
        """Return these kinds, and in the place of answers to a selector what they say."""
        kinds = self.server_reads() - {Kind.SELECTION}
        return sorted([*kinds, *{ANSWERS[e.name] for e in self.entries if e.name in ANSWERS}])

    def paper_megabytes(self, round_number: int) -> float:
        """Return the traffic of one round in MiB, as FedTAN's Table 3 counts it.

        Values have 32 bits; each client's upload counts, and one broadcast for all; headers,
        encryption and the authority do not.
        """
        uploads = broadcasts = 0
        announced = set()
        for entry in self._round(round_number):
            if entry.receiver == SERVER and entry.sender != AUTHORITY:
                uploads += entry.n_values
            elif entry.sender == SERVER and entry.receiver != AUTHORITY:
                key = entry.exchange, entry.name
                broadcasts += 0 if key in announced else entry.n_values
                announced.add(key)
        return (uploads + broadcasts) * PAPER_VALUE_BYTES / MEBIBYTE

    def communication_rounds(self, round_number: int) -> int:
        """Return the number of exchanges of one round in which clients sent: 3L + 1 for FedTAN.

        Cards, which clients give once a session, do not count.
        """
        sent = (e for e in self._round(round_number) if e.receiver == SERVER)
        return len({e.exchange for e in sent if e.kind is not Kind.CARDS})

    def __repr__(self) -> str:
        return f"Ledger({len(self.entries):,} messages)"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: messages by kind and form, and what the server reads."""
        from securefl.io.html import PageTable, notebook_html

        sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        for entry in self.entries:
            sums[entry.kind, entry.form][0] += 1
            sums[entry.kind, entry.form][1] += entry.bytes
        kinds = [
            (kind, form, f"{times:,}", f"{size / MEBIBYTE:,.2f}")
            for (kind, form), (times, size) in sums.items()
        ]
        sent = [(name, f"{size / MEBIBYTE:,.2f}") for name, size in self.upload_bytes().items()]
        of = f", {MOST_SENDERS} of {len(sent):,}" if len(sent) > MOST_SENDERS else ""
        tables = [
            PageTable("Messages", ("Kind", "Form", "Messages", "MiB"), kinds),
            PageTable(f"Sent by clients{of}", ("Client", "MiB"), sent[:MOST_SENDERS]),
        ]
        read = ", ".join(self.server_reads_in_words()) or "nothing"
        words = [f"Sent to the server in the clear, of single clients: {read}."]
        return notebook_html(f"{len(self.entries):,} messages", words if sent else [], tables)

    def _round(self, number: int) -> Iterable[Entry]:
        return (entry for entry in self.entries if entry.round == number)
