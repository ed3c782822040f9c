"""Reader of a run's folder: its files, their rows, and the run as a whole."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter

from securefl.errors import RunFolderError
from securefl.exchange.card_keys import MOST_OFFICERS
from securefl.federation.incidents import Incident
from securefl.federation.ledger import AUTHORITY, Entry, utc_now
from securefl.federation.lineage import Shown
from securefl.federation.opening import Opening
from securefl.io.files import MAX_LINE_BYTES, read_bounded, read_lines
from securefl.io.json import parsed
from securefl.metrics.by_name import ACCURACY as ACCURACY_METRIC
from securefl.metrics.by_name import is_better
from securefl.metrics.metric import PooledBy, PooledScore
from securefl.selection.round_participants import RoundParticipants
from securefl.settings.load import load_config
from securefl.settings.tables import Config

CONFIG, ENVIRONMENT, TASK = "config.json", "environment.json", "task.json"
METRICS, LEDGER = "metrics.jsonl", "ledger.jsonl"
OPENINGS, INCIDENTS = "openings.jsonl", "incidents.jsonl"
OFFICERS_OPENINGS = tuple(f"openings-officer-{n}.jsonl" for n in range(1, MOST_OFFICERS + 1))
"""Logs of officers that are processes of their own, by their number from 0."""
SELECTIONS = "selections.jsonl"
PRIVACY, PROTECTION = "privacy.json", "privacy.md"
QUALITIES, DEVICES = "qualities.json", "devices.json"
CHECKPOINT, MODEL = "checkpoint.safetensors", "model.safetensors"
BEST = "best.safetensors"
"""Global model of the round of the best score."""
ACCURACY, SCORE, TRAFFIC = "accuracy.png", "score.png", "traffic.png"
REPORT = "report.html"
LOCK, JOB, JOINED, SERVER = ".lock", "job.id", "joined.json", "server.json"
PHASE = ".phase"
"""Phase of the round that goes on; there while a process is at work alone."""
IN_FLIGHT, MODELS_SHOWN = "in-flight.json", "models-shown.jsonl"
FILES = frozenset(
    {
        *(CONFIG, ENVIRONMENT, TASK, METRICS, LEDGER, OPENINGS, INCIDENTS, SELECTIONS, PRIVACY),
        *OFFICERS_OPENINGS,
        *(PROTECTION, QUALITIES, DEVICES, CHECKPOINT, MODEL, BEST),
        *(ACCURACY, SCORE, TRAFFIC, REPORT),
        *(LOCK, PHASE, JOB, JOINED, SERVER, IN_FLIGHT, MODELS_SHOWN),
    }
)
"""Names of all files that a run writes, except some of `report.pictures`."""


@dataclass(frozen=True, slots=True)
class ClientScore:
    """One client's score in a round."""

    score: float
    """Value of the round's metric."""
    loss: float


@dataclass(frozen=True, slots=True)
class RoundMetrics:
    """One line of metrics.jsonl."""

    round: int
    accuracy: float | None
    """The score, 0..1, where the metric is an accuracy; None where it is another."""
    loss: float
    lr: float
    upload_bytes: int
    """Bytes that all clients sent in this round."""
    dropped: tuple[str, ...]
    """Clients of which a message was refused in this round; one that did not score the model is
    none of them."""
    seconds: float
    simulated_s: float | None = None
    """Duration of the round on simulated devices; None without."""
    energy_wh: float | None = None
    """Energy that the selected clients' devices spent in the round."""
    epsilon: float | None = None
    """Upper bound of the privacy loss so far, by PLD; None where nothing bounds it."""
    metric: str = ACCURACY_METRIC
    """Name of the score's metric."""
    score: float = math.nan
    """Score on the test data; the accuracy where a folder has no other, as older ones."""
    clients: Mapping[str, ClientScore] = field(default_factory=dict)
    """Scores by client, where each has a model or test data of its own; `score` is their mean."""
    pooled: PooledScore | None = None
    """Score over all clients' samples, where each has a model or test data of its own."""
    at: str = field(default_factory=utc_now, compare=False, repr=False)
    """Time of the round's end, UTC."""
    phases: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)
    """Seconds by phase; what is left to `seconds` is writing."""
    n_clients: int | None = None
    """Number of clients whose contributions counted; None in older folders."""

    @property
    def values(self) -> dict[str, float]:
        """Score of each client, where each is scored by itself; NaN for one that has none."""
        return {name: of.score for name, of in self.clients.items()}

    @property
    def compared(self) -> float:
        """Value by which rounds are compared: over all clients' samples where there is one."""
        return self.pooled.value if self.pooled and self.pooling else self.score

    @property
    def pooling(self) -> PooledBy | None:
        """Way in which `compared` is over all clients' samples; None where it is not."""
        known = self.pooled and not math.isnan(self.pooled.value)
        return self.pooled.pooling if self.pooled and known else None

    def __post_init__(self) -> None:
        if math.isnan(self.score) and self.accuracy is not None:
            object.__setattr__(self, "score", self.accuracy)


def best_of(metrics: Sequence[RoundMetrics]) -> RoundMetrics | None:
    """Return the first round of the best score; None where no round has one.

    It is chosen by the samples that score it, so on others it is likely to be worse.
    """
    best: RoundMetrics | None = None
    for of in metrics:
        than = -math.inf if best is None else best.compared
        first = best is None and not math.isnan(of.compared)
        if first or is_better(of.metric, of.compared, than):
            best = of
    return best


_WAY_OUT = "put a copy of it back if you have one, or start the run anew in another folder"
Row = TypeVar("Row", RoundMetrics, Entry, Incident, RoundParticipants, Opening, Shown)


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


def unlisted(ledger: Iterable[Entry], metrics: Iterable[RoundMetrics]) -> str:
    """Return the reason why a ledger does not tell who sent what; empty where it does."""
    return _lacking("ledger", ledger, (of.round for of in metrics if of.upload_bytes))


def unopened(openings: Iterable[Opening], ledger: Iterable[Entry]) -> str:
    """Return the reason why a log does not tell all that was opened; empty where it does."""
    sent = (entry.round for entry in ledger if entry.sender == AUTHORITY)
    return _lacking("log of openings", openings, sent)


def untold(incidents: Iterable[Incident], metrics: Iterable[RoundMetrics]) -> str:
    """Return the reason why a log does not tell of all that was refused; empty where it does."""
    return _lacking("log of incidents", incidents, (of.round for of in metrics if of.dropped))


def _lacking(log: str, rows: Iterable[Entry | Incident | Opening], rounds: Iterable[int]) -> str:
    """Return the reason why a log does not tell of these rounds; empty where it does.

    A folder may have lost a log, or lines of it: what is not there was not "nothing".
    """
    there = {row.round for row in rows}
    gone = min(set(rounds) - there, default=None)
    if gone is None:
        return ""
    return f"not known: the {log} lacks round {gone:,}" if there else f"not known: no {log}"


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


def read_metrics(path: Path) -> tuple[RoundMetrics, ...]:
    """Read a run's rounds without its long ledger; RunFolderError where they are damaged."""
    return tuple(read_rows(path / METRICS, RoundMetrics))


def holds_run(path: Path) -> bool:
    """Return whether the folder holds a run; RunFolderError where it cannot be read."""
    try:
        return (path / CONFIG).is_file()
    except OSError as error:
        reason = error.strerror
        raise RunFolderError(f"{path}: no folder for a run ({reason}); name another") from error


MAX_PHASE_BYTES = 32
MAX_JOINED_BYTES = 2**20
_JOINED = TypeAdapter(dict[str, Annotated[int, Field(strict=True, ge=1, lt=2**31)]])


def is_finished(path: Path) -> bool:
    """Return whether the run's model and pictures are written, too."""
    return all((path / name).exists() for name in (MODEL, TRAFFIC))


def is_at_work(path: Path) -> bool | None:
    """Return whether a process has the lock of a run's folder; None where nobody can tell.

    A lock that is shared for a moment finds out; whoever begins just then is told to come again.
    """
    try:
        import fcntl  # noqa: PLC0415 -- Windows has none
    except ImportError:
        return None
    try:
        handle = os.open(path / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError as error:
        reason = error.strerror or error
        raise RunFolderError(f"{path / LOCK}: cannot be read ({reason})") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def read_phase(path: Path) -> str:
    """Return the phase of the round that goes on; empty where nobody has noted one."""
    try:
        return read_bounded(path / PHASE, MAX_PHASE_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


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
    if not holds_run(path):
        raise RunFolderError(f"{path} is no run's folder: it has no {CONFIG}")
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
        return [parsed(parser, line, RunFolderError) for line in read_lines(path)]


@contextmanager
def read_soundly(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into RunFolderError, with the file's name."""
    try:
        yield
    except RunFolderError as error:
        raise RunFolderError(f"{path}: damaged ({error}); {_WAY_OUT}") from None
    except OSError as error:
        reason = error.strerror or error
        raise RunFolderError(f"{path}: cannot be read ({reason}); {_WAY_OUT}") from error


def _qualities(path: Path) -> dict[str, str]:
    file = path / QUALITIES
    if not file.is_file():
        return {}
    with read_soundly(file):
        content = read_bounded(file, MAX_LINE_BYTES)
        return parsed(TypeAdapter(dict[str, str]), content, RunFolderError)
