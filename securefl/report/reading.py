"""Values of each client that the server, and readers of the folder, could read, in words."""

from collections.abc import Sequence

from securefl.federation.ledger import AUTHORITY, Ledger
from securefl.runs.folder_files import ENVIRONMENT
from securefl.runs.folder_reader import RunRecord, unlisted
from securefl.runs.round_metrics import RoundMetrics
from securefl.runs.session import PROCESSES, read_environment


def what_the_server_reads(ledger: Ledger, metrics: Sequence[RoundMetrics]) -> str:
    """Return what single clients sent the server in the clear: sizes and losses, kinds of values.

    Where the ledger lacks messages of these rounds: that it is not known.
    """
    if reason := unlisted(ledger.entries, metrics):
        return reason
    if len(ledger.upload_bytes()) == 1:
        return "all: one party has all data"
    read = ledger.server_reads()
    hidden = {e.kind for e in ledger.entries if e.form == "ciphertext"} - read
    names = ", ".join(ledger.server_reads_in_words()) or "nothing"
    told = {e.kind for e in ledger.entries if e.sender == AUTHORITY and e.form == "plaintext"}
    opened = {
        "totals": sorted((hidden & told) - {"profiles", "cards"}),
        "scores": sorted(hidden & {"profiles"}),
    }
    only = [f"only {what} of {', '.join(kinds)}" for what, kinds in opened.items() if kinds]
    return "; ".join([names, *([", ".join(only)] if only else [])])


def scores_kept(record: RunRecord) -> str:
    """Return sentences on clients' scores in the run's folder; empty where it has none.

    Raises:
        RunFolderError: the file of its sessions is damaged.
    """
    if not any(of.clients for of in record.metrics):
        return ""
    kept = (
        "Each client's score stands in metrics.jsonl (each round's, with the loss) and report.html "
        "of the run's folder"
    )
    sessions = read_environment(record.path / ENVIRONMENT).sessions
    if sessions and all(session.get("engine") == PROCESSES for session in sessions):
        return f"{kept}: the server was sent it, and whoever is given these files reads it."
    return (
        f"{kept}, whatever is sealed: the simulation's operator reads it, and whoever is given "
        "these files. Between separate processes the server reads the scores' sum alone where "
        'model or statistics are sealed, unless sites.scores = "each".'
    )
