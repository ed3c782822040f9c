"""Files on the disk: read within bounds, written whole, and still there after a power cut."""

import errno
import io
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from securefl.errors import ConfigError

MAX_LOG_BYTES = 2**30
MAX_LINE_BYTES = 2**22
MAX_TENSOR_BYTES = 2**40
MAX_HEAD_BYTES = 2**25
"""Most bytes of the head in which a safetensors file names all its tensors, parsed whole."""

RETRIES_S = (0.1, 1.0, 5.0)
"""Pauses in seconds before a file is opened again, where there are too many open files."""

# No link or pipe that somebody laid there is followed, or waited for. Windows knows neither.
_NO_LINK, _NO_WAIT = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)


def size_of(path: Path, max_bytes: int) -> int:
    """Returns the size in bytes of a regular file.

    Raises:
        OSError: there is none, or it is larger than `max_bytes`.
    """
    return _checked(path.stat(), path, max_bytes)


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Returns the content of a regular file; raises as `size_of`, and where it cannot be read."""
    with _opened(path, max_bytes) as file:
        return file.read(_checked(os.fstat(file.fileno()), path, max_bytes))


def read_lines(path: Path, max_bytes: int = MAX_LOG_BYTES, start: int = 0) -> Iterator[bytes]:
    """Yields the whole lines of a log; a last one that a crash cut short does not count.

    `start` is the number of bytes at the beginning that are passed over.

    Raises:
        OSError: the file cannot be read, is no log, or has a line of more than `MAX_LINE_BYTES`.
    """
    with _opened(path, max_bytes) as file:
        file.seek(start)
        while (line := file.readline(MAX_LINE_BYTES + 1)).endswith(b"\n"):
            yield line[:-1]
    if len(line) > MAX_LINE_BYTES:
        raise _too_large(path, f"a line of more than {MAX_LINE_BYTES} bytes, which none has")


def own_lines(path: Path, max_bytes: int = MAX_LOG_BYTES) -> Iterator[bytes]:
    """Yields the whole lines of a log that goes on; one that a crash cut short is removed.

    So the next line does not begin behind it. None where there is no file.

    Raises:
        OSError: as `read_lines`.
    """
    if not path.exists():
        return
    n_whole = 0
    for line in read_lines(path, max_bytes):
        n_whole += len(line) + 1
        yield line
    if n_whole < path.stat().st_size:
        os.truncate(path, n_whole)


def require_tensors(path: Path, max_bytes: int = MAX_TENSOR_BYTES) -> None:
    """Check how long a safetensors file and its head are, before a parser believes the head.

    Raises:
        OSError: no such file, or a longer one.
    """
    with _opened(path, max_bytes) as file:
        n_head = int.from_bytes(file.read(8), "little")
    if n_head > MAX_HEAD_BYTES:
        raise _too_large(path, f"a head of {n_head} bytes; such a file's has {MAX_HEAD_BYTES}")


def require_new(path: Path) -> None:
    """Raise ConfigError where something is there already, so that it is not written over."""
    if path.exists():
        raise ConfigError(f"{path}: is there already; give another name, or remove it")


def write_new(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file that must not exist yet, on the disk when this returns, or none.

    Its name is on the disk once the folder is settled. The umask narrows `mode`.

    Raises:
        OSError: it exists, or cannot be written.
    """
    handle = _handle(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(handle)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file that holds the new content on the disk when this returns, or else the old.

    Raises:
        OSError: it cannot be written.
    """
    # A random name that must not exist yet: no link that somebody laid there is followed.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    write_new(partial, content, mode)
    try:
        # The partial file is on the disk by now, so the rename shows the old content or the new.
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    settle(path.parent)


def append_whole(path: Path, lines: bytes) -> None:
    """Write lines at a log's end: all of them, on the disk when this returns, or none.

    The file is cut back where the disk has no room for all.

    Raises:
        OSError: the file cannot be written, or what lies there is no file.
    """
    with _end_of(path) as file:
        before = file.tell()
        try:
            _require_all(file.write(lines), lines)
            os.fsync(file.fileno())
        except BaseException:
            # A part of a line that a full disk has taken would read as another line.
            file.truncate(before)
            raise
    if not before:
        settle(path.parent)


@contextmanager
def note(path: Path, width: int) -> Iterator[Callable[[str], None]]:
    """Yield what writes a word over the one before, in microseconds; no file is left afterwards.

    It is for those who look on alone: it need not outlive a power cut, and a file that cannot be
    written ends nothing. Words are cut, or filled up, to `width` bytes, so that each is whole.
    """
    with suppress(OSError):
        path.unlink()  # of a killed process
    try:
        file = io.FileIO(_handle(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")
    except OSError:
        yield lambda _word: None
        return

    def write(word: str) -> None:
        with suppress(OSError):
            file.seek(0)
            file.write(word.encode()[:width].ljust(width))

    try:
        with file:
            yield write
    finally:
        with suppress(OSError):
            path.unlink()


def make_folder(folder: Path, mode: int = 0o777) -> bool:
    """Make a folder and the parents that it lacks; their names are on the disk when this returns.

    Returns False where it is there already. The umask narrows `mode`, which is the folder's alone.

    Raises:
        OSError: it cannot be made, or what lies there is no folder.
    """
    if not folder.parent.exists():
        make_folder(folder.parent)
    try:
        folder.mkdir(mode)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return False
    settle(folder.parent)
    return True


def settle(folder: Path) -> None:
    """Put the names in a folder on the disk; a new one is there only then. Raises OSError."""
    if os.name == "posix":  # Windows opens no folder
        handle = _handle(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _handle(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open a file; tries again where too many are open."""
    for pause_s in RETRIES_S:
        try:
            return os.open(path, flags | _BINARY, mode)
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            time.sleep(pause_s)
    return os.open(path, flags | _BINARY, mode)


def _opened(path: Path, max_bytes: int) -> BinaryIO:
    handle = _handle(path, os.O_RDONLY | _NO_WAIT)
    try:
        _checked(os.fstat(handle), path, max_bytes)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _checked(status: os.stat_result, path: Path, max_bytes: int) -> int:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    if status.st_size > max_bytes:
        raise _too_large(path, f"{status.st_size} bytes; such a file has at most {max_bytes}")
    return status.st_size


def _too_large(path: Path, reason: str) -> OSError:
    return OSError(errno.EFBIG, reason, str(path))


def _end_of(path: Path) -> io.FileIO:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK | _NO_WAIT
    file = io.FileIO(_handle(path, flags), "ab")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return file


def _require_all(written: int | None, lines: bytes) -> None:
    # A disk that fills up takes a part of the bytes and says so; only the next write fails.
    if written != len(lines):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
