"""A run's server.json: the options that its server was started with. It holds no secret."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from securefl.errors import RunFolderError
from securefl.io.files import read_bounded
from securefl.io.json import parsed
from securefl.runs.folder_reader import read_soundly

MAX_BYTES = 2**16


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
    data: Path | None = None
    """Absolute path of the server's file that names public samples; None without."""


def read_server_start(path: Path) -> ServerStart:
    """Read the file.

    Raises:
        RunFolderError: it is damaged, or no regular file.
    """
    with read_soundly(path):
        return parsed(TypeAdapter(ServerStart), read_bounded(path, MAX_BYTES), RunFolderError)
