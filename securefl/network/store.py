"""What a client keeps between rounds, as files in its own folder: by session and round.

A file is there before anything of its round leaves the client. Which round it goes on from, the
server says with each round: that of the last contribution of this client that counted.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from securefl.errors import PeerError, RunFolderError
from securefl.io.files import make_folder, write_whole
from securefl.runs.checkpoint import Checkpoint
from securefl.types import Memory, State

RUNS = "runs"
_SUFFIX = ".safetensors"


@dataclass(slots=True)
class FileStore:
    """One client's memory of one run."""

    folder: Path
    """Of the client; the run's files lie below it."""
    client: str
    job: str
    run: str
    """The session, so that each round is taken part in once."""
    like: State
    """On whose device memories go."""
    _since: int = field(default=0)

    @property
    def path(self) -> Path:
        """Folder of the run."""
        return self.folder / RUNS / self.job

    def require_new(self, round_number: int) -> None:
        """Refuse a round of this session that the client has taken part in already.

        Two contributions under one name would show their difference.

        Raises:
            PeerError: it has.
        """
        if self._file(round_number, self.run).exists():
            raise PeerError(f"round {round_number} is asked for again")

    def of_rounds(self, since: Mapping[str, int]) -> Mapping[str, Memory]:
        """See `Store.of_rounds`."""
        self._since = since.get(self.client, 0)
        if self._since == 0:
            return {self.client: Memory()}
        files = sorted(self.path.glob(f"{self._since}-*{_SUFFIX}"), key=_written_at)
        if not files:
            raise RunFolderError(
                f"{self.path}: holds nothing of round {self._since}, which this client has taken "
                "part in: put the folder back if you have a copy; without it the run cannot go on "
                "with this client"
            )
        found = Checkpoint.read(files[-1])
        return {self.client: Memory(), **replace(found, state=self.like).beside(self.like).memories}

    def stage(self, round_number: int, memories: Mapping[str, Memory]) -> None:
        """See `Store.stage`; raises RunFolderError where it cannot be written."""
        content = Checkpoint(State(round_number, {}), memories).to_bytes()
        try:
            make_folder(self.path, mode=0o700)
            write_whole(self._file(round_number, self.run), content, mode=0o600)
            for path in self.path.glob(f"*{_SUFFIX}"):
                if _round_of(path) not in {self._since, round_number}:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"{self.path}: cannot be written ({error.strerror or error}): free some space, "
                "then start this client again with the same command"
            ) from error

    def keep(self, round_number: int, names: Collection[str]) -> None:
        """See `Store.keep`: nothing is left to do."""

    def forget(self) -> None:
        """Remove the run's files, once it is over."""
        with suppress(OSError):
            shutil.rmtree(self.path)

    def _file(self, round_number: int, run: str) -> Path:
        return self.path / f"{round_number}-{run}{_SUFFIX}"


def _round_of(path: Path) -> int:
    number = path.name.partition("-")[0]
    return int(number) if number.isdecimal() else -1


def _written_at(path: Path) -> int:
    return path.stat().st_mtime_ns
