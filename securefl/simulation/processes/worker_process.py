"""A worker, as the main process holds it: its process, its pipe, and its slots."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

from securefl.simulation.processes.interrupts import deaf_to_interrupts
from securefl.simulation.processes.ipc import Block, Gone, receive, send
from securefl.simulation.processes.messages import Content, Free, Slots, TorchSettings, Trained
from securefl.simulation.processes.worker import work

LOOK_AHEAD_BYTES = 2**25
"""Of what a worker's clients have sent that may wait to be added."""
MOST_SLOTS = 64
WITHHELD = "SECUREFL_PASSPHRASE"
"""Of the command line; a worker opens nothing."""
_PATIENCE_S = 5.0
_SPAWN = multiprocessing.get_context("spawn")


@contextmanager
def _without_passphrase() -> Iterator[None]:
    """A process that is started meanwhile does not get the passphrase with its environment."""
    given = os.environ.pop(WITHHELD, None)
    try:
        yield
    finally:
        if given is not None:
            os.environ[WITHHELD] = given


class WorkerProcess:
    """One that can be started again in its own place."""

    def __init__(self, settings: TorchSettings, n_clients: int) -> None:
        """Nothing is started; `n_clients` are its own."""
        self._settings = settings
        self._n_clients = n_clients
        self._slot_bytes = 0
        self._block: Block | None = None
        self._pipe: Connection | None = None
        self._process: multiprocessing.process.BaseProcess | None = None
        self.is_told = False
        """Whether it knows its clients."""
        self.key = ""
        """The key that it has been told its clients seal with."""
        self.has_spoken = False
        """Whether it has begun to work."""

    @property
    def pipe(self) -> Connection:
        """What it says."""
        if self._pipe is None:
            raise Gone
        return self._pipe

    @property
    def sentinel(self) -> int:
        """Is ready once the process has ended."""
        if self._process is None:
            raise Gone
        return self._process.sentinel

    @property
    def pid(self) -> int | None:
        """The process's; None where there is none."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """A fresh process that knows nothing, in the place of another if there is one."""
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
        """Once it has ended: of a signal, the negative number."""
        if self._process is None:
            return None
        self._process.join(_PATIENCE_S)
        return self._process.exitcode

    def tell(self, value: Any) -> None:
        """Nothing where it has ended, which `pipe` and `sentinel` show."""
        with suppress(Gone):
            send(self.pipe, value)

    def hear(self) -> Any:
        """What it says next; raises Gone where it has ended."""
        heard = receive(self.pipe)
        self.has_spoken = True
        return heard

    def slots(self, n_bytes: int) -> Slots:
        """Room for contributions of this size; larger than before where it must be."""
        if n_bytes > self._slot_bytes:
            self._remove_block()
            self._slot_bytes = n_bytes
            self._block = Block.made(n_bytes * self.n_slots)
        name = self._block.name if self._block else ""
        return Slots(self.n_slots, self._slot_bytes, name)

    @property
    def n_slots(self) -> int:
        """How many contributions may wait."""
        most = min(MOST_SLOTS, self._n_clients)
        return min(most, max(2, LOOK_AHEAD_BYTES // self._slot_bytes))

    def take(self, trained: Trained) -> Content:
        """What a client leaves; its slot is free again."""
        content = trained.content
        if content is None:
            if self._block is None:
                raise RuntimeError("a slot in no block")
            content = self._block.read(trained.slot * self._slot_bytes)
        self.tell(Free(trained.slot))
        return content

    def end(self) -> None:
        """At once; harmless where it has ended."""
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
        self.is_told, self.key, self.has_spoken = False, "", False

    def close(self) -> None:
        """Leave nothing behind."""
        self.end()
        self._remove_block()
        self._slot_bytes = 0

    def _remove_block(self) -> None:
        if self._block:
            self._block.remove()
            self._block = None
