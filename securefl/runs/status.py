"""State of a run, from its folder alone: the process that writes there is not asked.

Reading changes nothing. A server's folder and a simulation's have the same files.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from securefl.errors import RunFolderError
from securefl.federation.incidents import PASSED, SPOILED, Incident
from securefl.federation.ledger import AUTHORITY, SERVER, Entry
from securefl.io.files import read_lines
from securefl.io.json import parsed
from securefl.metrics.by_name import ACCURACY
from securefl.metrics.metric import PooledBy
from securefl.runs.folder_files import (
    CHECKPOINT,
    INCIDENTS,
    LEDGER,
    SELECTIONS,
    is_at_work,
    is_finished,
    read_soundly,
)
from securefl.runs.folder_reader import read_config, read_rows, untold
from securefl.runs.folder_writer import RunFolder
from securefl.runs.round_metrics import best_of, read_metrics
from securefl.selection.round_participants import RoundParticipants

State = Literal["running", "stopped", "complete"]
NOT_THERE = "was not there"
_ENTRY: TypeAdapter[Entry] = TypeAdapter(Entry)
_OPENED = f'"sender": "{AUTHORITY}"'.encode()


@dataclass(frozen=True, slots=True)
class RunStatus:
    """State of a run when its folder was read."""

    folder: str
    name: str
    state: State
    at_work: bool | None
    """True while a process has the folder's lock; None where this system cannot tell."""
    over_processes: bool
    """True where a server writes the folder, of clients in other processes."""
    round: int
    """Rounds that are done."""
    rounds: int
    """Rounds that the settings ask for."""
    ended: str | None
    """Time at which the last round ended, UTC; None before the first."""
    metric: str
    score: float | None
    """Score of the last round, by which rounds are compared."""
    over_all: PooledBy | None
    """Way in which scores are over all clients' samples, where each client has its own."""
    best_round: int | None
    """Round of the best score, whose model the folder has; None where none has a score."""
    best_score: float | None
    """Score of that round."""
    clients: tuple[str, ...] | None
    """Clients that were in the last round to its end; None where the folder's ledger lacks it."""
    missing: Mapping[str, str] | None
    """Clients that the last round, or one that failed after it, has gone on without, and why; None
    where the log of incidents lacks the last round."""
    uncounted: Mapping[str, str] | None
    """Clients that were in the last round, and whose contributions did not count, and why; None as
    before."""
    passed: int
    """Rounds in which no contribution counted: the model stayed as it was."""
    openings: int | None
    """Totals, and lists of scores, that the authority or officers have opened for this run; None
    where the ledger lacks the last round."""
    openings_to_come: int | None
    """Those that the rounds left will ask for, if each is as the last one; None as before."""
    officers: int
    """Officers who open them, the authority counted; 1 where it does so alone."""
    officers_needed: int
    """Officers without whom nothing is opened."""


def status_of(path: Path) -> RunStatus:
    """Read the state of the run in a folder.

    Raises:
        RunFolderError: no run's folder, or a damaged one.
    """
    config, metrics, folder = read_config(path), read_metrics(path), RunFolder(path)
    last, at_work = metrics[-1] if metrics else None, is_at_work(path)
    best = best_of(metrics)
    n_done, over_processes = len(metrics), folder.is_over_processes()
    senders, n_opened, n_opened_last = _messages(path, n_done)
    listed = bool(senders) or last is None or not last.upload_bytes
    rows = read_rows(path / SELECTIONS, RoundParticipants)
    present = {name for row in rows if row.round == n_done for name in row.present}
    told, away = dict[str, str](), set[str]()
    incidents = read_rows(path / INCIDENTS, Incident)
    known = not untold(incidents, metrics[-1:])
    for incident in incidents:
        if incident.round >= max(1, n_done):
            name = incident.client or incident.name
            told[name] = incident.reason
            if name not in present or not _stayed(incident):
                away.add(name)
    missing = {name: why for name, why in told.items() if name in away}
    if n_done and listed and not config.selection.selects:  # a round asks all that are named
        there = {*senders, *present, *told}
        missing |= {name: NOT_THERE for name in config.data.names or () if name not in there}
    state: State = "running" if at_work else "complete" if is_finished(path) else "stopped"
    rounds = n_done if is_finished(path) else config.run.rounds
    return RunStatus(
        folder=str(path),
        name=config.name,
        state=state,
        at_work=at_work,
        over_processes=over_processes,
        round=n_done,
        rounds=config.run.rounds,
        ended=_ended(path / CHECKPOINT) if last else None,
        metric=last.metric if last else ACCURACY,
        score=last.compared if last else None,
        over_all=last.pooling if last else None,
        best_round=best.round if best else None,
        best_score=best.compared if best else None,
        clients=tuple(name for name in senders if name not in told) if listed else None,
        missing=missing if known else None,
        uncounted={n: why for n, why in told.items() if n not in away} if known else None,
        passed=sum(not row.counted for row in rows),
        openings=n_opened if listed else None,
        openings_to_come=n_opened_last * (rounds - n_done) if listed else None,
        officers=config.exchange.officers,
        officers_needed=config.exchange.needed,
    )


def _messages(path: Path, round_number: int) -> tuple[tuple[str, ...], int, int]:
    """Return a round's senders, and the openings of all rounds and of that round."""
    begins, senders = b'{"round": %d, ' % round_number, dict[str, None]()
    n_opened = n_in_round = 0
    ledger = path / LEDGER
    if not ledger.is_file():
        return (), 0, 0
    with read_soundly(ledger):
        for line in read_lines(ledger):
            # Searched as bytes; only one round's lines are parsed, as a ledger may be long.
            n_opened += _OPENED in line
            if line.startswith(begins):
                n_in_round += _OPENED in line
                senders[parsed(_ENTRY, line, RunFolderError).sender] = None
    sending = tuple(name for name in senders if name not in {SERVER, AUTHORITY})
    return sending, n_opened, n_in_round


def _stayed(incident: Incident) -> bool:
    """Return whether a client that was present in the round was so to its end."""
    return incident.name in {PASSED, SPOILED} or incident.diverged


def _ended(checkpoint: Path) -> str | None:
    try:
        seconds = checkpoint.stat().st_mtime
    except OSError:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
