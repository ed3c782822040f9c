"""Files read with their path in every refusal, and the refusal's own type kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from securefl.errors import KeyFileError
from securefl_keys.key_files import read


@contextmanager
def found_in(path: Path | str) -> Iterator[None]:
    """Puts the path before what a refusal says."""
    try:
        yield
    except KeyFileError as error:
        raise type(error)(f"{path}: {error}") from error


def text_of(path: Path) -> str:
    """A file's text, of at most 4 MiB; raises KeyFileError."""
    with found_in(path):
        return read(path)
