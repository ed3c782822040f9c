"""Opened certificate authority of a key folder, and the change of all its files together.

`.next` appears whole. From then on the change has happened, and whoever uses the keys next finishes
what a crash has left undone. Who only looks changes nothing.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from os.path import lexists
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from filelock import FileLock, Timeout

from securefl.errors import KeyFileError
from securefl.io.files import settle
from securefl.io.uncopyable import Held
from securefl_keys import layout
from securefl_keys.certificates import ConsortiumAuthority
from securefl_keys.identity import open_ca_key
from securefl_keys.key_files import load_secret, lock_of
from securefl_keys.policy import load_policy
from securefl_keys.roster import VerifiedRoster, load_officers, load_roster
from securefl_keys.sealed_keys import SealedKey


def require_one_epoch(directory: Path, at: datetime) -> None:
    """Raises KeyFileError where the consortium's files are not of the keys' epoch.

    Each would be genuine: a roster from before a revocation lists who was revoked.
    """
    key = load_secret(directory / layout.AUTHORITY_KEY, SealedKey.parse)
    epochs = {
        layout.AUTHORITY_KEY: key.epoch,
        layout.ROSTER: load_roster(directory, at=at).file.epoch,
        layout.POLICY: load_policy(directory, at).epoch,
    }
    officers = load_officers(directory, at)
    if officers:
        epochs[layout.OFFICERS] = officers.epoch
    newest = max(epochs.values())
    for path, epoch in epochs.items():
        if epoch != newest:
            raise KeyFileError(
                f"{directory / path}: of epoch {epoch}, and others are of {newest}: put the newest "
                "back (roster, policy and officers are in the newest bundle)"
            )


LOCK_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Signer(Held):
    """Key of the certificate authority, and the roster that it has signed last."""

    roster: VerifiedRoster
    key: Ed25519PrivateKey = field(repr=False)

    @property
    def ca(self) -> ConsortiumAuthority:
        """Certificate of the authority."""
        return self.roster.ca


def open_signer(directory: Path, passphrase: str, at: datetime) -> Signer:
    """Open the certificate authority's key, which signs for the consortium.

    Raises:
        WrongPassphrase: another passphrase, or the key's file was changed.
        KeyFileError: no consortium, or a file is missing, damaged, or open to others.
    """
    path = directory / layout.CA_KEY
    if not path.exists():
        raise KeyFileError(
            f"{path}: missing: only the folder in which the keys were made has it; make one with: "
            "securefl keys init DIR --consortium NAME"
        )
    require_one_epoch(directory, at)
    roster = load_roster(directory, at=at)
    key = load_secret(path, lambda text: open_ca_key(text, passphrase))
    if key.public_key() != roster.ca.public_key:
        raise KeyFileError(f"{path}: not the key of {directory / layout.CA_CERTIFICATE}")
    return Signer(roster, key)


@contextmanager
def changing(directory: Path) -> Iterator[None]:
    """Hold the folder's lock, for one process; raises KeyFileError where nothing can be changed."""
    if not (directory / layout.ROSTER).is_file():
        raise KeyFileError(
            f"{directory}: has no consortium: make one with: securefl keys init DIR --consortium "
            "NAME"
        )
    try:
        with FileLock(lock_of(directory / layout.ROSTER), timeout=LOCK_TIMEOUT_S):
            yield
    except Timeout:
        raise KeyFileError(f"{directory}: another process is changing the consortium") from None
    except OSError as error:
        raise KeyFileError(
            f"{directory}: the consortium cannot be changed: {error.strerror or error}"
        ) from error


NEXT = Path(".next")
CUT_OFF = (
    "a rotation is under way, or was cut off: the next command that uses the keys finishes it, "
    "such as securefl keys export"
)


def finish_rotation(directory: Path) -> None:
    """Put in place what a rotation that was cut off has left ready; raises KeyFileError."""
    if pending(directory):
        with locked(directory):
            finish_locked(directory)


@contextmanager
def settled(directory: Path) -> Iterator[None]:
    """Hold all files at one epoch, changed by nobody meanwhile; raises KeyFileError."""
    with locked(directory):
        finish_locked(directory)
        yield


def pending(directory: Path) -> bool:
    """Return whether a rotation is under way, or was cut off."""
    return any(left_by_rotation(directory))


def left_by_rotation(directory: Path) -> Iterator[Path]:
    """Yield `.next`, which holds what is in force, and files that a killed process half-wrote."""
    if lexists(directory / NEXT):
        yield directory / NEXT
    yield from _unfinished(directory)


def require_settled(directory: Path) -> None:
    """Raises KeyFileError where a rotation was cut off: the files may be of two epochs."""
    for path in left_by_rotation(directory):
        raise KeyFileError(f"{path}: {CUT_OFF}")


def _unfinished(directory: Path) -> Iterator[Path]:
    """Return what a process that was killed while it wrote has left: it was never in force."""
    return directory.glob(f".{NEXT}.*")


def finish_locked(directory: Path) -> None:
    """Finish a rotation as `finish_rotation` does; the caller holds the lock."""
    ready = directory / NEXT
    try:
        for path in left_by_rotation(directory):
            # A link is refused before anything is moved or deleted through it.
            _require_no_link(path)
        for left in _unfinished(directory):
            shutil.rmtree(left)
        if not ready.is_dir():
            return
        moved = [path.relative_to(ready) for path in sorted(ready.rglob("*")) if path.is_file()]
        # Each move is atomic, and `.next` goes last: whatever was not yet moved is moved by the
        # next caller.
        for path in moved:
            (ready / path).replace(directory / path)
        for folder in {(directory / path).parent for path in moved}:
            settle(folder)  # before what says that it is to be done goes
        shutil.rmtree(ready)
    except OSError as error:
        raise KeyFileError(
            f"{directory}: new keys are ready in {NEXT} and cannot be put in place "
            f"({error.strerror or error}): free the folder, and run the command again"
        ) from error


def _require_no_link(left: Path) -> None:
    """Refuse a link, which would move files of somebody's choice into the folder, or from it."""
    for path in (left, *left.rglob("*")):
        if path.is_symlink():
            raise KeyFileError(
                f"{path}: a link, and a rotation leaves none: find out who laid it, and delete it"
            )


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the folder's lock for one process; raises KeyFileError where nothing can be changed."""
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
