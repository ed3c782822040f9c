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
from typing import Any

from securefl.errors import ConfigError, SecureFLError
from securefl.federation.query import Respondent
from securefl.federation.site import Reply, Site
from securefl.simulation.client_state import ClientStates, RamStore
from securefl.simulation.malloc import keep_freed_memory
from securefl.simulation.processes.ipc import Gone, receive, send
from securefl.simulation.processes.messages import Failed, SealingKeys, Setup, TorchSettings
from securefl.simulation.sequential import Sequential


def work(pipe: Connection, settings: TorchSettings) -> None:
    """Serve the main process until that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        end = WorkerEnd(settings)
        while True:
            with all_parts():
                value = receive(pipe)
            if (reply := end.take(value)) is not None:
                send(pipe, reply)
    except Gone:
        return
    except Exception as error:
        with suppress(Gone):
            send(pipe, Failed(portable(error)))


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

    def take(self, value: Any) -> Reply | None:
        """Return the reply to a request of a site, and None to any other value."""
        match value:
            case Setup() as setup:
                self._worker = _Worker(setup)
            case SealingKeys() as keys if self._worker:
                self._worker.take(keys)
            case request if self._worker:
                return self._worker.site.handle(request)
        return None


class _Worker:
    """Site of a worker's clients, which train one after the other."""

    def __init__(self, setup: Setup) -> None:
        clients = setup.clients
        if clients.device.type == "cuda":
            clients.model.to("cuda")  # this worker's
        self._roles = {member.name: member.client() for member in setup.members}
        client_states = ClientStates(clients.data)
        for name, client_state in setup.client_states.items():
            client_states[name] = client_state
        training, model = clients.training, clients.model
        self.site = Site(
            self._roles,
            Sequential(clients),
            Respondent(self._roles, clients.data, model, training.loss, setup.profiling),
            lambda state: clients.algorithm.plan(state, model),
            setup.precision,
            RamStore(client_states),
        )

    def take(self, keys: SealingKeys) -> None:
        """Take these keys to seal with from now on."""
        keys.give(self._roles.values())
