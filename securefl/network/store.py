"""Store of a client's tensors between rounds, in its own folder, and the rounds it has been in.

A round's file is there before the round's update leaves the client. Which one it goes on from, the
server says with each round: that of the last contribution of this client that counted.
"""

import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import safetensors.torch
from pydantic import Field, TypeAdapter
from torch import nn

from securefl.errors import PeerError, RunFolderError
from securefl.io.files import make_folder, read_bounded, write_whole
from securefl.io.json import parsed
from securefl.io.tensors import unshared
from securefl.runs.checkpoint import Checkpoint, check_client_state
from securefl.runs.task_record import SiteRecord, site_record
from securefl.types import ClientState, State

RUNS, MODELS = "runs", "models"
SESSIONS = "sessions"
_SUFFIX = ".safetensors"
_OWNER = "owner"
_DATA = "data.sha256"
_MAX_CLAIMS_BYTES = 2**16
_CLAIMS = TypeAdapter(dict[str, Annotated[int, Field(strict=True, ge=1, lt=2**31)]])


@dataclass(slots=True)
class FileStore:
    """`Store` of one client's state in one run."""

    folder: Path
    """Folder of the client; the run's files lie below it."""
    client: str
    job: str
    run: str
    """Id of the session."""
    model: nn.Module
    """Model of the run, with the names, shapes and types of what the client keeps."""
    checked: bool
    """True where the files are checked against the model; an own algorithm's are not."""
    like: State
    """State on whose device the client's states go."""
    _since: int = field(default=0)

    @property
    def path(self) -> Path:
        """Folder of the run."""
        return self.folder / RUNS / self.job

    def claim(self, what: str, round_number: int) -> None:
        """Use up the one time in this session that the client does this in a round.

        Two contributions under one name would show their difference. It is on the disk before
        anything leaves the client, and so holds on another connection, after a restart, under
        another job's name, and once the run is over.

        Raises:
            PeerError: it was done in this round, or in a later one.
            RunFolderError: what was done is not known, or cannot be written.
        """
        path = self.folder / SESSIONS / f"{self.run}.json"  # of no job: the server names that
        claims = self._claims(path)
        if round_number <= claims.get(what, 0):
            raise PeerError(f"the server asks for the {what} of round {round_number} again")
        self._write(path, _CLAIMS.dump_json(claims | {what: round_number}))

    def require_data(self, digest: str) -> None:
        """Hold the client's samples against those that it began the run with.

        Raises:
            RunFolderError: they are others, or this cannot be read or written.
        """
        path = self.path / _DATA
        if not path.exists():
            return self._write(path, digest.encode())
        try:
            known = read_bounded(path, len(digest)).decode("ascii", "replace")
        except OSError as error:
            raise RunFolderError(f"{path}: cannot be read ({error})") from error
        if known != digest:
            raise RunFolderError(
                f"{self.client}: its samples are others than those that it began this run with: "
                "put them back, or begin another run"
            )
        return None

    def note_data(self, record: SiteRecord) -> None:
        """Write down what the client began the run with, which stays when the run is over.

        Raises:
            RunFolderError: it cannot be written.
        """
        self._write(self.folder / site_record(self.job), record.to_json())

    def of_rounds(self, since: Mapping[str, int]) -> Mapping[str, ClientState]:
        """Return the states: see `Store.of_rounds`."""
        self._since = since.get(self.client, 0)
        if self._since == 0:
            return {self.client: ClientState()}
        path = self._file(self._since)
        if not path.exists():
            raise RunFolderError(
                f"{self.path}: holds nothing of round {self._since}, which by the server this "
                "client has taken part in: put the folder back if you have a copy; without it the "
                "run cannot go on with this client"
            )
        found = Checkpoint.read(path)
        if (found.state.round, {*found.numbers.get(_OWNER, {})}) != (self._since, {self.client}):
            raise RunFolderError(
                f"{path}: is of another client, or of another round: put {self.client}'s own back"
            )
        if self.checked:
            for client_state in found.client_states.values():
                check_client_state(self.client, client_state, self.model)
        return {
            self.client: ClientState(),
            **replace(found, state=self.like).beside(self.like).client_states,
        }

    def stage(self, round_number: int, client_states: Mapping[str, ClientState]) -> None:
        """Stage states, see `Store.stage`; raises RunFolderError where they cannot be written."""
        owner = {_OWNER: {self.client: 0.0}}
        content = Checkpoint(State(round_number, {}), client_states, owner).to_bytes()
        self._write(self._file(round_number), content)
        needed = {self._file(number) for number in (self._since, round_number)}
        with suppress(OSError):
            for path in {*self.path.glob(f"*{_SUFFIX}"), *self.path.glob(".*.partial")} - needed:
                path.unlink(missing_ok=True)

    def keep(self, round_number: int, names: Collection[str]) -> None:
        """Note the last round that counted: see `Store.keep`."""
        if self.client in names:
            self._since = round_number

    def forget(self) -> Path | None:
        """Remove the run's files, once it is over, but the client's own part of the model.

        Returns:
            The file of that part; None where the client has the global model like all.

        Raises:
            RunFolderError: it cannot be read or written; nothing is removed.
        """
        # The connection on which the last round counted may be another than the one that ends.
        newest = max((int(p.stem) for p in self.path.glob(f"[0-9]*{_SUFFIX}")), default=0)
        own = self.of_rounds({self.client: self._since or newest})[self.client].scored
        path = self.folder / MODELS / f"{self.job}{_SUFFIX}"
        if own:
            self._write(path, safetensors.torch.save(unshared(own)))
        with suppress(OSError):
            shutil.rmtree(self.path)
        return path if own else None

    def _file(self, round_number: int) -> Path:
        return self.path / f"{round_number}{_SUFFIX}"

    def _claims(self, path: Path) -> dict[str, int]:
        if not path.exists():
            return {}
        try:
            return parsed(_CLAIMS, read_bounded(path, _MAX_CLAIMS_BYTES), RunFolderError)
        except (OSError, RunFolderError) as error:
            raise RunFolderError(
                f"{path}: damaged ({error}), and without it a round could be taken part in twice: "
                "put a copy of it back if you have one, or start the server again with the same "
                "command, for another session"
            ) from error

    def _write(self, path: Path, content: bytes) -> None:
        write_own(path, content, self.path)


def write_own(path: Path, content: bytes, named: Path) -> None:
    """Write a client's own file; raises RunFolderError, which names `named`."""
    try:
        make_folder(path.parent, mode=0o700)
        write_whole(path, content, mode=0o600)
    except OSError as error:
        raise RunFolderError(
            f"{named}: cannot be written ({error.strerror or error}): free some space, then start "
            "this client again with the same command"
        ) from error
