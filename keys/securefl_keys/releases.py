"""Counts of the scores that match keys have released, on disk, so that no restart forgets one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, final

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from securefl.exchange.releases import spent

from securefl.crypto.artefact import Sha256, canonical, digest, require_digest
from securefl.errors import KeyFileError
from securefl.io.json import require_plain
from securefl_keys import key_files

RELEASES_FORMAT: Literal["securefl-releases/2"] = "securefl-releases/2"
LOCK_TIMEOUT_S = 60
WAY_OUT = (
    "nobody knows what the key has released, and an older copy of the file does not either: make "
    "a new key, with: securefl keys rotate"
)


class ReleasesFile(BaseModel):
    """The count as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["securefl-releases/2"]
    purpose: Literal["matches"]
    key_id: Sha256
    n_released: int = Field(ge=0, le=2**62)
    sha256: Sha256
    """Over all other fields."""

    @classmethod
    def stating(cls, key_id: str, n_released: int) -> str:
        """The text of a file."""
        fields = {
            "format": RELEASES_FORMAT,
            "purpose": "matches",
            "key_id": key_id,
            "n_released": n_released,
        }
        return cls.model_validate(fields | {"sha256": digest(canonical(fields))}).model_dump_json(
            indent=1
        )

    @classmethod
    def parse(cls, text: str) -> ReleasesFile:
        """Raises KeyFileError where the text is no count, or a damaged one."""
        require_plain(text, KeyFileError)
        try:
            file = cls.model_validate_json(text)
        except ValidationError as error:
            message = error.errors(include_input=False)[0]["msg"]
            raise KeyFileError(f"no count of releases: {message}") from None
        require_digest(file.sha256, canonical(file.model_dump(exclude={"sha256"})))
        return file


@final
class FileCount:
    """A key's count, which all processes that open with the key share."""

    def __init__(self, path: Path, key_id: str) -> None:
        """Raises KeyFileError where the file is missing, damaged, or of another key."""
        self._path = path
        self._key_id = key_id
        self._most_seen = 0
        self._stated()

    @property
    def n_released(self) -> int:
        """Scores released so far, here and in other processes; raises KeyFileError."""
        with self._locked():
            return self._stated()

    def spend(self, n: int, at_most: int) -> None:
        """Count n scores as released: on the disk, before this returns.

        Raises:
            KeyWornOut: more than `at_most` would be; nothing is counted.
            KeyFileError: the count cannot be read or written; nothing may be released.
        """
        with self._locked():
            count = spent(self._stated(), n, at_most)
            text = ReleasesFile.stating(self._key_id, count)
            key_files.replace(self._path, text, mode=0o600)
            self._most_seen = count

    def _stated(self) -> int:
        try:
            file = ReleasesFile.parse(key_files.read(self._path))
            self._require_own(file)
        except KeyFileError as error:
            raise KeyFileError(f"{self._path}: {error}; {WAY_OUT}") from error
        self._most_seen = file.n_released
        return file.n_released

    def _require_own(self, file: ReleasesFile) -> None:
        if file.key_id != self._key_id:
            raise KeyFileError(
                f"it counts for key {file.key_id[:16]}…, not for {self._key_id[:16]}…"
            )
        if file.n_released < self._most_seen:
            raise KeyFileError(
                f"it counts {file.n_released} releases, and has counted {self._most_seen} before"
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with FileLock(lock_of(self._path), timeout=LOCK_TIMEOUT_S):
                yield
        except Timeout:
            raise KeyFileError(f"{self._path}: another process keeps it locked") from None
        except OSError as error:
            raise KeyFileError(
                f"{self._path}: cannot be written ({error.strerror or error}), so nothing is "
                "released: free some space, or let this user write there"
            ) from error


def lock_of(path: Path) -> Path:
    """The empty file beside it that a process locks while it counts."""
    return path.with_name(f".{path.name}.lock")
