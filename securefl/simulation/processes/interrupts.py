"""Ctrl-C in the processes that a run starts: it is for the main process to handle."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """What is started within never hears Ctrl-C: a pool whose processes it kills may hang."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)
