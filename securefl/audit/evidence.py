"""Whether a run's folder tells of anything that left its sender as it should not have.

What should be there follows from the settings: which messages a round has, which of them are
sealed, and how long each is. What is missing, too much, of another form or of another length is a
leak until somebody explains it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, final

from securefl.crypto.params import SUMS
from securefl.engines.incidents import Incident
from securefl.exchange.ckks import FORM
from securefl.exchange.matching import PROFILE, SCORE
from securefl.exchange.plain import PlainChannel
from securefl.report.pictures import PICTURES
from securefl.roles import wire
from securefl.roles.authority import Opening
from securefl.roles.ledger import AUTHORITY, SERVER, Entry, Ledger
from securefl.runrecord import FILES, INCIDENTS, OPENINGS, RunRecord, read_rows
from securefl.terms import sealed_kinds
from securefl.types import Kind

PAGE, FINDINGS = "audit.html", "audit.json"
"""What an audit leaves in the run's folder."""
MEANS, VARIANCES = f"{PROFILE}/means", f"{PROFILE}/variances"
_DECIMALS = re.compile(r"\d\.\d{3,}|\d[eE][+-]?\d")
"""A measured number in a sentence; rules and round numbers are shorter."""


@final
@dataclass(frozen=True, slots=True, order=True)
class Leak:
    """Something that is not as the settings promise."""

    round: int
    what: str
    """The field."""
    who: str
    """Sender and receiver, or the file."""
    why: str


@final
@dataclass(frozen=True, slots=True)
class Evidence:
    """What a run's folder says of its messages."""

    run: RunRecord
    openings: Sequence[Opening] = ()
    incidents: Sequence[Incident] = ()
    files: Collection[str] = frozenset()

    @classmethod
    def of(cls, run: RunRecord) -> Evidence:
        """Raises RunFolderError where a file is damaged."""
        path = run.path
        openings = read_rows(path / OPENINGS, Opening)
        incidents = read_rows(path / INCIDENTS, Incident)
        return cls(run, openings, incidents, frozenset(file.name for file in path.iterdir()))


def leaks_in(
    evidence: Evidence, expected: Sequence[Entry], dtype: Literal["float32", "float64"]
) -> list[Leak]:
    """All that is not as it should be, by round.

    Args:
        evidence: of the run.
        expected: the ledger of the same settings in the clear; its messages are those that there
            should be.
        dtype: of the model.
    """
    return sorted(
        (
            *_wrong_forms(evidence),
            *_wrong_lengths(evidence, PlainChannel(dtype)),
            *_unplanned(evidence, expected),
            *_too_small_totals(evidence),
            *_uncounted_bytes(evidence),
            *_told(evidence),
        )
    )


def _wrong_forms(evidence: Evidence) -> Iterator[Leak]:
    sealed = sealed_kinds(evidence.run.config)
    for entry in evidence.run.ledger:
        if _from_client(entry) and entry.kind in sealed and entry.form == "plaintext":
            yield _leak(entry, "in plaintext, and the settings seal it")


def _wrong_lengths(evidence: Evidence, plain: PlainChannel) -> Iterator[Leak]:
    """Clients' sums: their messages have lengths that anybody can work out."""
    epochs = {(o.round, o.name): o.epoch for o in evidence.openings}
    for entry in evidence.run.ledger:
        if not _from_client(entry) or entry.kind in {Kind.PROFILES, Kind.SELECTION}:
            continue
        epoch = epochs.get((entry.round, entry.name), 1)
        due = _length(entry, plain, epoch)
        if entry.bytes != due:
            yield _leak(entry, f"{entry.bytes:,} bytes, where {entry.form} has {due:,}")


def _length(entry: Entry, plain: PlainChannel, epoch: int) -> int:
    n, any_hash = entry.n_values, "0" * 64
    if entry.form == "plaintext":
        expected = wire.Expected(any_hash, entry.round, entry.name, plain.form, "", 0, n)
        return wire.n_bytes(expected, entry.sender, plain.n_bytes(n))
    expected = wire.Expected(any_hash, entry.round, entry.name, FORM, any_hash, epoch, n)
    return wire.n_bytes(expected, entry.sender, SUMS.message_bytes(n))


def _unplanned(evidence: Evidence, expected: Sequence[Entry]) -> Iterator[Leak]:
    """Messages that the settings have no place for, and those that are not in the ledger."""
    last = max((entry.round for entry in evidence.run.ledger), default=0)
    found = Counter(_what(e) for e in evidence.run.ledger if _counts(e))
    due = Counter(_what(e) for e in expected if _counts(e) and e.round <= last)
    for (number, name, way, n), times in (found - due).items():
        yield Leak(number, name, way, f"{times} x {n} values that no round of these settings has")
    for (number, name, way, n), times in (due - found).items():
        yield Leak(number, name, way, f"{times} x {n} values were sent and not written down")


def _too_small_totals(evidence: Evidence) -> Iterator[Leak]:
    least = evidence.run.config.exchange.min_clients
    opened = [opening for opening in evidence.openings if not opening.refused]
    who = f"{AUTHORITY} -> {SERVER}"
    for o in opened:
        if o.name == SCORE:
            continue
        if min(o.n_clients, len(set(o.signers))) < least:
            yield Leak(o.round, o.name, who, f"opened of {o.n_clients} clients, below {least}")
    for (number, name), times in Counter((o.round, o.name) for o in opened).items():
        if times > 1 and name != SCORE:
            yield Leak(number, name, who, f"opened {times} times: totals that differ show clients")
    sent = Counter((e.round, e.name) for e in evidence.run.ledger if e.sender == AUTHORITY)
    logged = Counter((o.round, o.name) for o in opened)
    if OPENINGS in evidence.files:
        for number, name in sent - logged:
            yield Leak(number, name, who, "sent by the authority, and not in its log")


def _uncounted_bytes(evidence: Evidence) -> Iterator[Leak]:
    """What rounds say that clients have sent, against the ledger's messages."""
    by_round: dict[int, list[Entry]] = {}
    for entry in evidence.run.ledger:
        by_round.setdefault(entry.round, []).append(entry)
    for metrics in evidence.run.metrics:
        found = sum(Ledger(by_round.get(metrics.round, [])).upload_bytes().values())
        if found != metrics.upload_bytes:
            why = f"{metrics.upload_bytes:,} bytes were sent, and {found:,} are accounted for"
            yield Leak(metrics.round, "uploads", f"clients -> {SERVER}", why)


def _told(evidence: Evidence) -> Iterator[Leak]:
    """What files tell beside messages."""
    for incident in evidence.incidents:
        if _DECIMALS.search(incident.reason):
            yield Leak(incident.round, incident.name, INCIDENTS, "a client's value stands in it")
    for name in sorted({*evidence.files} - FILES - PICTURES - {PAGE, FINDINGS}):
        yield Leak(0, name, "the run's folder", "a file that no run writes")


def _from_client(entry: Entry) -> bool:
    return entry.sender not in {SERVER, AUTHORITY}


def _counts(entry: Entry) -> bool:
    return AUTHORITY not in {entry.sender, entry.receiver} and entry.name != VARIANCES


def _what(entry: Entry) -> tuple[int, str, str, int]:
    if entry.name == MEANS:  # of a profile that travels in two parts
        return entry.round, PROFILE, _way(entry), 2 * entry.n_values
    return entry.round, entry.name, _way(entry), entry.n_values


def _way(entry: Entry) -> str:
    return f"{entry.sender} -> {entry.receiver}"


def _leak(entry: Entry, why: str) -> Leak:
    return Leak(entry.round, entry.name, _way(entry), why)
