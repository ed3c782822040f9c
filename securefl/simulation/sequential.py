"""Trainer of a round's clients one after the other, on the model's device.

The best engine for convolutions on a CPU, where a model of many clients at once is slower.
"""

from securefl.algorithms.rng_isolation import LayerDraws
from securefl.federation.clients_round import ClientExchange, ClientsRound, no_sum
from securefl.simulation.clients import Clients
from securefl.simulation.lockstep import Lockstep
from securefl.simulation.workspace import Workspace


class Sequential:
    """Trainer with one model for all clients; `Lockstep` where a round has sums."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._workspace = Workspace(clients.model)
        self._replay = clients.replay(self._workspace, clients.training.loss)
        self._lockstep = Lockstep(clients)

    def train(self, ongoing: ClientsRound) -> None:
        """Train the round: see `Trainer.train`."""
        if ongoing.plan.sums:
            self._lockstep.train(ongoing)
            return
        clients = self._clients
        for name in ongoing.times:
            held = self._workspace, ongoing.client_states[name], self._replay
            work = clients.work(name, ongoing.state, *held)
            exchange = ClientExchange(ongoing.weight(name), no_sum)
            with LayerDraws(clients.device, work.rng).drawing(), clients.casting():
                contribution = clients.algorithm.client(ongoing.state, work, exchange)
            ongoing.finish(name, contribution)

    def close(self) -> None:
        """Close: see `Trainer.close`."""
        self._lockstep.close()
