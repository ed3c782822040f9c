"""Worker process with some of a run's clients, the same ones in every round.

It seals and signs their contributions with their own identities, makes their cards for
the card keys, and holds no secret card key.
"""

import os
import pickle
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection

from securefl.errors import ConfigError, SecureFLError
from securefl.federation.query import Respondent
from securefl.federation.site import Site
from securefl.federation.transport import Parts
from securefl.simulation.client_state import ClientStates, RamStore
from securefl.simulation.malloc import keep_freed_memory
from securefl.simulation.processes.ipc import Gone, packed, receive, send, unpacked
from securefl.simulation.processes.machines import Make, MessageHandler
from securefl.simulation.processes.messages import (
    Failed,
    Setup,
    Told,
    TorchSettings,
)
from securefl.simulation.sequential import Sequential


def work(pipe: Connection, make: Make) -> None:
    """Serve the main process, by the end that `make` returns, until one of the two ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(Gone):
        try:
            end = make()
            while True:
                send(pipe, replied(end, receive(pipe)))
        except Exception as error:  # such as a message for which there is no memory
            send(pipe, failure(error))


def replied(end: MessageHandler, message: Parts) -> Parts:
    """Return a worker's reply to a message, or its failure."""
    try:
        return end.handle(message)
    except Exception as error:
        return failure(error)


def failure(error: Exception) -> Parts:
    """Return the message of a failure."""
    return packed(Failed(portable(error)))


def _end_with_parent() -> None:
    """End this process with the main one, also in the middle of a round."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        # At once: the main thread may be in the middle of a round, or of a read from the pipe.
        os._exit(1)


@contextmanager
def all_parts() -> Iterator[None]:
    """Explain why a value cannot be unpickled here; raises ConfigError."""
    try:
        yield
    except (AttributeError, ImportError) as error:
        raise ConfigError(
            f"a worker cannot find a part of the task ({error}): define it at the top level of a "
            'module, or set run.engine = "sequential"'
        ) from error


def portable(error: Exception) -> Exception:
    """Return the same error, or one of the same text where it cannot be pickled."""
    where = "".join(traceback.format_exception(error))
    try:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301  (this process's own)
        known = isinstance(copy, type(error)) and not type(error).__module__.startswith("__")
    except Exception:
        known = False
    carried = error if known else SecureFLError(f"{type(error).__name__}: {error}")
    carried.add_note(f"In a worker:\n{where}")
    return carried


class WorkerEnd:
    """Worker's end of its connection to the main process, whatever that is."""

    def __init__(self, settings: TorchSettings) -> None:
        """Take over torch's settings in this process."""
        keep_freed_memory()
        settings.take_over()
        self._worker: _Worker | None = None

    def handle(self, message: Parts) -> Parts:
        """Return the reply to a request, after taking up the news that come with it."""
        with all_parts():
            told: Told = unpacked(message)
        if told.setup:
            self._worker = _Worker(told.setup)
        if self._worker is None:
            raise RuntimeError("a request to a worker without clients")
        return packed(self._worker.site.handle(told.request))


class _Worker:
    """Site of a worker's clients, which train one after the other."""

    def __init__(self, setup: Setup) -> None:
        clients = setup.clients
        if clients.device.type == "cuda":
            clients.model.to("cuda")  # this worker's
        roles = {member.name: member.client() for member in setup.members}
        setup.keys.give(roles.values())
        client_states = ClientStates(clients.data)
        for name, client_state in setup.client_states.items():
            client_states[name] = client_state
        training, model = clients.training, clients.model
        self.site = Site(
            roles,
            Sequential(clients),
            Respondent(roles, clients.data, model, training.loss, setup.profiling),
            lambda state: clients.algorithm.plan(state, model),
            setup.precision,
            RamStore(client_states),
        )
