"""Workers in actors of a Ray cluster: the one that RAY_ADDRESS names, or one for this run."""

import logging
import os
import re
import sys
from collections import deque
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from securefl.errors import ConfigError
from securefl.federation.transport import Parts
from securefl.simulation.processes.ipc import Begins, Gone, framed, packed, unframed
from securefl.simulation.processes.machines import Death, Make, Wanted
from securefl.simulation.processes.worker_process import n_cores, without_passphrase
from securefl.simulation.ray.actor import WorkerActor

ADDRESS = "RAY_ADDRESS"
"""Variable of Ray's with the cluster to use."""
_PATIENCE_S = 30.0
"""Seconds that an actor may take to begin before the user is told."""
_LOG = logging.getLogger(__name__)
_COLOURS = re.compile(r"\x1b\[\d+m")
_DEAD_BECAUSE = re.compile(r"^The actor (is dead|died) because (of )?")


class RayWorker:
    """`Worker` in an actor."""

    def __init__(self, make: Make, cluster: "Cluster") -> None:
        """Prepare the actor; does not start it."""
        self._make = make
        self._cluster = cluster
        self._actor: Any = None
        self._ready: Any = None
        """Future of the actor's begin; None once it has begun."""
        self._replies: deque[Any] = deque()
        """Futures of the replies that were not heard, in order."""
        self._error: RayError | None = None

    def start(self) -> None:
        """Start the actor: see `Worker.start`."""
        self.end()
        self._actor = self._cluster.actor(self._make)
        self._ready = self._actor.ready.remote()

    def tell(self, message: Parts) -> None:
        """Tell it a message: see `Worker.tell`."""
        if self._actor is not None:
            self._replies.append(self._actor.handle.remote(framed(message)))

    def hear(self, begins: Begins) -> Parts:
        """Hear its next message, which Ray brings whole: see `Worker.hear`.

        Raises:
            ConfigError: the cluster has no room for it.
        """
        if self._actor is None:
            raise Gone
        try:
            self._wait_for_place()
            message = unframed(ray.get(self._replies.popleft()))
        except RayError as error:
            self._error = error
            raise Gone from error
        begins(message[:1], sum(map(len, message)))
        return message

    def _wait_for_place(self) -> None:
        if self._ready is None:
            return
        told = False
        while not ray.wait([self._ready], timeout=_PATIENCE_S)[0]:
            self._cluster.require_places()  # a machine may have left
            if not told:
                _LOG.warning("a worker waits for its place in the cluster, which others may have")
            told = True
        ray.get(self._ready)
        self._ready = None

    def death(self) -> Death:
        """Describe the end: see `Worker.death`."""
        lines = _COLOURS.sub("", str(self._error or "")).strip().splitlines() or ["unknown"]
        said = _DEAD_BECAUSE.sub("", lines[-1].strip())
        words = said.partition(". ")[0].rstrip(".")
        if self._ready is not None and _failed_itself(self._error):
            return Death(words, no_start=_no_start(said))
        return Death(words, "; the logs of Ray say more: most often memory has run out")

    def end(self) -> None:
        """End the actor: see `Worker.end`."""
        actor, self._actor, self._ready, self._error = self._actor, None, None, None
        self._replies.clear()
        if actor is not None and ray.is_initialized():
            ray.kill(actor)


def _failed_itself(error: RayError | None) -> bool:
    if isinstance(error, ActorDiedError):
        return bool(error.actor_init_failed)
    return isinstance(error, RayTaskError)


def _no_start(said: str) -> str:
    return (
        f"a worker could not begin in the Ray cluster: {said}; each of its machines needs the same "
        "securefl, Python and torch as this one, and the modules of the task"
    )


class Cluster:
    """`Machines` of workers in actors, with a CPU for each thread and a GPU where one is used.

    A local cluster ends with the run, as does the connection to another; one that the caller has
    connected to before is left as it is.
    """

    def __init__(self, wanted: Wanted) -> None:
        """Connect, or start a local cluster.

        Raises:
            ConfigError: RAY_ADDRESS names no cluster, or the cluster has too few places.
        """
        self._wanted = wanted
        self.n_threads = wanted.n_threads or 1
        self._connected = False
        self._connect()
        try:
            self.n_workers = max(1, wanted.at_most(self._n_places()))
            self.require_places()
        except BaseException:
            self.close()
            raise

    @property
    def _n_gpus(self) -> int:
        """Number of GPUs for each worker."""
        return int(self._wanted.first_gpu is not None)

    def gpu(self, number: int) -> int | None:
        """Return the only GPU that Ray shows to the actor: see `Machines.gpu`."""
        del number
        return 0 if self._n_gpus else None

    def worker(self, make: Make) -> RayWorker:
        """Prepare a worker: see `Machines.worker`."""
        return RayWorker(make, self)

    def actor(self, make: Make) -> Any:
        """Start an actor, on the machine with the most room; never again where it dies."""
        self._connect()
        remote = ray.remote(WorkerActor).options(
            num_cpus=self.n_threads,
            num_gpus=self._n_gpus,
            max_restarts=0,
            scheduling_strategy="SPREAD",
        )
        return remote.remote(framed(packed(make)), sys.path)

    def require_places(self) -> None:
        """Raise ConfigError where the cluster has too few places, also while it is idle."""
        if (n_places := self._n_places()) >= self.n_workers:
            return
        each = f"{self.n_threads} CPU{'s' if self.n_threads > 1 else ''}"
        each += " and a GPU" if self._n_gpus else ""
        raise ConfigError(
            f"the Ray cluster has places for {n_places} workers of {each} each, and "
            f"{self.n_workers} are asked for: set run.workers or run.threads lower, or add machines"
        )

    def close(self) -> None:
        """Leave the cluster: see `Machines.close`."""
        if self._connected:
            self._connected = False
            ray.shutdown()

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        named = os.environ.get(ADDRESS)
        local: dict[str, Any] = {} if named else self._local()
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            with without_passphrase():
                ray.init(
                    address=named or "local",
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    **local,
                )
        except (ConnectionError, ValueError) as error:
            raise ConfigError(f"{ADDRESS} = {named}: no cluster answers there ({error})") from error
        self._connected = True

    def _local(self) -> dict[str, Any]:
        """Return the settings of a local cluster, with room for the workers that are asked for."""
        asked_for = self._wanted.at_most(1) * self.n_threads
        return {"include_dashboard": False, "num_cpus": max(n_cores(), asked_for)}

    def _n_places(self) -> int:
        n_places = 0
        for node in ray.nodes():
            room = node["Resources"] if node["Alive"] else {}
            places = int(room.get("CPU", 0)) // self.n_threads
            n_places += min(places, int(room.get("GPU", 0))) if self._n_gpus else places
        return n_places
