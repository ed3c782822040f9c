"""Records of a run's sessions: machine, packages, the server's options, the round in flight."""

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter

from securefl.errors import RunFolderError
from securefl.federation.ledger import utc_now
from securefl.federation.left_out import List
from securefl.io.files import read_bounded
from securefl.io.json import parsed
from securefl.runs.folder_files import read_soundly


@contextmanager
def torch_threads(n_threads: int | None) -> Iterator[None]:
    """Set torch's number of threads within; unchanged where None."""
    if n_threads is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, slots=True)
class InFlight:
    """Clients of the total that was asked for last, and of all at the same model.

    The authority opens totals at one model, and of a repeated round, for the same clients, or for
    others that differ by enough.
    """

    round: int
    clients: tuple[str, ...]
    model: str = ""
    """Digest of the model; empty in a file of an older release, which has no lists."""
    lists: tuple[List, ...] = ()

    def lists_at(self, model: str, round_number: int, since: Mapping[str, int]) -> tuple[List, ...]:
        """Return the lists that hold for a round at a model; none where it is another.

        `since` is the last round that each client counted in.
        """
        if self.model != model and self.round != round_number:
            return ()
        of_round = tuple((name, 1, since.get(name, 0)) for name in self.clients)
        return self.lists if self.model else (of_round,)


MAX_ENVIRONMENT_BYTES = 2**22

PACKAGES = ("torch", "tenseal", "numpy", "cryptography", "securefl")
PROCESSES = "processes"
"""Words in the place of an engine: the run's clients, server and authority are processes."""


class Environment(BaseModel):
    """Content of the file."""

    model_config = ConfigDict(frozen=True)

    seed: int = 0
    own_task: bool = False
    """True where the run was started with a model and data of the caller's."""
    sessions: tuple[dict[str, Any], ...] = ()

    @property
    def over_processes(self) -> bool:
        """True where a server has written the folder, of clients that are other processes."""
        return any(session.get("engine") == PROCESSES for session in self.sessions)


def read_environment(path: Path) -> Environment:
    """Read the file; empty where there is none.

    Raises:
        RunFolderError: it is damaged, or no regular file.
    """
    if not path.exists():
        return Environment()
    with read_soundly(path):
        return parsed(
            TypeAdapter(Environment), read_bounded(path, MAX_ENVIRONMENT_BYTES), RunFolderError
        )


def this_session(run: str, key_id: str, engine: str, n_threads: int | None) -> dict[str, Any]:
    """Describe this session: its id and beginning, machine, versions, key and engine."""
    return {
        "run": run,
        "began": utc_now(),
        "python": platform.python_version(),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "torch_threads": n_threads or torch.get_num_threads(),
        **{package: version(package) for package in PACKAGES},
        "key_id": key_id,
        "engine": engine,
    }


MAX_START_BYTES = 2**16


class ServerStart(BaseModel):
    """Options of `securefl server serve` beside the settings, the passphrase and the model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bundle: Path
    """Absolute path of the folder with what the consortium has signed."""
    identity: Path
    """Absolute path of the server's own folder."""
    listen: str
    """Address, as HOST:PORT."""
    joining_s: float
    timeout_s: float
    away_s: float
    metrics: str | None = None
    """Address of the metrics page; None without."""
    health: str | None = None
    """Address of gRPC's health service; None without."""
    data: Path | None = None
    """Absolute path of the server's file that names public samples; None without."""


def read_server_start(path: Path) -> ServerStart:
    """Read the file.

    Raises:
        RunFolderError: it is damaged, or no regular file.
    """
    with read_soundly(path):
        return parsed(TypeAdapter(ServerStart), read_bounded(path, MAX_START_BYTES), RunFolderError)
