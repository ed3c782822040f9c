"""Interfaces of `Workers` to the machines that workers run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from securefl.federation.transport import Parts
from securefl.simulation.processes.ipc import Begins


class MessageHandler(Protocol):
    """A worker's end of its connection: from bytes to bytes."""

    def handle(self, message: Parts) -> Parts:
        """Return the reply to a message."""


Make = Callable[[], MessageHandler]
"""Function that makes a worker's end, in its process."""


@dataclass(frozen=True, slots=True)
class Death:
    """End of a worker that nobody asked for."""

    words: str
    """Description of the end, such as its exit code."""
    hint: str = ""
    """Usual cause, which follows the words."""
    no_start: str = ""
    """Explanation for the user where the worker could not begin; the run then ends."""


class Worker(Protocol):
    """The main process's handle of a worker, which can be started again."""

    def start(self) -> None:
        """Start a fresh worker, which knows no clients; ends the one before."""

    def tell(self, message: Parts) -> None:
        """Send a message; does nothing where the worker has ended, which `hear` reports."""

    def hear(self, begins: Begins) -> Parts:
        """Return the worker's reply to the oldest message that has none.

        `begins` is given its beginning, as soon as the carrier has that.

        Raises:
            Gone: the worker has ended.
        """

    def death(self) -> Death:
        """Describe how the worker has ended, once `hear` has raised Gone."""

    def end(self) -> None:
        """End the worker at once; harmless where it has ended."""


class Machines(Protocol):
    """The machines of a run's workers."""

    @property
    def n_workers(self) -> int:
        """Number of workers; raises ConfigError where the machines have no place for them."""

    @property
    def n_threads(self) -> int:
        """Torch's threads in each worker."""

    def gpu(self, number: int) -> int | None:
        """Return the index of the worker's GPU, as the worker sees it; None on a CPU."""

    def worker(self, make: Make) -> Worker:
        """Prepare a worker; does not start it."""

    def close(self) -> None:
        """Leave the machines, after the workers have ended; safe to call twice."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Workers that the settings ask for."""

    n_workers: int | None
    """One for each core, or for each GPU where the model is on one, if None."""
    n_threads: int | None
    """Torch's threads in each; the machines' share if None."""
    n_clients: int
    """Number of the run's clients; more workers than these are useless."""
    first_gpu: int | None = None
    """Index of the model's GPU; None on a CPU."""

    def at_most(self, usual: int) -> int:
        """Return the number of workers where the machines have so many places."""
        return min(self.n_workers or usual, self.n_clients)
