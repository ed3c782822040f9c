"""Clients of a run: their data, how often each was selected, time on simulated devices."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate

from securefl.data.quality import Quality
from securefl.federation.ledger import AUTHORITY, SERVER
from securefl.runs.folder_reader import RunRecord
from securefl.runs.round_metrics import RoundMetrics

SECONDS_PER_HOUR = 3600


def hours(metrics: Sequence[RoundMetrics]) -> list[float] | None:
    """Return simulated hours at the end of each round; None where no devices are simulated."""
    seconds = _sums(m.simulated_s for m in metrics)
    return None if seconds is None else [s / SECONDS_PER_HOUR for s in seconds]


def watt_hours(metrics: Sequence[RoundMetrics]) -> list[float] | None:
    """Return all devices' Wh up to the end of each round; None where none are simulated."""
    return _sums(m.energy_wh for m in metrics)


def _sums(values: Iterable[float | None]) -> list[float] | None:
    known = list(values)
    numbers = [value for value in known if value is not None]
    return list(accumulate(numbers)) if known and len(numbers) == len(known) else None


KNOWN = [quality.value for quality in Quality]


def clients(record: RunRecord) -> tuple[str, ...]:
    """Return all clients that a file of the run names, `client-2` before `client-10`."""
    named = set(record.qualities)
    for each in record.participants:
        named |= each.selected.keys() | each.measured.keys() | each.scores.keys()
    for entry in record.ledger:
        named |= {entry.sender, entry.receiver}
    return tuple(sorted(named - {SERVER, AUTHORITY}, key=_natural))


def clients_said(record: RunRecord) -> str:
    """Return the number of clients in words; that it is not known where the ledger lacks rounds."""
    n_clients = len(clients(record))
    if record.unlisted:
        return f"number of clients {record.unlisted}"
    return "1 client" if n_clients == 1 else f"{n_clients:,} clients"


def times_selected(record: RunRecord) -> Counter[str]:
    """Return how often each client was drawn."""
    counts: Counter[str] = Counter()
    for each in record.participants:
        counts.update(each.selected)
    return counts


def rounds_counted(record: RunRecord) -> Counter[str]:
    """Return the number of rounds in which each client's contribution counted.

    A round of which the folder names no participants is one in which all who sent counted.
    """
    counted = Counter(client for each in record.participants for client in each.counted)
    untold = {of.round for of in record.metrics} - {each.round for each in record.participants}
    sent = {(entry.sender, entry.round) for entry in record.ledger if entry.round in untold}
    counted.update(sender for sender, _ in sent if sender not in {SERVER, AUTHORITY})
    return counted


def selected_share(record: RunRecord, qualities: Collection[str | None]) -> float:
    """Return the share of all selections that clients of these qualities had; 0 where none are."""
    counts = times_selected(record)
    of_these = sum(n for client, n in counts.items() if record.qualities.get(client) in qualities)
    return of_these / counts.total() if counts else 0.0


def by_quality(names: Iterable[str], record: RunRecord) -> dict[str | None, list[str]]:
    """Group clients by quality: in the order of `Quality`, then other names, then unknown ones.

    Those whose quality nobody knows stand under None. Within a group the order stays.
    """
    groups: dict[str | None, list[str]] = {}
    for client in names:
        groups.setdefault(record.qualities.get(client), []).append(client)
    return {quality: groups[quality] for quality in sorted(groups, key=_rank)}


def most_selected_first(record: RunRecord) -> dict[str | None, list[str]]:
    """Group all clients by quality, and sort each group by how often they were selected."""
    counts = times_selected(record)
    return by_quality(sorted(clients(record), key=lambda client: -counts[client]), record)


def _rank(quality: str | None) -> tuple[int, str]:
    if quality is None:
        return len(KNOWN) + 1, ""
    return (KNOWN.index(quality), "") if quality in KNOWN else (len(KNOWN), quality)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key in which numbers within a name count as such."""
    parts = re.split(r"([0-9]+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
