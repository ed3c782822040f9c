"""Key files on disk: read within bounds, written whole, closed to other users."""

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_der_private_key

from securefl.crypto.artefact import require_version
from securefl.crypto.cards import CARD_KEY_FORMAT, REPLACED
from securefl.errors import ConfigError, KeyFileError, SecretFound, WrongPassphrase
from securefl.io import files
from securefl_keys import layout

MAX_FILE_BYTES = 4 * 1024 * 1024
WAY_OUT = "copy it again from where the keys were made, or make new ones with: securefl keys init"

_Parsed = TypeVar("_Parsed")


def load(path: Path, parse: Callable[[str], _Parsed]) -> _Parsed:
    """Load and parse a file; every refusal names the file, and the way out."""
    try:
        return parsed(read(path), parse)
    except (ConfigError, WrongPassphrase) as error:
        raise type(error)(f"{path}: {error}") from error
    except KeyFileError as error:
        raise KeyFileError(f"{path}: {error}; {WAY_OUT}") from error


def load_secret(path: Path, parse: Callable[[str], _Parsed]) -> _Parsed:
    """Load a secret file as `load` does; refuse one that other users may read."""
    if others_may_read(path):
        raise KeyFileError(f"{path}: {open_to_others(path)}")
    return load(path, parse)


def parsed(text: str, parse: Callable[[str], _Parsed]) -> _Parsed:
    """Parse a text; raises KeyFileError also where a library fails in a way of its own."""
    try:
        return parse(text)
    except (ConfigError, KeyFileError):
        raise
    except (RuntimeError, ValueError) as error:
        raise KeyFileError(f"damaged: {error}") from error


def read(path: Path) -> str:
    """Return a key file's text; raises KeyFileError without the path."""
    try:
        if not path.is_file():
            raise KeyFileError("missing, or not a file")
        return files.read_bounded(path, MAX_FILE_BYTES).decode()
    except OSError as error:
        raise KeyFileError(f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise KeyFileError("not a text file, so not a SecureFL key file") from error


def others_may_read(path: Path) -> bool:
    """Return whether other users of this machine may open the file."""
    # Windows has no such bits and shows every file as open to all.
    try:
        return os.name == "posix" and bool(path.stat().st_mode & 0o077)
    except OSError:
        return False


def open_to_others(path: Path) -> str:
    """Say that others may read a secret, and which command closes it."""
    return f"other users may read it; close it with: chmod 600 {path}"


def write_new(path: Path, text: str, mode: int) -> None:
    """Write a text to a new file, as `files.write_new`."""
    files.write_new(path, text.encode(), mode)


def replace(path: Path, text: str, mode: int) -> None:
    """Replace a file by a text, as `files.write_whole`. The caller must hold a lock on the file."""
    for left in path.parent.glob(f".{path.name}.*.partial"):  # of a process that was killed
        left.unlink(missing_ok=True)
    files.write_whole(path, text.encode(), mode)


def lock_of(path: Path) -> Path:
    """Return the empty file beside it that a process locks while it alone may change it."""
    return path.with_name(f".{path.name}.lock")


@contextmanager
def appearing_whole(directory: Path) -> Iterator[Path]:
    """Yield a sibling to write in: it becomes `directory` at the end, or vanishes on any error."""
    with appearing_together([directory]) as (building,):
        yield building


@contextmanager
def appearing_together(directories: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield siblings of several folders, as `appearing_whole`: all of them appear, or none."""
    with ExitStack() as undo:
        buildings = [_begun(directory, undo) for directory in directories]
        yield buildings
        for building, directory in zip(buildings, directories, strict=True):
            _settle_all(building)
            building.rename(directory)
            undo.callback(shutil.rmtree, directory, ignore_errors=True)
        for parent in {directory.parent for directory in directories}:
            files.settle(parent)
        undo.pop_all()


def _settle_all(building: Path) -> None:
    """Sync the names in the folder to the disk, before the folder's own."""
    for folder in (building, *(path for path in building.rglob("*") if path.is_dir())):
        files.settle(folder)


def _begun(directory: Path, undo: ExitStack) -> Path:
    for parent in reversed([parent for parent in directory.parents if not parent.exists()]):
        undo.callback(_remove_if_empty, parent)
    building = directory.parent / f".{directory.name}.{secrets.token_hex(8)}"
    undo.callback(shutil.rmtree, building, ignore_errors=True)
    files.make_folder(building)
    return building


def _remove_if_empty(directory: Path) -> None:
    with suppress(OSError):
        directory.rmdir()


@contextmanager
def found_in(path: Path | str) -> Iterator[None]:
    """Put the path before the text of a refusal."""
    try:
        yield
    except KeyFileError as error:
        raise type(error)(f"{path}: {error}") from error


def text_of(path: Path) -> str:
    """Return a file's text, of at most 4 MiB; raises KeyFileError."""
    with found_in(path):
        return read(path)


_MARKS = re.compile(rb"securefl-[a-z-]{0,32}secret-key/|PRIVATE KEY-----")
_WORDS = (b"secret-key/", b"PRIVATE KEY-----")
"""Words of which each mark has one; a search for marks is slow, and most files have none."""


def require_no_secret(content: bytes) -> None:
    """Raises SecretFound for a sealed or open private key, in SecureFL's forms, PEM or DER."""
    if _is_marked(content) or _is_der_private_key(content):
        raise SecretFound(
            "a secret key: only who made it may hold it; delete it here, and if others were given "
            "it, make new keys"
        )


def _is_marked(content: bytes) -> bool:
    return any(word in content for word in _WORDS) and bool(_MARKS.search(content))


def _is_der_private_key(content: bytes) -> bool:
    try:
        load_der_private_key(content, password=None)
    except TypeError:  # one that is encrypted
        return True
    except (ValueError, UnsupportedAlgorithm):
        return False
    return True


def require_not_older(directory: Path, path: Path) -> None:
    """Raises KeyFileError, with the way out, where the folder has an older file in place of it."""
    older = layout.REPLACED.get(path)
    if older is None or (directory / path).exists() or not (directory / older).exists():
        return
    load(directory / older, lambda text: require_version(text, CARD_KEY_FORMAT, replaced=REPLACED))
