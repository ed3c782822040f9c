"""Files of a run's folder: their names, and how the run stands by them.

Who follows a run reads no more, so this loads neither settings nor what checks them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from securefl.errors import RunFolderError
from securefl.io.files import read_bounded
from securefl.io.text import printable
from securefl.types import MOST_OFFICERS

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

MAX_PHASE_BYTES = 32

_WAY_OUT = "put a copy of it back if you have one, or start the run anew in another folder"


def holds_run(path: Path) -> bool:
    """Return whether the folder holds a run; RunFolderError where it cannot be read."""
    try:
        return (path / CONFIG).is_file()
    except OSError as error:
        reason = error.strerror
        raise RunFolderError(f"{path}: no folder for a run ({reason}); name another") from error


def require_run(path: Path) -> None:
    """Raise RunFolderError where the folder holds no run."""
    if not holds_run(path):
        raise RunFolderError(f"{path} is no run's folder: it has no {CONFIG}")


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
        word = read_bounded(path / PHASE, MAX_PHASE_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return printable(word.strip())


def length_of(file: Path) -> int:
    """Return a file's length, 0 where it is absent; RunFolderError where it is no file."""
    with read_soundly(file):
        if file.exists() and not file.is_file():
            raise RunFolderError("no file")
        return file.stat().st_size if file.exists() else 0


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
