"""Trains clients that need sums in the middle of their round (FedTAN), each on a model of its own.

Their graphs are alive at the same time. They move in a fixed order, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from securefl.federation.ongoing import End, Ongoing
from securefl.simulation.client_thread import Ask, ClientThread, Done, Result
from securefl.simulation.clients import Clients, Place
from securefl.simulation.rng_isolation import LayerDraws
from securefl.types import Contribution, NamedTensors, Total


def client_threads(clients: Clients) -> ThreadPoolExecutor:
    """A thread for each client; they outlive a round, since each keeps torch's own workers."""
    return ThreadPoolExecutor(len(clients.data), thread_name_prefix="client")


def in_turns(threads: Mapping[str, ClientThread[Result]], ongoing: Ongoing) -> dict[str, Result]:
    """What the work of each client comes to, but of those who leave the round at a sum.

    Whatever happens, none of the threads is left behind.
    """
    answer: Total | None = None
    running, results = dict(threads), dict[str, Result]()
    try:
        while running:
            asks: dict[str, Ask] = {}
            for name in list(running):
                outcome = running[name].resume(answer)
                if isinstance(outcome, Done):
                    results[name] = outcome.result
                    del running[name]
                else:
                    asks[name] = outcome
            if asks:
                answer, left = ongoing.sum({n: (a.name, a.values) for n, a in asks.items()})
                for name in asks.keys() - set(left):
                    thread = running.pop(name)
                    thread.dismiss()
                    thread.wait()
    finally:
        for one in threads.values():
            one.dismiss()  # all before the first is waited for: Ctrl-C may come twice
        for one in threads.values():
            one.wait()
    return results


class InTurns:
    """One thread and one model for each client of a round."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._places: list[Place] = []
        self._pool = client_threads(clients)

    def train(self, ongoing: Ongoing) -> None:
        """See `Engine.train`."""
        while len(self._places) < len(ongoing.times):
            self._places.append(Place(self._clients.model))
        threads = {
            name: self._thread(name, ongoing, place)
            for name, place in zip(ongoing.times, self._places, strict=False)
        }
        for name, contribution in in_turns(threads, ongoing).items():
            ongoing.finish(name, contribution)

    def _thread(self, name: str, ongoing: Ongoing, place: Place) -> ClientThread[Contribution]:
        clients, state = self._clients, ongoing.state
        work = clients.work(name, state, place, ongoing.memories[name])
        weight = ongoing.weight(name)

        def client(ask: Callable[[str, NamedTensors], Total]) -> Contribution:
            with clients.casting():  # which is a thread's own
                return clients.algorithm.client(state, work, End(weight, ask))

        draws = LayerDraws(clients.device, work.rng)
        return ClientThread(self._pool, client, draws.drawing)

    def close(self) -> None:
        """See `Engine.close`."""
        self._pool.shutdown()
