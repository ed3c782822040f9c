"""Transport of workers, each of which is a site in a process of its own."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from securefl.errors import PeerError
from securefl.federation.transport import Lost, Meaning, Parts, SiteCall
from securefl.simulation.processes.ipc import Gone
from securefl.simulation.processes.machines import Death, Machines, Make, Worker


class WorkerTransport:
    """`Transport` to workers that live from their first call to `end`, on whatever machines."""

    def __init__(self, machines: Machines, make: Callable[[str], Make]) -> None:
        """Start none; `make` returns what makes a worker's end."""
        self._machines = machines
        self._make = make
        self._workers: dict[str, Worker] = {}
        self._connections: dict[str, object] = {}
        """Identity of each worker that was started, and not ended since."""

    def call(
        self,
        calls: Mapping[str, SiteCall[Meaning]],
        heard: Callable[[str, Meaning | Lost], None],
        awaited: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        """Call the workers, see `Transport.call`; they are heard in order."""
        del awaited  # each has room for its own
        try:
            for site in calls:  # all are started before the first is waited for
                self._start(site)
            for site, call in calls.items():
                self._workers[site].tell(call.request(self._connections[site]))
            for site, call in calls.items():
                heard(site, self._outcome(site, call, partial(heard, site)))
        except BaseException:
            self.end()  # or the next call would hear what this one has not
            raise

    def death(self, site: str) -> Death:
        """Describe how a worker has ended that is lost."""
        return self._workers[site].death()

    def end(self) -> None:
        """End all workers; the next call starts others in their place."""
        self._connections.clear()
        for worker in self._workers.values():
            worker.end()

    def close(self) -> None:
        """End all workers for good, and leave the machines; safe to call twice."""
        self.end()
        self._workers.clear()
        self._machines.close()

    def _start(self, site: str) -> None:
        if site not in self._workers:
            self._workers[site] = self._machines.worker(self._make(site))
        if site not in self._connections:
            self._workers[site].start()
            self._connections[site] = object()

    def _outcome(
        self, site: str, call: SiteCall[Meaning], said: Callable[[Meaning], None]
    ) -> Meaning | Lost:
        try:
            return _read(self._workers[site], call, said)
        except Gone:
            why = f"{site}: has ended"
        except PeerError as error:
            why = str(error)
        self._connections.pop(site)
        return Lost(why)


def _read(
    worker: Worker, call: SiteCall[Meaning], said: Callable[[Meaning], None]
) -> Meaning | Lost:
    def begins(beginning: Parts, n_bytes: int) -> None:
        if (at_once := call.begins(beginning, n_bytes)) is not None:
            said(at_once)

    if call.unanswered is not None:
        worker.hear(lambda *_: None)  # a worker answers whatever it is told
        return call.unanswered
    while (outcome := call.read(worker.hear(begins))) is None:
        pass
    return outcome
