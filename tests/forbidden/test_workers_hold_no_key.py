"""What a worker of the parallel engine is given: never what opens a total."""

from __future__ import annotations

import pytest
from process_memory import stretches_of

import securefl
from securefl.exchange.keyset import KeySet
from securefl.federation.identities import Identities
from securefl.simulation.processes import worker_process
from securefl.simulation.processes.ipc import packed


class Overheard(Exception):
    """Ends a run at its first order."""


class Listener(worker_process.WorkerProcess):
    """Starts nothing, and keeps what it is told."""

    told: list[list[bytes]] = []  # noqa: RUF012

    def start(self):
        pass

    def tell(self, value):
        self.told.append([bytes(part) for part in packed(value)])

    def hear(self):
        raise Overheard


def test_a_worker_gets_its_own_clients_identities_and_a_public_key(
    monkeypatch, tiny_config, tiny_task
):
    """Of the secret key and of other workers' clients nothing is in what it is told."""
    monkeypatch.setattr(worker_process, "WorkerProcess", Listener)
    monkeypatch.setattr(Listener, "told", [])
    keys = KeySet.ephemeral()
    names = [f"client-{i}" for i in range(1, 6)]
    identities = Identities.ephemeral(names)
    config = tiny_config(run={"engine": "parallel", "workers": 2})
    with pytest.raises(Overheard):
        securefl.run(config, tiny_task(), keys=keys, identities=identities)
    assert len(Listener.told) == 2 * 3  # clients, keys, and the round
    for number in range(2):
        text = b"".join(part for told in Listener.told[3 * number :][:3] for part in told)
        theirs = set(names[number::2])
        held = {n for n in names if identities.keys[n].private_bytes_raw() in text}
        assert held == theirs
        assert keys.public.to_json().encode() in text  # what a client's folder holds
    all_told = b"".join(part for parts in Listener.told for part in parts)
    assert not any(stretch in all_told for stretch in stretches_of(keys.secret._context))
