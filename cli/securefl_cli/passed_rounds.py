"""Rounds that passed without any contribution that counts, in words."""

from securefl.federation.incidents import Incident
from securefl.runs.folder_files import INCIDENTS
from securefl.runs.folder_reader import RunRecord, read_rows, untold

_MOST_NAMED = 5
_MOST_SHOWN = 300
"""Characters of a reason."""


def passed_rounds(record: RunRecord) -> str:
    """Return how many rounds of a run passed without a contribution, who and why; empty for none.

    Raises:
        RunFolderError: the folder is damaged.
    """
    passed = record.passed
    if not passed:
        return ""
    absent = [each for each in passed if not each.present]
    words = []
    if absent:
        missing = {
            "late for devices.deadline_s": sum(len(each.late) for each in absent),
            "lost by devices.dropout": sum(len(each.lost) for each in absent),
        }
        why = ", ".join(f"{n} clients {reason}" for reason, n in missing.items() if n)
        words.append(
            f"in {len(absent)} of {len(record.metrics)} rounds too few clients were present, and "
            f"the model stayed as it was ({why or 'too few drawn, or their answers refused'}; with "
            "differential privacy, privacy.dropouts says how many may be missing; see "
            "selections.jsonl and incidents.jsonl)"
        )
    if len(absent) < len(passed):
        words.append(
            f"in {len(passed) - len(absent)} of {len(record.metrics)} rounds no contribution "
            f"counted, and the model stayed as it was ({_reasons(record)}; see incidents.jsonl)"
        )
    if record.all_passed:
        words.append("nothing was trained")
    return "; ".join(words)


def _reasons(record: RunRecord) -> str:
    """Return the first reason of each client that was present in rounds that passed."""
    rounds = {each.round: each.uncounted for each in record.passed}
    found: dict[str, str] = {}
    incidents = read_rows(record.path / INCIDENTS, Incident)
    for incident in incidents:
        if incident.client in rounds.get(incident.round, ()):
            reason = incident.reason.removeprefix(f"{incident.client}: ")
            found.setdefault(incident.client, f"{incident.client}: {reason:.{_MOST_SHOWN}}")
    if len(found) > _MOST_NAMED:
        return f"{'; '.join([*found.values()][:_MOST_NAMED])}; and {len(found) - _MOST_NAMED} more"
    return "; ".join(found.values()) or untold(incidents, record.metrics) or "no reason was noted"
