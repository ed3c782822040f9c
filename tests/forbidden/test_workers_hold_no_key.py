"""What a worker of the parallel engine is given: never what opens a total."""

from __future__ import annotations

import pytest
from process_memory import thirds_of

import securefl
from securefl.exchange.card_keys import Quorum
from securefl.exchange.officer import KeySet
from securefl.federation.cards import Cards
from securefl.federation.client import Identities
from securefl.simulation.processes import worker_process


class Overheard(Exception):
    """Ends a run at its first order."""


class Listener(worker_process.WorkerProcess):
    """Starts nothing, and keeps what it is told."""

    told: list[list[bytes]] = []  # noqa: RUF012

    def start(self):
        pass

    def tell(self, message):
        self.told.append([bytes(part) for part in message])

    def hear(self, begins):
        raise Overheard


@pytest.mark.parametrize("officers", [1, 3])
@pytest.mark.parametrize("first", ["cards", "the round"])
def test_a_worker_gets_its_own_clients_identities_and_public_keys(
    monkeypatch, tiny_config, tiny_task, first, officers
):
    """Of officers' secrets and of other workers' clients nothing is in what it is told.

    It is asked for cards first; where nobody asks, it is told the round.
    """
    if first == "the round":
        monkeypatch.setattr(Cards, "holders", lambda _self, _state, clients: list(clients))
    monkeypatch.setattr(worker_process, "WorkerProcess", Listener)
    monkeypatch.setattr(Listener, "told", [])
    keys = KeySet.ephemeral(Quorum(officers // 2 + 1, officers))
    names = [f"client-{i}" for i in range(1, 6)]
    identities = Identities.ephemeral(names)
    monkeypatch.setattr(KeySet, "ephemeral", lambda _quorum: keys)
    config = tiny_config(run={"engine": "parallel", "workers": 2}, exchange={"officers": officers})
    with pytest.raises(Overheard):
        securefl.run(config, tiny_task(), identities=identities)
    assert len(Listener.told) == 2  # clients and keys come with the question, or the round
    for number in range(2):
        text = b"".join(Listener.told[number])
        theirs = set(names[number::2])
        held = {n for n in names if identities.keys[n].private_bytes_raw() in text}
        assert held == theirs
        for key in keys.public.keys:
            assert key.to_json().encode() in text  # what a client's folder holds
    all_told = b"".join(part for parts in Listener.told for part in parts)
    for secret in keys.secrets:
        assert not any(third in all_told for third in thirds_of(secret.to_secret_bytes()))
