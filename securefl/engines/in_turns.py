"""Trains clients that need sums in the middle of their round (FedTAN), each on a model of its own.

Their graphs are alive at the same time. They move in a fixed order, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from securefl.engines.clients import Clients, Place
from securefl.engines.layer_draws import LayerDraws
from securefl.engines.ongoing import End, Ongoing
from securefl.engines.turns import Ask, ClientThread, Done
from securefl.types import Contribution, NamedTensors, Total


@dataclass(frozen=True, slots=True)
class _Turns:
    """One client's."""

    thread: ClientThread[Contribution]
    draws: LayerDraws

    def move(self, answer: Total | None) -> Ask | Done[Contribution]:
        with self.draws.drawing():
            return self.thread.resume(answer)


class InTurns:
    """One thread and one model for each client of a round."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._places: list[Place] = []
        # The threads outlive a round, since each keeps torch's own worker threads.
        self._pool = ThreadPoolExecutor(len(clients.data), thread_name_prefix="client")

    def train(self, ongoing: Ongoing) -> None:
        """See `Engine.train`."""
        answer: Total | None = None
        contributions: dict[str, Contribution] = {}
        with self._started(ongoing) as training:
            while training:
                asks: dict[str, Ask] = {}
                for name in list(training):
                    outcome = training[name].move(answer)
                    if isinstance(outcome, Done):
                        contributions[name] = outcome.result
                        del training[name]
                    else:
                        asks[name] = outcome
                if asks:
                    answer, left = ongoing.sum({n: (a.name, a.values) for n, a in asks.items()})
                    for name in asks.keys() - set(left):
                        thread = training.pop(name).thread
                        thread.dismiss()
                        thread.wait()
        for name, contribution in contributions.items():
            ongoing.finish(name, contribution)

    @contextmanager
    def _started(self, ongoing: Ongoing) -> Iterator[dict[str, _Turns]]:
        """A thread for each client; whatever happens, none is left behind."""
        while len(self._places) < len(ongoing.times):
            self._places.append(Place(self._clients.model))
        turns = {
            name: self._turns(name, ongoing, place)
            for name, place in zip(ongoing.times, self._places, strict=False)
        }
        running = dict(turns)
        try:
            yield running
        finally:
            for one in turns.values():
                one.thread.dismiss()  # all before the first is waited for: Ctrl-C may come twice
            for one in turns.values():
                one.thread.wait()

    def _turns(self, name: str, ongoing: Ongoing, place: Place) -> _Turns:
        clients, state = self._clients, ongoing.state
        work = clients.work(name, state, place, ongoing.memories[name])
        weight = ongoing.weight(name)

        def client(ask: Callable[[str, NamedTensors], Total]) -> Contribution:
            with clients.casting():  # which is a thread's own
                return clients.algorithm.client(state, work, End(weight, ask))

        thread = ClientThread[Contribution](self._pool, client)
        return _Turns(thread, LayerDraws(clients.device, work.rng))

    def close(self) -> None:
        """See `Engine.close`."""
        self._pool.shutdown()
