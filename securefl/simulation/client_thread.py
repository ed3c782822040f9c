"""Client threads that run one at a time and stop where they ask for a sum.

A client of FedTAN asks for a sum in the middle of its forward and of its backward pass, and cannot
go on before all others have asked too. So each runs in a thread of its own; but only one moves at
any moment, in the clients' order. No result depends on the machine's scheduling.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from securefl.types import NamedTensors, Total

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Ask:
    """A client waits for this sum."""

    name: str
    values: NamedTensors


@dataclass(frozen=True, slots=True)
class Done(Generic[Result]):
    """A client has finished."""

    result: Result


class LeftRound(BaseException):
    """Unwinds the thread of a client whose round is over.

    A BaseException, so that no client code that catches Exception keeps its thread alive.
    """


class ClientThread(Generic[Result]):
    """One client's work, which `resume` moves on to its next question."""

    def __init__(
        self,
        pool: Executor,
        work: Callable[[Callable[[str, NamedTensors], Total]], Result],
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`work` gets the function that asks for a sum; `pool` has a thread free for it.

        `around` makes a context for each of its moves.
        """
        self._pool = pool
        self._work = work
        self._around = around
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._left = False
        self._answer: Total | None = None
        self._outcome: Ask | Done[Result] | BaseException | None = None
        self._finished: Future[None] | None = None

    def resume(self, answer: Total | None = None) -> Ask | Done[Result]:
        """Run until the client asks or is done; raises what the client's work raised."""
        if self._finished is None:
            # Not earlier: a thread that Ctrl-C leaves to nobody would wait forever.
            self._finished = self._pool.submit(self._run)
        self._answer = answer
        with self._around():
            self._go.release()
            self._stopped.acquire()
        # Taken out, so that no exception keeps its frames, and with them a model's graph, alive.
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, BaseException):
            raise outcome
        return cast("Ask | Done[Result]", outcome)

    def dismiss(self) -> None:
        """Have the client's work end where it stands. Harmless after it is done."""
        self._left = True
        self._go.release()

    def wait(self) -> None:
        """Until a dismissed client's work has ended."""
        if self._finished:
            self._finished.result()

    def _run(self) -> None:
        self._go.acquire()
        if self._left:
            return
        try:
            self._outcome = Done(self._work(self._ask))
        except LeftRound:
            return
        except BaseException as error:
            self._outcome = error
        self._stopped.release()

    def _ask(self, name: str, values: NamedTensors) -> Total:
        if self._left:  # asked while it cleans up
            raise LeftRound
        self._outcome = Ask(name, values)
        self._stopped.release()
        self._go.acquire()
        if self._left or self._answer is None:
            raise LeftRound
        return self._answer
