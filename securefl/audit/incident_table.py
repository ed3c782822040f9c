"""Incidents of a run for its report: rounds that passed, and contributions that did not count."""

from collections.abc import Iterator

from securefl.audit.exposure.evidence import FolderEvidence, tells_a_value
from securefl.audit.rules import counted
from securefl.io.html import PageTable
from securefl.runs.folder_reader import RunRecord, untold

_MOST_ROWS = 100
_MOST_SHOWN = 300
"""Characters of a reason."""


def passed_in_words(run: RunRecord) -> str:
    """Return the end of a sentence on a number of rounds: how many passed; empty for none."""
    n = len(run.passed)
    return f", of which {n:,} passed (no contribution counted)" if n else ""


def incidents_in_words(found: FolderEvidence) -> str:
    """Return how many contributions did not count, of how many clients."""
    if reason := untold(found.incidents, found.run.metrics):
        return reason
    if not found.incidents:
        return "none"
    clients = len({incident.client for incident in found.incidents})
    return f"{len(found.incidents):,}, of {counted(clients, 'client')}: see the table Incidents"


def incident_table(found: FolderEvidence) -> Iterator[PageTable]:
    """Yield the table of incidents, the first of them; nothing where there are none."""
    first = found.incidents[:_MOST_ROWS]
    rows = [
        (
            f"{incident.round:,}",
            incident.client,
            incident.name,
            "not shown: a client's value stands in it"
            if tells_a_value(incident)
            else f"{incident.reason.removeprefix(f'{incident.client}: '):.{_MOST_SHOWN}}",
            incident.at,
        )
        for incident in first
    ]
    if rows:
        rest = len(found.incidents) - len(first)
        title = f"Incidents (and {rest:,} more: incidents.jsonl)" if rest else "Incidents"
        yield PageTable(title, ("Round", "Client", "Message", "Reason", "Time, UTC"), rows)
