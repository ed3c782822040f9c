"""A worker process with some of a run's clients, the same ones in every round.

It seals and signs their contributions with their own identities and a public key, and holds no
secret key of the encryption.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from contextlib import suppress
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from typing import Any

from securefl.errors import ConfigError, SecureFLError
from securefl.exchange.base import Sealer
from securefl.federation.query import Respondent
from securefl.federation.site import Site
from securefl.simulation.client_state import ClientStates, RamStore
from securefl.simulation.malloc import keep_freed_memory
from securefl.simulation.processes.ipc import Gone, receive, send
from securefl.simulation.processes.messages import Failed, SealingKeys, Setup, TorchSettings
from securefl.simulation.sequential import Sequential
from securefl.types import Kind


def work(pipe: Connection, settings: TorchSettings) -> None:
    """Serve the main process until that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()
    worker: _Worker | None = None
    keep_freed_memory()
    try:
        settings.take_over()
        while True:
            match _heard(pipe):
                case Setup() as setup:
                    worker = _Worker(setup)
                case SealingKeys() as keys if worker:
                    worker.take(keys)
                case request if worker:
                    send(pipe, worker.site.handle(request))
    except Gone:
        return
    except Exception as error:
        with suppress(Gone):
            send(pipe, Failed(_portable(error)))


def _end_with_parent() -> None:
    """End this process with the main one, also in the middle of a round."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _heard(pipe: Connection) -> Any:
    try:
        return receive(pipe)
    except (AttributeError, ImportError) as error:
        raise ConfigError(
            f"a worker cannot find a part of the task ({error}): define it at the top level of a "
            'module, or set run.engine = "sequential"'
        ) from error


def _portable(error: Exception) -> Exception:
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


class _Worker:
    """The site of a worker's clients, which train one after the other."""

    def __init__(self, setup: Setup) -> None:
        clients = setup.clients
        if clients.device.type == "cuda":
            clients.model.to("cuda")  # this worker's
        self._sealers: dict[Kind, Sealer] = {}
        self._roles = {member.name: member.client(self._sealers) for member in setup.members}
        memories = ClientStates(clients.data)
        for name, memory in setup.memories.items():
            memories[name] = memory
        training, model = clients.training, clients.model
        self.site = Site(
            self._roles,
            Sequential(clients),
            Respondent(self._roles, clients.data, model, training.loss, setup.profiling),
            lambda state: clients.algorithm.plan(state, model),
            setup.precision,
            RamStore(memories),
        )

    def take(self, keys: SealingKeys) -> None:
        """Seal with these from now on."""
        self._sealers.update(keys.sealers())
        profile_sealer = keys.profile_sealer()
        for client in self._roles.values():
            client.profile_sealer = profile_sealer
