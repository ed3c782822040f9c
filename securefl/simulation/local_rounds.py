"""The clients' side of a run's rounds: they are sent the state, train, and are added up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from securefl.errors import ConfigError
from securefl.federation.broadcast import Broadcast
from securefl.federation.delivery import Delivery
from securefl.federation.engine import Engine
from securefl.federation.round import OpenRound
from securefl.federation.training import round_generator
from securefl.privacy.randomness import seeded_layers
from securefl.simulation.client_state import Memories
from securefl.simulation.clients import Clients
from securefl.types import Plan, State


class LocalRounds:
    """One after the other. The same seed and engine give the same bits."""

    def __init__(self, clients: Clients, engine: Engine, delivery: Delivery) -> None:
        """`clients` and `delivery.clients` have the same names.

        Raises:
            DataError: the algorithm cannot run on this model.
        """
        self._clients = clients
        self._engine = engine
        self._delivery = delivery
        self.plan(clients.algorithm.init(clients.model))  # raises where it cannot
        self.memories = Memories(clients.data)
        """What each client keeps between rounds."""
        self.broadcast = Broadcast(delivery)
        """What each client has been sent of the global state."""

    def plan(self, state: State) -> Plan:
        """What clients will send in the round after `state`."""
        return self._clients.algorithm.plan(state, self._clients.model)

    def round(self, state: State, times: Mapping[str, int] | None = None) -> State:
        """One round of the clients in `times`, each counting so often; of all once where None.

        Raises:
            Diverged: no client's values can be used.
            OpeningRefused: the authority does not open a total.
        """
        plan, times = self.plan(state), times or dict.fromkeys(self._clients.data, 1)
        self._delivery.be_ready_for(plan)
        self.broadcast.send(state, times)
        ongoing = OpenRound(self._delivery, state, plan, times, self.memories)
        self._engine.train(ongoing)
        seed = round_generator(self._clients.training.seed, state.round, 0).initial_seed()
        totals = ongoing.totals()
        with seeded_layers(self._clients.device, seed):  # one's own algorithm may draw here
            next_state = self._clients.algorithm.update(state, totals)
        if not isinstance(next_state, State):
            raise ConfigError(
                f"the algorithm's update() gave a {type(next_state).__name__}: it must return a "
                "securefl.types.State"
            )
        self.broadcast.changed(plan.update, next_state)
        return next_state

    def passed(self, state: State) -> State:
        """After a round that nobody was present in: the model stays, and there is no news."""
        self.broadcast.changed((), state)
        return replace(state, round=state.round + 1)

    def close(self) -> None:
        """Let go of processes and threads; safe to call twice."""
        self._engine.close()
