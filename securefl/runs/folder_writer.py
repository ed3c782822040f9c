"""Writer of a run's folder: its settings, its rounds, and a checkpoint to go on from.

Everything is written whole or not at all, and is on the disk before the run goes on. A round counts
once its checkpoint stands; lines of a later, unfinished round are dropped when the run is resumed.
Only the authority's log of openings is never shortened, because an opening cannot be undone.
`folder_reader` and `round_metrics` read the folder.
"""

import errno
import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from securefl.errors import ConfigError, OtherRun, RunFolderError
from securefl.federation.incidents import Incident
from securefl.federation.ledger import Entry
from securefl.federation.lineage import Shown
from securefl.federation.opening import Opening
from securefl.io.files import (
    MAX_LINE_BYTES,
    append_whole,
    make_folder,
    note,
    read_bounded,
    write_whole,
)
from securefl.io.json import parsed
from securefl.io.tensors import unshared
from securefl.privacy.history import History
from securefl.runs.checkpoint import Checkpoint
from securefl.runs.folder_files import (
    CHECKPOINT,
    CONFIG,
    DEVICES,
    ENVIRONMENT,
    IN_FLIGHT,
    INCIDENTS,
    JOB,
    JOINED,
    LEDGER,
    LOCK,
    MAX_PHASE_BYTES,
    METRICS,
    MODEL,
    MODELS_SHOWN,
    OPENINGS,
    PHASE,
    PRIVACY,
    PROTECTION,
    QUALITIES,
    SELECTIONS,
    SERVER,
    TASK,
    holds_run,
    is_finished,
    read_soundly,
)
from securefl.runs.folder_reader import read_config, read_joined, read_rows
from securefl.runs.joining import joining
from securefl.runs.round_metrics import RoundMetrics, read_metrics
from securefl.runs.session import (
    PROCESSES,
    Environment,
    InFlight,
    ServerStart,
    read_environment,
    read_server_start,
    this_session,
)
from securefl.selection.device_simulation import Device
from securefl.selection.round_participants import RoundParticipants
from securefl.settings.tables import Config
from securefl.types import NamedTensors

MAX_HISTORY_BYTES = 2**24


class RunFolder:
    """Folder of one run, to write in."""

    def __init__(self, path: Path) -> None:
        """Take an existing folder of this layout; see `create`."""
        self.path = path
        self._session = ""

    @classmethod
    def create(cls, path: Path, config: Config, own_task: bytes = b"") -> "RunFolder":
        """Make a new folder with the resolved settings, and the record of a user's own task.

        Raises:
            RunFolderError: the folder holds something already, or cannot be written; it is then
                as it was.
        """
        folder = cls(path)
        with _explained(path):
            made = make_folder(path)
        _require_empty(path)  # before the lock, whose file would lie in somebody's folder
        tables = config.tables(own_task=bool(own_task))
        with folder.locked():
            _require_empty(path)  # another run may have begun meanwhile
            try:
                if own_task:  # a digest of a client's data tells whoever can guess them
                    write_atomically(path / TASK, own_task, mode=0o600)
                write_atomically(path / CONFIG, json.dumps(tables, indent=1).encode())
            except RunFolderError:
                (path / TASK).unlink(missing_ok=True)
                if made:
                    (path / LOCK).unlink(missing_ok=True)
                    path.rmdir()
                raise
        return folder

    @classmethod
    def begun_or_new(
        cls, path: Path, config: Config, admitted: Collection[str] = ()
    ) -> "RunFolder":
        """Take a folder with a run of these settings, or else make a new one.

        Settings may name clients beside the run's, at the end, all of which are `admitted`: they
        join it, and the folder has these settings from then on.

        Raises:
            OtherRun: it holds a run of other settings, or a simulation.
            RunFolderError: it cannot be used.
        """
        if not holds_run(path):
            return cls.create(path, config)
        sessions = read_environment(path / ENVIRONMENT).sessions
        if sessions and not cls(path).is_over_processes():
            raise OtherRun(
                f"{path}: holds a simulation, whose clients are no processes: name another folder, "
                f"or go on with {way_on(path) or 'nothing: it is complete'}"
            )
        try:
            new = joining(read_config(path), config, admitted)
        except ConfigError as error:
            raise OtherRun(f"{path}: {error}") from error
        folder = cls(path)
        if new:
            folder._note_joined(new, config)
        return folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing here.

        Raises:
            OtherRun: one does already.
        """
        lock = FileLock(self.path / LOCK, timeout=0)
        with _explained(self.path):
            try:
                lock.acquire()
            except Timeout:
                message = f"{self.path}: another process is at work on this run"
                raise OtherRun(message) from None
        try:
            yield
        finally:
            lock.release()

    def _note_joined(self, names: Sequence[str], config: Config) -> None:
        """Write down in which round clients have joined, then the settings that name them."""
        checkpoint = self.checkpoint()
        first = checkpoint.state.round + 1 if checkpoint else 1
        if (begun := self.in_flight()) and begun.round == first:
            first += 1  # that round is run again for the clients that it was begun with
        joined = read_joined(self.path) | dict.fromkeys(names, first)
        self._write(JOINED, json.dumps(joined, indent=1).encode())
        self._write(CONFIG, json.dumps(config.tables(own_task=False), indent=1).encode())

    def note_session(
        self, config: Config, run: str, key_id: str, engine: str, *, own_task: bool
    ) -> None:
        """Write down the machine, the versions, the seed and the key; resuming adds a session.

        `run` is the session's id, which stands in all of its lines, and `engine` describes the
        engine that trains the clients.
        """
        self._session = run
        now = this_session(run, key_id, engine, config.run.threads)
        sessions = (*self._environment().sessions, now)
        noted = Environment(seed=config.run.seed, own_task=own_task, sessions=sessions)
        self._write(ENVIRONMENT, noted.model_dump_json(indent=1).encode())

    def has_own_task(self) -> bool:
        """Return whether the run was started with a model and data of the caller's."""
        return self._environment().own_task

    def session_ids(self) -> list[str]:
        """Return the ids of the sessions whose authority has its log elsewhere, in order."""
        sessions = self._environment().sessions
        return [str(s["run"]) for s in sessions if "run" in s and s.get("engine") == PROCESSES]

    def is_over_processes(self) -> bool:
        """Return whether the run's clients are other processes, and the folder its server's."""
        return (self.path / SERVER).exists() or self._environment().over_processes

    def note_server(self, start: ServerStart) -> None:
        """Write down the options that the run's server was started with."""
        write_atomically(self.path / SERVER, start.model_dump_json(indent=1).encode(), mode=0o600)

    def server_start(self) -> ServerStart | None:
        """Read the options of the run's server; None where they were not noted.

        Raises:
            RunFolderError: the file is damaged.
        """
        path = self.path / SERVER
        return read_server_start(path) if path.exists() else None

    def _environment(self) -> Environment:
        return read_environment(self.path / ENVIRONMENT)

    def job_id(self) -> str:
        """Return the run's id, the same in all of its sessions: 64 hex digits.

        Raises:
            RunFolderError: it is damaged, or cannot be written.
        """
        path = self.path / JOB
        if not path.exists():
            self._write(JOB, secrets.token_hex(32).encode())
        with read_soundly(path):
            found = read_bounded(path, 64).decode(errors="replace")
            if not re.fullmatch("[0-9a-f]{64}", found):
                raise RunFolderError("no id of a run")
        return found

    def note_opening(self, opening: Opening) -> None:
        """Write down a total that the authority opens, or refuses to open."""
        self.note_openings([opening])

    def note_openings(self, openings: Iterable[Opening], name: str = OPENINGS) -> None:
        """Write down totals that the authority has opened, or has refused to open.

        `name` is another file's where they are an officer's own (`OFFICERS_OPENINGS`).
        """
        with _explained(self.path):
            self._append(name, openings)

    def phases(self) -> AbstractContextManager[Callable[[str], None]]:
        """Note the phase of the round that goes on, for followers of the run: see `files.note`."""
        return note(self.path / PHASE, MAX_PHASE_BYTES)

    def note_messages(self, entries: Iterable[Entry], incidents: Iterable[Incident]) -> None:
        """Write down a round's messages and refusals, also of a round that fails."""
        with _explained(self.path):
            self._append(LEDGER, entries)
            self._append(INCIDENTS, incidents)

    def note_clients(self, qualities: Mapping[str, str], devices: Mapping[str, Device]) -> None:
        """Write down each client's quality of data and device, where a simulation knows them."""
        drawn = {client: asdict(device) for client, device in devices.items()}
        for name, found in {QUALITIES: dict(qualities), DEVICES: drawn}.items():
            if found:
                self._write(name, json.dumps(found, indent=1).encode())

    def note_round(
        self,
        metrics: RoundMetrics,
        checkpoint: Checkpoint,
        participants: RoundParticipants | None = None,
    ) -> None:
        """Write down one round; it counts once its checkpoint, written last, is in place."""
        with _explained(self.path):
            if participants:
                self._append(SELECTIONS, [participants])
            self._append(METRICS, [metrics])
            # Clients' states are in it, which are nobody else's.
            write_atomically(self.path / CHECKPOINT, checkpoint.to_bytes(), mode=0o600)

    def note_history(self, history: History) -> None:
        """Write down the releases of differential privacy, before they happen."""
        with _explained(self.path):
            self._write(PRIVACY, history.to_json().encode())

    def history(self) -> History | None:
        """Read the releases that were noted last; None where there are none.

        Raises:
            RunFolderError: it is damaged.
        """
        path = self.path / PRIVACY
        if not path.is_file():
            return None
        with read_soundly(path):
            content = read_bounded(path, MAX_HISTORY_BYTES)
        return History.from_json(content)

    def note_in_flight(self, opening: InFlight) -> None:
        """Write down the clients of a total, before the authority is asked to open it."""
        with _explained(self.path):
            self._write(IN_FLIGHT, json.dumps(asdict(opening)).encode())

    def in_flight(self) -> InFlight | None:
        """Read the clients of the total that was asked for last; None where none was.

        Raises:
            RunFolderError: it is damaged.
        """
        path = self.path / IN_FLIGHT
        if not path.is_file():
            return None
        with read_soundly(path):
            content = read_bounded(path, MAX_LINE_BYTES)
            return parsed(TypeAdapter(InFlight), content, RunFolderError)

    def note_models_shown(self, shown: Sequence[Shown]) -> None:
        """Write down the models that rounds began with, before clients are sent the last one."""
        with _explained(self.path):
            self._write(MODELS_SHOWN, _lines(map(self._stamped, shown)))

    def models_shown(self) -> list[Shown]:
        """Read the models that rounds began with.

        Raises:
            RunFolderError: the file is damaged.
        """
        return read_rows(self.path / MODELS_SHOWN, Shown)

    def note_model(self, tensors: NamedTensors, name: str = MODEL) -> None:
        """Write the trained model; as `BEST` that of the round of the best score."""
        with _explained(self.path):
            self._write(name, safetensors.torch.save(unshared(tensors)))

    def note_protection(self, page: str) -> None:
        """Write the page on the protection by differential privacy."""
        with _explained(self.path):
            self._write(PROTECTION, page.encode())

    def note_picture(self, name: str, png: bytes) -> None:
        """Write a plot."""
        with _explained(self.path):
            self._write(name, png)

    def checkpoint(self) -> Checkpoint | None:
        """Read the last checkpoint; None before the first.

        Raises:
            RunFolderError: it is damaged, or missing after rounds that are written down.
        """
        path = self.path / CHECKPOINT
        if path.is_file():
            return Checkpoint.read(path)
        if len(read_metrics(self.path)) > 1:
            raise RunFolderError(f"{path} is missing: this run cannot go on")
        return None

    def rewind(self, last: int) -> None:
        """Drop the lines of all rounds after `last`, and half-written files of a killed process.

        Raises:
            RunFolderError: a file is damaged; nothing is changed.
        """
        rows: dict[str, Sequence[RoundMetrics | Entry | Incident | RoundParticipants]] = {
            METRICS: read_metrics(self.path),
            SELECTIONS: read_rows(self.path / SELECTIONS, RoundParticipants),
            LEDGER: read_rows(self.path / LEDGER, Entry),
            INCIDENTS: read_rows(self.path / INCIDENTS, Incident),
        }
        with _explained(self.path):
            for name, found in rows.items():
                if not (found or (self.path / name).exists()):
                    continue  # not every run has every file
                self._write(name, _lines([asdict(row) for row in found if row.round <= last]))
            for partial in self.path.glob(".*.partial"):
                partial.unlink()

    def _write(self, name: str, content: bytes) -> None:
        write_atomically(self.path / name, content)

    def _append(self, name: str, rows: Iterable[Any]) -> None:
        append_whole(self.path / name, _lines(map(self._stamped, rows)))

    def _stamped(self, row: Any) -> dict[str, Any]:
        """Return a row as a line, with this session's id unless it was read from an older one's."""
        line = asdict(row)
        is_new = line["at"] and not line["run"]
        return line | {"run": self._session} if is_new else line


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file as `write_whole` does; raises RunFolderError."""
    with _explained(path.parent):
        write_whole(path, content, mode)


def _require_empty(path: Path) -> None:
    with _explained(path):
        if {entry.name for entry in path.iterdir()} - {LOCK}:
            continued = way_on(path)
            way_out = f", or continue its run with {continued}" if continued else ""
            raise RunFolderError(f"{path} is not empty: name another folder{way_out}")


def own_task_needed(folder: Path | str, call: str) -> str:
    """Return the message that a run's folder lacks its own task; `call` is one that takes it."""
    if read_config(Path(folder)).samples:
        return (
            f"{folder}: the data are its sites' own, and its folder does not hold them: give "
            f"--site NAME=SITE.toml, or in Python {call} with securefl.task_of_sites"
        )
    return (
        f"{folder}: this run had a task of its own, whose data and model its folder does not hold: "
        f"give them in Python with {call}"
    )


def server_needed(folder: Path) -> str:
    """Return the message that a run's clients are other processes, and how it goes on."""
    way = way_on(folder)
    then = f"continue with {way}" if way else "it is complete"
    return f"{folder}: its clients are other processes; {then}"


def way_on(path: Path) -> str:
    """Return the call that continues the run in this folder; empty where there is none."""
    folder = RunFolder(path)
    if not holds_run(path) or is_finished(path):
        return ""
    if (path / SERVER).exists():
        return f"`securefl run --resume {path}`"
    if folder.is_over_processes():
        return f"`securefl server serve` as it was started, with --out {path}"
    if folder.has_own_task():
        return f"securefl.resume({str(path)!r}, task) in Python, where its task was made"
    return f"`securefl run --resume {path}`, or securefl.resume({str(path)!r}) in Python"


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        way_out = "free some space" if full else "name another folder"
        if full and (folder / SERVER).exists():
            way_out += ", then the same command goes on: at authority and sites, too"
        elif holds_run(folder):
            way_out += f", then go on with {way_on(folder) or 'the same call'}"
            way_out += " (after reproduce or leave-one-out: the same command)"
        raise RunFolderError(f"{folder}: cannot be written ({reason}); {way_out}") from error


def _lines(rows: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
