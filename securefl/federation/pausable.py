"""Function calls that pause where they ask for something, until they are given the answer.

A client of FedTAN asks for a sum in the middle of its forward and of its backward pass, and cannot
go on before all others have asked too. So its work runs in a thread of its own; but only one thread
moves at any moment. No result depends on the machine's scheduling.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

Question = TypeVar("Question")
Reply = TypeVar("Reply")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Waiting(Generic[Question]):
    """Outcome of work that waits for an answer."""

    question: Question


@dataclass(frozen=True, slots=True)
class Finished(Generic[Result]):
    """Outcome of work that has ended."""

    result: Result


class Dismissed(BaseException):
    """Exception that unwinds the thread of dismissed work.

    A BaseException, so that no client code that catches Exception keeps its thread alive.
    """


class Pausable(Generic[Question, Reply, Result]):
    """Work in a thread of its own, which `resume` moves on to its next question."""

    def __init__(
        self,
        pool: Executor,
        work: Callable[[Callable[[Question], Reply]], Result],
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Prepare work that has not begun.

        Args:
            pool: has a free thread for the work.
            work: gets the function that asks.
            around: makes a context for each move.
        """
        self._pool = pool
        self._work = work
        self._around = around
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._left = False
        self._reply: Reply | None = None
        self._outcome: Waiting[Question] | Finished[Result] | BaseException | None = None
        self._ended: Future[None] | None = None

    def resume(self, reply: Reply | None = None) -> Waiting[Question] | Finished[Result]:
        """Run until the work asks or has ended; raises any exception of the work."""
        if self._ended is None:
            # Not earlier: a thread that Ctrl-C leaves to nobody would wait forever.
            self._ended = self._pool.submit(copy_context().run, self._run)
        self._reply = reply
        with self._around():
            # Permission to move goes over and comes back: this thread sleeps while the work moves.
            self._go.release()
            self._stopped.acquire()
        # Taken out, so that no exception keeps its frames, and with them a model's graph, alive.
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, BaseException):
            raise outcome
        return cast("Waiting[Question] | Finished[Result]", outcome)

    def dismiss(self) -> None:
        """Have the work end where it stands; harmless after it has ended."""
        self._left = True
        self._go.release()

    def wait(self) -> None:
        """Wait until dismissed work has ended."""
        if self._ended:
            self._ended.result()

    def _run(self) -> None:
        self._go.acquire()
        if self._left:
            return
        try:
            self._outcome = Finished(self._work(self._ask))
        except Dismissed:
            return  # nobody is in `resume` for it
        except BaseException as error:
            self._outcome = error
        self._stopped.release()

    def _ask(self, question: Question) -> Reply:
        if self._left:  # asked while it cleans up
            raise Dismissed
        self._outcome = Waiting(question)
        self._stopped.release()
        self._go.acquire()
        if self._left or self._reply is None:
            raise Dismissed
        return self._reply
