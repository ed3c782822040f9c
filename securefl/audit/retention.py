"""Retention: what a run leaves where, and until when somebody needs it.

docs/officer.md shows the same rows as a table (docs/audit_table.py writes it).
"""

from securefl.io.html import PageTable

_ROWS = (
    (
        "server's folder of the run",
        "model, checkpoint, statistics, ledger, openings; no record",
        "you no longer have to show what was done",
    ),
    (
        "a client's folder of rounds",
        "its own momentum, BN, last two rounds",
        "the run is over",
    ),
    (
        "authority's log",
        "what was opened, for whom; no value",
        "as long as the ledger: it is the proof, and without it an opening could be repeated",
    ),
    (
        "the report and its signatures (mode 0600)",
        (
            "no original, but pictures that attacks rebuilt from records, and near to them where "
            "it went well; names and sizes of clients"
        ),
        "as long as the run's folder; for those who sign or answer for the run, nobody else",
    ),
    (
        "the final model",
        "what it remembers of records",
        "its use ends; who leaves a study can have it trained anew, and no more",
    ),
)
RETENTION = PageTable("Retention", ("Where", "What", "Until"), _ROWS)
"""Place, what lies there, and until when it is needed: each date is the officer's to set."""
