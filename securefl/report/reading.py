"""Kinds of values that the server could read of each client, in words, as the ledger has it."""

from collections.abc import Sequence

from securefl.federation.ledger import AUTHORITY, Ledger
from securefl.runs.folder_reader import unlisted
from securefl.runs.round_metrics import RoundMetrics


def what_the_server_reads(ledger: Ledger, metrics: Sequence[RoundMetrics]) -> str:
    """Return the kinds of values that single clients sent the server in the clear.

    Where the ledger lacks messages of these rounds: that it is not known.
    """
    if reason := unlisted(ledger.entries, metrics):
        return reason
    if len(ledger.upload_bytes()) == 1:
        return "all: one party has all data"
    read = ledger.server_reads()
    hidden = {e.kind for e in ledger.entries if e.form == "ciphertext"} - read
    names = ", ".join(sorted(read)) or "nothing"
    told = {e.kind for e in ledger.entries if e.sender == AUTHORITY and e.form == "plaintext"}
    opened = {
        "totals": sorted((hidden & told) - {"profiles", "cards"}),
        "scores": sorted(hidden & {"profiles"}),
    }
    only = [f"only {what} of {', '.join(kinds)}" for what, kinds in opened.items() if kinds]
    return "; ".join([names, *([", ".join(only)] if only else [])])
