"""The main process's handle of a worker: its process and its pipe."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

from securefl.simulation.processes.interrupts import deaf_to_interrupts
from securefl.simulation.processes.ipc import Gone, receive, send
from securefl.simulation.processes.messages import TorchSettings
from securefl.simulation.processes.worker import work

WITHHELD = "SECUREFL_PASSPHRASE"
"""Variable of the command line's passphrase; a worker opens nothing."""
_PATIENCE_S = 5.0
_SPAWN = multiprocessing.get_context("spawn")


@contextmanager
def _without_passphrase() -> Iterator[None]:
    """Keep the passphrase out of the environment of processes started within."""
    given = os.environ.pop(WITHHELD, None)
    try:
        yield
    finally:
        if given is not None:
            os.environ[WITHHELD] = given


class WorkerProcess:
    """A worker's process, which can be started again."""

    def __init__(self, settings: TorchSettings) -> None:
        """Prepare the process; does not start it."""
        self._settings = settings
        self._pipe: Connection | None = None
        self._process: multiprocessing.process.BaseProcess | None = None
        self.is_told = False
        """True once the worker has been given its clients."""
        self.keys: tuple[str, ...] = ()
        """Ids of the keys that the worker has been given."""
        self.has_spoken = False
        """True once the worker has answered."""

    @property
    def pid(self) -> int | None:
        """Id of the process; None where there is none."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start a fresh process, which knows no clients; ends the one before."""
        self.end()
        self._pipe, theirs = _SPAWN.Pipe()
        try:
            self._process = _SPAWN.Process(
                target=work, args=(theirs, self._settings), name="securefl worker", daemon=True
            )
            with deaf_to_interrupts(), _without_passphrase():
                self._process.start()
        finally:
            theirs.close()  # or its end would not be noticed

    def exit_code(self) -> int | None:
        """Return the exit code once the process has ended; negative where a signal ended it."""
        if self._process is None:
            return None
        self._process.join(_PATIENCE_S)
        return self._process.exitcode

    def tell(self, value: Any) -> None:
        """Send a value; does nothing where the worker has ended, which `hear` reports."""
        with suppress(Gone):
            if self._pipe is None:
                raise Gone
            send(self._pipe, value)

    def hear(self) -> Any:
        """Return the worker's next message; raises Gone where it has ended."""
        if self._pipe is None:
            raise Gone
        heard = receive(self._pipe)
        self.has_spoken = True
        return heard

    def end(self) -> None:
        """End the process at once; harmless where it has ended."""
        if self._pipe:
            self._pipe.close()
            self._pipe = None
        if self._process:
            if self._process.pid is not None:
                self._process.terminate()
                self._process.join(_PATIENCE_S)
                if self._process.exitcode is None:
                    self._process.kill()
                    self._process.join()
            self._process.close()
            self._process = None
        self.is_told, self.keys, self.has_spoken = False, (), False
