"""Trains clients that need sums in the middle of their round (FedTAN), each on a model of its own.

Their graphs are alive at the same time. They move in a fixed order, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from securefl.algorithms.rng_isolation import LayerDraws
from securefl.federation.clients_round import ClientsRound, End
from securefl.federation.pausable import Finished, Pausable
from securefl.simulation.clients import Clients, Place
from securefl.types import Contribution, NamedTensors, Total

Sum = tuple[str, NamedTensors]
"""Name of a sum, and a client's values for it."""
ClientWork = Pausable[Sum, Total, Contribution]


class Lockstep:
    """One thread and one model for each client of a round."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._places: list[Place] = []
        # Threads outlive a round, since each keeps torch's own workers.
        self._pool = ThreadPoolExecutor(len(clients.data), thread_name_prefix="client")

    def train(self, ongoing: ClientsRound) -> None:
        """See `Trainer.train`. Whatever happens, no client's work is left behind."""
        while len(self._places) < len(ongoing.times):
            self._places.append(Place(self._clients.model))
        running = {
            name: self._work(name, ongoing, place)
            for name, place in zip(ongoing.times, self._places, strict=False)
        }
        started = list(running.values())
        try:
            contributions = self._trained(running, ongoing)
        finally:
            for work in started:
                work.dismiss()  # all before the first is waited for: Ctrl-C may come twice
            for work in started:
                work.wait()
        for name, contribution in contributions.items():
            ongoing.finish(name, contribution)

    def _trained(
        self, running: dict[str, ClientWork], ongoing: ClientsRound
    ) -> dict[str, Contribution]:
        """Return the contributions of all but those who leave the round at a sum."""
        answer: Total | None = None
        contributions: dict[str, Contribution] = {}
        while running:
            asks: dict[str, Sum] = {}
            for name in list(running):
                outcome = running[name].resume(answer)
                if isinstance(outcome, Finished):
                    contributions[name] = outcome.result
                    del running[name]
                else:
                    asks[name] = outcome.question
            if asks:
                answer, staying = ongoing.sum(asks)
                for name in asks.keys() - set(staying):
                    work = running.pop(name)
                    work.dismiss()
                    work.wait()
        return contributions

    def _work(self, name: str, ongoing: ClientsRound, place: Place) -> ClientWork:
        clients, state = self._clients, ongoing.state
        work = clients.work(name, state, place, ongoing.memories[name])
        weight = ongoing.weight(name)

        def client(ask: Callable[[Sum], Total]) -> Contribution:
            end = End(weight, lambda name, values: ask((name, values)))
            with clients.casting():  # which is a thread's own
                return clients.algorithm.client(state, work, end)

        draws = LayerDraws(clients.device, work.rng)
        return Pausable(self._pool, client, draws.drawing)

    def close(self) -> None:
        """Let go of the threads."""
        self._pool.shutdown()
