"""How many scores a match key has released, on disk, so that no restart forgets one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, final

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from securefl.crypto.artefact import Sha256, canonical, digest, require_digest
from securefl.errors import KeyFileError
from securefl.exchange.match_flood import MAX_RELEASES
from securefl.exchange.releases import spent
from securefl_keys import key_files

RELEASES_FORMAT: Literal["securefl-match-releases/1"] = "securefl-match-releases/1"
LOCK_TIMEOUT_S = 60
WAY_OUT = (
    "nobody knows what the key has released, and an older copy of the file does not either: make "
    "a new match key, with: securefl keys init"
)


class ReleasesFile(BaseModel):
    """The count as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["securefl-match-releases/1"]
    key_id: Sha256
    n_released: int = Field(ge=0, le=MAX_RELEASES)
    sha256: Sha256
    """Over all other fields."""

    @classmethod
    def stating(cls, key_id: str, n_released: int) -> str:
        """The text of a file."""
        fields = {"format": RELEASES_FORMAT, "key_id": key_id, "n_released": n_released}
        return cls.model_validate(fields | {"sha256": digest(canonical(fields))}).model_dump_json(
            indent=1
        )

    @classmethod
    def parse(cls, text: str) -> ReleasesFile:
        """Raises KeyFileError where the text is no count, or a damaged one."""
        try:
            file = cls.model_validate_json(text)
        except ValidationError as error:
            message = error.errors(include_input=False)[0]["msg"]
            raise KeyFileError(f"no count of releases: {message}") from None
        require_digest(file.sha256, canonical(file.model_dump(exclude={"sha256"})))
        return file

    @property
    def left(self) -> int:
        """Scores that the key may still release."""
        return MAX_RELEASES - self.n_released


@final
class FileBudget:
    """A match key's budget, which all processes that open with the key share."""

    def __init__(self, path: Path, key_id: str) -> None:
        """Raises KeyFileError where the file is missing, damaged, or of another key."""
        self._path = path
        self._key_id = key_id
        self._most_seen = 0
        self._n_released()

    @property
    def left(self) -> int:
        """Scores that the key may still release; raises KeyFileError."""
        with self._locked():
            return MAX_RELEASES - self._n_released()

    def spend(self, n: int) -> None:
        """Count n scores as released: on the disk, before this returns.

        Raises:
            OpeningRefused: more than are left; nothing is counted.
            KeyFileError: the count cannot be read or written; nothing may be released.
        """
        with self._locked():
            count = spent(self._n_released(), n)
            key_files.replace(self._path, ReleasesFile.stating(self._key_id, count), mode=0o600)
            self._most_seen = count

    def _n_released(self) -> int:
        try:
            self._most_seen = self._stated()
        except KeyFileError as error:
            raise KeyFileError(f"{self._path}: {error}; {WAY_OUT}") from error
        return self._most_seen

    def _stated(self) -> int:
        file = ReleasesFile.parse(key_files.read(self._path))
        if file.key_id != self._key_id:
            raise KeyFileError(
                f"it counts for key {file.key_id[:16]}…, the authority holds {self._key_id[:16]}…"
            )
        if file.n_released < self._most_seen:
            raise KeyFileError(
                f"it counts {file.n_released} releases, and has counted {self._most_seen} before"
            )
        return file.n_released

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with FileLock(lock_of(self._path), timeout=LOCK_TIMEOUT_S):
                yield
        except Timeout:
            raise KeyFileError(f"{self._path}: another process keeps it locked") from None
        except OSError as error:
            raise KeyFileError(
                f"{self._path}: cannot be written ({error.strerror or error}), so no score is "
                "released: free some space, or let this user write there"
            ) from error


def lock_of(path: Path) -> Path:
    """The empty file beside it that a process locks while it counts."""
    return path.with_name(f".{path.name}.lock")
