"""Reader of a run's folder: its rows, and the run as a whole."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter

from securefl.errors import RunFolderError
from securefl.federation.incidents import Incident
from securefl.federation.ledger import AUTHORITY, SERVER, Entry, as_written
from securefl.federation.lineage import Shown
from securefl.federation.opening import Opening
from securefl.io.files import MAX_LINE_BYTES, read_bounded, read_lines
from securefl.io.json import parsed
from securefl.runs.folder_files import (
    CONFIG,
    JOINED,
    LEDGER,
    QUALITIES,
    SELECTIONS,
    read_soundly,
    require_run,
)
from securefl.runs.round_metrics import RoundMetrics, best_of, read_metrics
from securefl.selection.round_participants import RoundParticipants
from securefl.settings.load import load_config
from securefl.settings.tables import Config
from securefl.types import Kind

Row = TypeVar("Row", Entry, Incident, RoundParticipants, Opening, Shown)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run, read from its folder."""

    path: Path
    config: Config
    metrics: tuple[RoundMetrics, ...]
    ledger: tuple[Entry, ...]
    participants: tuple[RoundParticipants, ...] = ()
    """Participants of each round, where clients are selected or devices simulated."""
    qualities: Mapping[str, str] = field(default_factory=dict)
    """Quality of each client's data, where a simulation knows it."""

    @property
    def best(self) -> RoundMetrics | None:
        """Round of the best score, whose model is in the folder: see `best_of`."""
        return best_of(self.metrics)

    @property
    def unlisted(self) -> str:
        """Reason why nobody can tell who sent what; empty where the ledger does."""
        return unlisted(self.ledger, self.metrics)

    @property
    def passed(self) -> tuple[RoundParticipants, ...]:
        """Rounds in which no contribution counted: the model stayed as it was."""
        return tuple(each for each in self.participants if not each.counted)

    @property
    def all_passed(self) -> bool:
        """True where the run has rounds, and no contribution counted in any."""
        return 0 < len(self.metrics) == len(self.passed)


def unlisted(ledger: Collection[Entry], metrics: Iterable[RoundMetrics]) -> str:
    """Return the reason why a ledger does not tell who sent what; empty where it does.

    What clients sent in a round has as many bytes as its metrics say.
    """
    listed = Counter[int]()
    for entry in ledger:
        if entry.receiver == SERVER and entry.sender != AUTHORITY:
            listed[entry.round] += entry.bytes
    gone = [(of.round, "messages") for of in metrics if listed[of.round] < of.upload_bytes]
    return _lacking("ledger", ledger, gone)


def unopened(openings: Collection[Opening], ledger: Iterable[Entry]) -> str:
    """Return the reason why a log does not tell all that was opened; empty where it does.

    Each request and each answer in the ledger has its line there, by round and name.
    """
    asked, sent = set[tuple[int, str]](), Counter[tuple[int, str]]()
    for entry in ledger:
        if entry.sender == AUTHORITY:
            sent[entry.round, entry.name] += 1
        elif entry.receiver == AUTHORITY and entry.kind is not Kind.CARDS:
            asked.add((entry.round, entry.name))
    opened = Counter((row.round, row.name) for row in openings if not row.refused)
    gone = {*(sent - opened), *asked.difference((row.round, row.name) for row in openings)}
    return _lacking("log of openings", openings, gone)


def untold(incidents: Collection[Incident], metrics: Iterable[RoundMetrics]) -> str:
    """Return the reason why a log does not tell of all that was refused; empty where it does.

    Each client whose messages a round's metrics say were refused has a line of that round.
    """
    dropped = {(of.round, client) for of in metrics for client in of.dropped}
    gone = dropped.difference((row.round, row.client) for row in incidents)
    return _lacking("log of incidents", incidents, gone)


def _lacking(
    log: str, rows: Collection[Entry | Incident | Opening], gone: Collection[tuple[int, str]]
) -> str:
    """Return the reason why a log does not tell of all, the rounds and names that it lacks.

    A folder may have lost a log, or some of its lines: what is not there was not "nothing".
    """
    if not gone:
        return ""
    if not rows:
        return f"not known: no {log}"
    number, name = min(gone)
    if number not in {row.round for row in rows}:
        return f"not known: the {log} lacks round {number:,}"
    more = f", and {len(gone) - 1:,} more" if len(gone) > 1 else ""
    return f"not known: the {log} lacks {name} of round {number:,}{more}"


def read_run(path: Path) -> RunRecord:
    """Read a run's folder.

    Raises:
        RunFolderError: no run's folder, or a damaged one.
    """
    config = read_config(path)
    ledger, participants = (
        read_rows(path / LEDGER, Entry),
        read_rows(path / SELECTIONS, RoundParticipants),
    )
    return RunRecord(
        path, config, read_metrics(path), tuple(ledger), tuple(participants), _qualities(path)
    )


MAX_JOINED_BYTES = 2**20
_JOINED = TypeAdapter(dict[str, Annotated[int, Field(strict=True, ge=1, lt=2**31)]])


def read_joined(path: Path) -> dict[str, int]:
    """Return the first round of each client that has joined a run after its beginning.

    Raises:
        RunFolderError: the record is damaged.
    """
    if not (path / JOINED).exists():
        return {}
    with read_soundly(path / JOINED):
        return parsed(_JOINED, read_bounded(path / JOINED, MAX_JOINED_BYTES), RunFolderError)


def read_config(path: Path) -> Config:
    """Read the settings of a run; RunFolderError where there are none."""
    require_run(path)
    return load_config(path / CONFIG)


def read_rows(path: Path, kind: type[Row]) -> list[Row]:
    """Read the whole lines of a file; a last line that a crash cut short does not count.

    Raises:
        RunFolderError: the file is damaged, or longer than any run's.
    """
    if not path.is_file():
        return []
    parser = TypeAdapter(kind)
    with read_soundly(path):
        return [as_written(parsed(parser, line, RunFolderError), line) for line in read_lines(path)]


def _qualities(path: Path) -> dict[str, str]:
    file = path / QUALITIES
    if not file.is_file():
        return {}
    with read_soundly(file):
        content = read_bounded(file, MAX_LINE_BYTES)
        return parsed(TypeAdapter(dict[str, str]), content, RunFolderError)
