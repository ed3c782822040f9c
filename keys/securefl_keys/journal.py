"""How all files of a key folder change together: they are ready in `.next` before one is replaced.

`.next` appears whole. From then on the change has happened, and whoever opens the folder next
finishes what a crash has left undone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from securefl.errors import KeyFileError
from securefl_keys import layout
from securefl_keys.releases import lock_of
from securefl_keys.signer import changing

LOCK_TIMEOUT_S = 60
NEXT = Path(".next")


def finish_rotation(directory: Path) -> None:
    """Put in place what a rotation that was cut off has left ready; raises KeyFileError."""
    if pending(directory):
        with locked(directory):
            finish_locked(directory)


@contextmanager
def settled(directory: Path) -> Iterator[None]:
    """All files are of one epoch, and nobody changes one meanwhile; raises KeyFileError."""
    with locked(directory):
        finish_locked(directory)
        yield


def pending(directory: Path) -> bool:
    """Whether a rotation is under way, or was cut off."""
    return (directory / NEXT).is_dir() or any(_unfinished(directory))


def _unfinished(directory: Path) -> Iterator[Path]:
    """What a process that was killed while it wrote has left: it was never in force."""
    return directory.glob(f".{NEXT}.*")


def finish_locked(directory: Path) -> None:
    """As `finish_rotation`, for who holds the lock."""
    ready = directory / NEXT
    try:
        for left in _unfinished(directory):
            shutil.rmtree(left)
        if not ready.is_dir():
            return
        for path in sorted(ready.rglob("*")):
            if path.is_file():
                path.replace(directory / path.relative_to(ready))
        shutil.rmtree(ready)
    except OSError as error:
        raise KeyFileError(
            f"{directory}: new keys are ready in {NEXT} and cannot be put in place "
            f"({error.strerror or error}): free the folder, and run the command again"
        ) from error


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """For one process at a time; raises KeyFileError where nothing can be changed."""
    path = directory / layout.AUTHORITY_KEY
    if not path.parent.is_dir():
        raise KeyFileError(f"{path}: missing: only the folder in which the keys were made has it")
    with ExitStack() as locks:
        hold(locks, path, f"{directory}: another process is rotating its keys")
        if (directory / layout.ROSTER).exists():
            locks.enter_context(changing(directory))
        yield


def hold(locks: ExitStack, path: Path, busy: str, timeout_s: float = LOCK_TIMEOUT_S) -> None:
    """Lock a file until the stack is left; raises KeyFileError, with `busy` where it is locked."""
    try:
        locks.enter_context(FileLock(lock_of(path), timeout=timeout_s))
    except Timeout:
        raise KeyFileError(busy) from None
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be locked ({error.strerror or error})") from error
