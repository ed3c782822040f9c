"""A run's environment.json: seed, whether the task was the user's, and each session's machine."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter

from securefl.errors import RunFolderError
from securefl.io.files import read_bounded
from securefl.io.json import parsed
from securefl.runs.folder_reader import read_soundly

MAX_BYTES = 2**22

PACKAGES = ("torch", "tenseal", "numpy", "cryptography", "securefl")
PROCESSES = "processes"
"""In the place of an engine: the run's clients, server and authority are separate processes."""


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
        return parsed(TypeAdapter(Environment), read_bounded(path, MAX_BYTES), RunFolderError)


def this_session(key_id: str, engine: str, n_threads: int | None) -> dict[str, Any]:
    """Describe this session: machine, versions, key and engine."""
    return {
        "python": platform.python_version(),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "torch_threads": n_threads or torch.get_num_threads(),
        **{package: version(package) for package in PACKAGES},
        "key_id": key_id,
        "engine": engine,
    }
