"""Lockstep of clients that need sums in mid-round (FedTAN), each on a model of its own.

Their graphs are alive at the same time. They move in a fixed order, one at a time.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from securefl.algorithms.rng_isolation import LayerDraws
from securefl.federation.clients_round import ClientExchange, ClientsRound
from securefl.federation.pausable import Finished, Pausable
from securefl.simulation.clients import Clients
from securefl.simulation.workspace import Workspace
from securefl.types import Contribution, NamedTensors, Total

Sum = tuple[str, NamedTensors]
"""Name of a sum, and a client's values for it."""
ClientWork = Pausable[Sum, Total, Contribution]


class Lockstep:
    """One thread and one model for each client of a round."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._workspaces: list[Workspace] = []
        # Threads outlive a round, since each keeps torch's own workers.
        self._pool = ThreadPoolExecutor(len(clients.data), thread_name_prefix="client")

    def train(self, ongoing: ClientsRound) -> None:
        """Train the round, see `Trainer.train`; leave no thread at work, even after an error."""
        while len(self._workspaces) < len(ongoing.times):
            self._workspaces.append(Workspace(self._clients.model))
        running = {
            name: self._work(name, ongoing, workspace)
            for name, workspace in zip(ongoing.times, self._workspaces, strict=False)
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

    def _work(self, name: str, ongoing: ClientsRound, workspace: Workspace) -> ClientWork:
        clients, state = self._clients, ongoing.state
        work = clients.work(name, state, workspace, ongoing.client_states[name])
        weight = ongoing.weight(name)

        def client(ask: Callable[[Sum], Total]) -> Contribution:
            exchange = ClientExchange(weight, lambda name, values: ask((name, values)))
            with clients.casting():  # which is a thread's own
                return clients.algorithm.client(state, work, exchange)

        draws = LayerDraws(clients.device, work.rng)
        return Pausable(self._pool, client, draws.drawing)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
