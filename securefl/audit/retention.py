"""Retention: what any run leaves where, and until when somebody needs it.

docs/officer.md shows the same rows as a table (docs/audit_table.py writes it).
"""

from securefl.io.html import PageTable

_ROWS = (
    (
        "server's folder of the run",
        (
            "model, checkpoint, statistics, ledger, openings; no record. Where clients are scored "
            "one by one, each one's score and loss (metrics.jsonl, report.html). In a simulation "
            "the checkpoint has what all clients keep: it is mode 0600, and not for a server"
        ),
        "you no longer have to show what was done",
    ),
    (
        "a client, runs/ below its identity",
        "its own momentum, BN, last two rounds",
        "the run is over: removed then; of a run that is given up, until its owner deletes it",
    ),
    (
        "a client, models/ below its identity",
        "its own part of the model, which its records trained",
        "its use ends: stays until its owner deletes it",
    ),
    (
        "a client, sessions/, sealed-for.jsonl and models-shown/ below its identity",
        "rounds that it answered, officers that it sealed for, models that it was shown; no value",
        "as long as the ledger: they are its proof against a server",
    ),
    (
        "a client, data/ below its identity",
        "number, form and digest of the samples of its own that it began a run with",
        "as long as the ledger: other files given to an audit are told by it",
    ),
    (
        "the authority's card key (with officers, their cards' keys)",
        "opens all of a session for whoever has recorded it",
        "its epoch ends: securefl keys rotate removes it",
    ),
    (
        "a client's identity key",
        "opens what was recorded of that client, in every epoch",
        "the client leaves: destroyed then",
    ),
    (
        "authority's log",
        "what was opened, for whom; no value",
        "as long as the ledger: it is the proof, and without it an opening could be repeated",
    ),
    (
        "the report and its signatures (mode 0600)",
        (
            "no original, but of images pictures that attacks rebuilt from records, and near to "
            "them where it went well; names and sizes of clients"
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
"""Places, of any run, with what lies there and until when it is needed.

Each date is the officer's to set.
"""
