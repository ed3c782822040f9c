"""Engine of several worker processes at once, each with clients of its own.

Client i belongs to worker i mod n, so that workers have about equal work; contributions are added
in the clients' order. With as many torch threads, sums have the bits that they have in one process.
A worker that dies is replaced, and the round runs again from its start, since clients keep nothing
before its end.
"""

import logging
import multiprocessing
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from securefl.data.samples import TensorSamples
from securefl.errors import ConfigError, PeerError, WorkerLost
from securefl.federation.client import Client
from securefl.federation.contribution import Refused
from securefl.federation.query import Profiling, Query
from securefl.federation.remote import Sites
from securefl.federation.round import OpenSum, ServerRound
from securefl.federation.site import Ask, Reply, Request
from securefl.federation.transport import Lost, Meaning, Parts, SiteCall
from securefl.simulation.client_state import ClientStates
from securefl.simulation.clients import Clients
from securefl.simulation.processes.ipc import packed, unpacked
from securefl.simulation.processes.machines import Machines, Make
from securefl.simulation.processes.messages import (
    Failed,
    Member,
    SealingKeys,
    Setup,
    Told,
    TorchSettings,
)
from securefl.simulation.processes.transport import WorkerTransport
from securefl.simulation.processes.worker import WorkerEnd
from securefl.types import ClientState, Floats, State

MOST_DEATHS = 3
"""Deaths of workers in one round that end the run."""
_LOG = logging.getLogger(__name__)


class Workers:
    """`Engine`, and `Transport`, of workers that live from the first round to `close`."""

    in_memory = True

    def __init__(
        self,
        trained: Clients,
        clients: Mapping[str, Client],
        profiling: Profiling | None,
        precision: Floats,
        machines: Machines,
    ) -> None:
        """Assign clients to workers; starts none.

        Args:
            trained: algorithm, model and data of the clients.
            clients: their sending side, which seals and signs.
            profiling: settings of profiles of their data.
            precision: of totals on their way to clients.
            machines: where the workers run, and how many there are.

        Raises:
            ConfigError: the machines have no place for the workers.
        """
        self._trained = trained
        self._clients = clients
        self._profiling = profiling
        self._precision = precision
        self._client_states = ClientStates(trained.data)
        self._staged: Mapping[str, ClientState] = {}
        self._deaths = (0, 0)
        """Round, and number of workers that have died in it."""
        self._machines = machines
        self.n_workers = machines.n_workers
        self._told: dict[str, object] = {}
        """Connection of each worker that has its clients."""
        self._home = {name: str(i % self.n_workers) for i, name in enumerate(trained.data)}
        self._transport = WorkerTransport(machines, partial(_make, machines))
        weakref.finalize(self, self._transport.close)

    @property
    def _sites(self) -> Sites:  # made anew, or it would keep the engine
        return Sites(self, self._calls, self._home)

    @property
    def n_threads(self) -> int:
        """Torch's threads in each worker."""
        return self._machines.n_threads

    @property
    def client_states(self) -> Mapping[str, ClientState]:
        """States of clients: copies of the workers' own, see `Engine.client_states`."""
        return self._client_states

    def present(self, round_number: int, names: Sequence[str]) -> Sequence[str]:
        """Return all of them: see `Engine.present`."""
        del round_number
        return names

    def train(self, ongoing: ServerRound, open_sum: OpenSum) -> None:
        """Train the round, see `Engine.train`; raises WorkerLost where it is to run again."""
        number = ongoing.context.number
        if self._deaths[0] != number:
            self._deaths = number, 0
        self._staged = self._sites.train(ongoing, open_sum)

    def counted(self, ongoing: ServerRound) -> None:
        """Keep the new states: see `Engine.counted`."""
        for name in ongoing.counted:
            if name in self._staged:
                self._client_states[name] = self._staged[name]
        self._staged = {}
        with suppress(WorkerLost):  # the one in its place is given the copies
            self._sites.counted(ongoing)

    def answers(
        self, run: str, query: Query, state: State, names: Collection[str]
    ) -> Mapping[str, bytes | Refused]:
        """Answer a query: see `Engine.answers`."""
        while True:
            try:
                return self._sites.answers(Ask(run, query, state, names))
            except WorkerLost:
                continue

    def restore(self, client_states: Mapping[str, ClientState]) -> None:
        """Restore states: see `Engine.restore`."""
        for name, client_state in client_states.items():
            self._client_states[name] = client_state
        self._told.clear()

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Leave out nobody, as no client waits here: see `Engine.leave_out`."""

    def close(self) -> None:
        """Close: see `Engine.close`."""
        self._transport.close()

    def call(
        self,
        calls: Mapping[str, SiteCall[Meaning]],
        heard: Callable[[str, Meaning | Lost], None],
        awaited: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        """Call the workers, see `Transport.call`; raises WorkerLost, and any error of a worker."""

        def unless_lost(site: str, outcome: Meaning | Lost) -> None:
            if isinstance(outcome, Lost):
                raise self._lost(site)
            if isinstance(outcome, Failed):
                raise outcome.error
            heard(site, outcome)

        try:
            self._transport.call(calls, unless_lost, awaited)
        except WorkerLost:
            raise
        except BaseException:
            self.close()  # the workers are in the middle of a round that nobody wants
            raise

    def _calls(
        self, requests: Mapping[str, Request], _ongoing: ServerRound | None
    ) -> dict[str, SiteCall[Any]]:
        return {
            site: _Call(partial(self._request, site, request)) for site, request in requests.items()
        }

    def _request(self, site: str, request: Request, connection: object) -> Parts:
        """Put a request into bytes, with what its worker has to know first."""
        new = self._told.get(site) is not connection
        self._told[site] = connection
        return packed(Told(request, self._setup(site) if new else None))

    def _setup(self, site: str) -> Setup:
        run, names = self._trained, [n for n, home in self._home.items() if home == site]
        clients = Clients(
            run.algorithm,
            run.model,
            {name: run.data[name] for name in names},
            run.training,
            {name: run.index[name] for name in names},
        )
        members = tuple(Member.of(self._clients[name]) for name in names)
        client_states = {name: self._client_states[name] for name in names}
        keys = SealingKeys.of(next(iter(self._clients.values())))
        return Setup(clients, members, keys, client_states, self._profiling, self._precision)

    def _lost(self, site: str) -> WorkerLost:
        """Return the error by which all workers end: the round begins again.

        Raises:
            ConfigError: it has died before it began.
            PeerError: several have died in this round.
        """
        death = self._transport.death(site)
        if death.no_start:
            raise ConfigError(death.no_start)
        number, n_deaths = self._deaths
        self._deaths = number, n_deaths + 1
        if n_deaths + 1 >= MOST_DEATHS:
            raise PeerError(
                f"round {number}: workers have died {MOST_DEATHS} times ({death.words}"
                f"{death.hint}): have fewer of them (run.workers), or set "
                'run.engine = "sequential"; a run folder can be resumed from its last round'
            )
        words = f"round {number}: a worker has died ({death.words}); the round runs again"
        _LOG.warning("%s, with the same seeds", words)
        return WorkerLost(words)


@dataclass(slots=True)
class _Call:
    """`SiteCall` of a worker; its bytes are pickles of this run's own."""

    request: Callable[[object], Parts]
    unanswered: None = None

    def begins(self, beginning: Parts, n_bytes: int) -> None:
        """Expect any message, as long as it is: see `SiteCall.begins`."""

    def read(self, message: Parts) -> Reply | Failed:
        """Read the reply: see `SiteCall.read`."""
        heard: Reply | Failed = unpacked(message)
        return heard


def _make(machines: Machines, site: str) -> Make:
    """Return what makes a worker's end in its process, with torch's settings of this one."""
    settings = TorchSettings(
        machines.n_threads,
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        machines.gpu(int(site)),
    )
    return partial(WorkerEnd, settings)


def reason_against_workers(clients: Clients) -> str:
    """Return why this run cannot be given to other processes; empty where it can."""
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        return (
            "each worker reads the script anew, and would start a run of its own: put what the "
            'script does under `if __name__ == "__main__":`'
        )
    if process.daemon:
        return "this process is a worker itself, which may have none"
    others = [of for of in clients.data.values() if not isinstance(of, TensorSamples)]
    parts = {
        "the algorithm": clients.algorithm,
        "the model": clients.model,
        "the loss": clients.training.loss,
        "a client's data set": others,
        "the settings of local training": clients.training,
    }
    for what, value in parts.items():
        try:
            packed(value)
        except Exception as error:  # objects say in ways of their own that they are not pickled
            return (
                f"{what} cannot be given to another process ({error}): keep out of it what no "
                "other one can have, such as an open file or a lock"
            )
    return ""
