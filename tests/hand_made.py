"""Run folders as runs with selection and devices leave them, written by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from securefl.federation.ledger import AUTHORITY, SERVER, Entry, Ledger
from securefl.runs.folder_reader import read_run
from securefl.runs.folder_writer import RunFolder
from securefl.runs.round_metrics import RoundMetrics
from securefl.selection.round_participants import RoundParticipants
from securefl.settings.load import load_config
from securefl.types import Kind

PLAIN = ("exchange.encrypt=none", "algorithm.name=fedavg")
QUALITIES = {
    "client-1": "irrelevant",
    "client-2": "normal",
    "client-3": "blurred",
    "client-10": "normal",
}
PARTICIPANTS = (
    RoundParticipants(
        1,
        {"client-2": 1, "client-3": 1},
        ("client-2", "client-3"),
        measured={"client-1": 0.4, "client-2": 0.01, "client-3": 0.2, "client-10": 0.02},
        scores={"client-1": 0.02, "client-2": 0.9, "client-3": 0.1, "client-10": 0.8},
    ),
    RoundParticipants(
        2,
        {"client-2": 1, "client-10": 1},
        ("client-2",),
        lost=("client-10",),
        measured={"client-2": 0.03},
        scores={"client-1": 0.02, "client-2": 0.7, "client-3": 0.15},
    ),
    RoundParticipants(3, {"client-10": 2}, ("client-10",), measured={"client-10": 0.05}),
)
"""Three rounds of four clients: 2, 3, then 2, 10, then 10 drawn twice."""


def metrics(accuracies, simulated_s=None, energy_wh=None):
    """Return a round for each accuracy, each with this cost."""
    return [
        RoundMetrics(i, accuracy, 1.0, 0.1, 100, (), 0.5, simulated_s, energy_wh)
        for i, accuracy in enumerate(accuracies, 1)
    ]


def message(name, sender, receiver, form, n_values=1, kind=Kind.PROFILES, round_number=1):
    """Return one entry of the ledger."""
    return Entry(round_number, 0, name, kind, sender, receiver, form, n_values, 8 * n_values)


def encrypted_match(parts=("profile",), plain=()):
    """Return what a round with encrypted profiles of two clients leaves in the ledger."""
    clients = ("client-2", "client-3")
    sent = [message(part, c, SERVER, "ciphertext", 61) for c in clients for part in parts]
    sent += [message(part, c, SERVER, "plaintext", 30) for c in clients for part in plain]
    return [
        *(message("profile/unit", SERVER, client, "plaintext") for client in clients),
        *sent,
        message("profile/score", SERVER, AUTHORITY, "ciphertext", 2),
        message("profile/score", AUTHORITY, SERVER, "plaintext", 2),
    ]


def plain_match():
    """Return the same in the clear."""
    return [message("profile", c, SERVER, "plaintext", 60) for c in ("client-2", "client-3")]


def _sent(rows, ledger):
    """Return the rounds with the bytes that the ledger has of each."""
    sums = {
        of.round: Ledger([e for e in ledger if e.round == of.round]).upload_bytes() for of in rows
    }
    return [replace(of, upload_bytes=sum(sums[of.round].values())) for of in rows]


def write_run(path, *settings, rows=None, participants=(), qualities=None, ledger=()):
    """Write a folder with these rounds; return it as it is read."""
    RunFolder.create(path, load_config(None, [*PLAIN, *settings]))
    files = {
        "metrics.jsonl": _sent(metrics([0.5, 0.8, 0.9]), ledger) if rows is None else rows,
        "selections.jsonl": participants,
        "ledger.jsonl": ledger,
    }
    for name, lines in files.items():
        (path / name).write_text("".join(json.dumps(asdict(line)) + "\n" for line in lines))
    if qualities:
        (path / "qualities.json").write_text(json.dumps(qualities))
    return read_run(path)
