"""Processes that ignore Ctrl-C, which the main process handles for them.

Workers in processes of this machine: their processes and their pipes.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

import torch

from securefl.federation.transport import Parts
from securefl.simulation.processes.ipc import Begins, Gone, receive, send
from securefl.simulation.processes.machines import Death, Make, Wanted
from securefl.simulation.processes.worker import work


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Block Ctrl-C in processes started within: a pool whose processes it kills may hang."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)


WITHHELD = "SECUREFL_PASSPHRASE"
"""Variable of the command line's passphrase; a worker opens nothing."""
_PATIENCE_S = 5.0
_TOO_LARGE = "; -9 is how the system ends what takes too much memory"
_SPAWN = multiprocessing.get_context("spawn")


def n_cores() -> int:
    """Return the number of cores that this process may use; 1 where it is itself a worker."""
    if multiprocessing.parent_process() is not None:
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def without_passphrase() -> Iterator[None]:
    """Keep the passphrase out of the environment of processes started within."""
    given = os.environ.pop(WITHHELD, None)
    try:
        yield
    finally:
        if given is not None:
            os.environ[WITHHELD] = given


class WorkerProcess:
    """`Worker` in a process behind a pipe."""

    def __init__(self, make: Make) -> None:
        """Prepare the process; does not start it."""
        self._make = make
        self._pipe: Connection | None = None
        self._process: multiprocessing.process.BaseProcess | None = None
        self._has_spoken = False

    @property
    def pid(self) -> int | None:
        """Id of the process; None where there is none."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process: see `Worker.start`."""
        self.end()
        self._pipe, theirs = _SPAWN.Pipe()
        try:
            self._process = _SPAWN.Process(
                target=work, args=(theirs, self._make), name="securefl worker", daemon=True
            )
            with deaf_to_interrupts(), without_passphrase():
                self._process.start()
        finally:
            theirs.close()  # or its end would not be noticed

    def tell(self, message: Parts) -> None:
        """Tell it a message: see `Worker.tell`."""
        with suppress(Gone):
            if self._pipe is None:
                raise Gone
            send(self._pipe, message)

    def hear(self, begins: Begins) -> Parts:
        """Hear its next message: see `Worker.hear`."""
        if self._pipe is None:
            raise Gone
        heard = receive(self._pipe, begins)
        self._has_spoken = True
        return heard

    def death(self) -> Death:
        """Describe the end, see `Worker.death`; an exit code is negative after a signal."""
        code = None
        if self._process is not None:
            self._process.join(_PATIENCE_S)
            code = self._process.exitcode
        words = f"exit code {code}"
        if self._has_spoken or code is None or code < 0:
            return Death(words, _TOO_LARGE)
        return Death(words, _TOO_LARGE, _no_start(code))

    def end(self) -> None:
        """End the process: see `Worker.end`."""
        if self._pipe:
            self._pipe.close()
            self._pipe = None
        if self._process:
            if self._process.pid is not None:
                # Asked first, and killed where it has not ended by then.
                self._process.terminate()
                self._process.join(_PATIENCE_S)
                if self._process.exitcode is None:
                    self._process.kill()
                    self._process.join()
            self._process.close()
            self._process = None
        self._has_spoken = False


class ThisMachine:
    """Machine of the main process, as the `Machines` of workers in processes."""

    def __init__(self, wanted: Wanted) -> None:
        """Take the workers that the settings ask for."""
        self._wanted = wanted
        on_gpu = wanted.first_gpu is not None
        self.n_workers = wanted.at_most(torch.cuda.device_count() if on_gpu else n_cores())

    @property
    def n_threads(self) -> int:
        """Threads of this process, shared among the workers: see `Machines.n_threads`."""
        return self._wanted.n_threads or max(1, torch.get_num_threads() // self.n_workers)

    def gpu(self, number: int) -> int | None:
        """Return the worker's GPU, the model's own for the first: see `Machines.gpu`."""
        first = self._wanted.first_gpu
        return None if first is None else (first + number) % torch.cuda.device_count()

    def worker(self, make: Make) -> WorkerProcess:
        """Prepare a worker: see `Machines.worker`."""
        return WorkerProcess(make)

    def close(self) -> None:
        """Leave nothing, as there is nothing to leave: see `Machines.close`."""


def _no_start(exit_code: int) -> str:
    script = getattr(sys.modules["__main__"], "__file__", "")
    read = f"Each worker reads {script} anew: put" if script else "Put"
    return (
        f"a worker ended (exit code {exit_code}) before it began; what it said is above. {read} "
        'what the script does under `if __name__ == "__main__":`, or set run.engine = "sequential"'
    )
