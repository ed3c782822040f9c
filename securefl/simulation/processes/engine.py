"""Trains clients in several processes at once, each of which has clients of its own.

Client i belongs to worker i mod n, so that all workers are about as far while contributions are
added in the clients' order: with `Sequential` in the workers and as many torch threads, the sums
have the bits that they have where one process trains; with `Vectorised` they are as far off as
rounding, since others are side by side. A worker runs ahead by so many contributions as fit into
its slots.
"""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import torch

from securefl.data.samples import TensorSamples
from securefl.errors import ConfigError
from securefl.exchange.base import Sealer
from securefl.exchange.ckks import CkksSealer
from securefl.exchange.plain import PlainChannel
from securefl.federation.round import OpenRound
from securefl.simulation.clients import Clients
from securefl.simulation.processes.ipc import Block, packed, packed_bytes
from securefl.simulation.processes.messages import Inner, Member, Order, Shard, TorchSettings
from securefl.simulation.processes.shared_round import Part, SharedRound
from securefl.simulation.processes.worker_process import WorkerProcess
from securefl.types import Kind, Memory, State

_VALUE_BYTES = 8


def n_cores() -> int:
    """Cores that this process may use; one where it is itself one of several."""
    if multiprocessing.parent_process() is not None:
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Parallel:
    """Workers live from the first round to `close`. One that dies is replaced."""

    def __init__(
        self, clients: Clients, inner: Callable[[Clients], Inner], n_workers: int | None = None
    ) -> None:
        """Nothing is started.

        Args:
            clients: of the run.
            inner: makes the engine in each worker, of the worker's own clients.
            n_workers: where None, one for each core, or for each GPU where the model is on one.
        """
        self._clients = clients
        self._inner = inner
        on_gpu = clients.device.type == "cuda"
        usual = torch.cuda.device_count() if on_gpu else n_cores()
        self.n_workers = min(n_workers or usual, len(clients.data))
        self._team = _Team()
        weakref.finalize(self, self._team.close)

    @property
    def n_threads(self) -> int:
        """Of torch, in each worker."""
        wanted = self._clients.training.threads
        return wanted or max(1, torch.get_num_threads() // self.n_workers)

    def train(self, ongoing: OpenRound) -> None:
        """See `Engine.train`."""
        team = self._team
        try:
            for number in range(len(team.workers), self.n_workers):
                n_clients = len(self._names(number))
                team.workers.append(WorkerProcess(self._settings(number), n_clients))
            order = _Orders(ongoing, team)
            parts = [self._part(number, ongoing) for number in range(self.n_workers)]
            busy = [part for part in parts if part.names]
            shared = SharedRound(ongoing, busy, order.tell, self._clients.device)
            shared.run()
            team.largest = max(team.largest, shared.largest)
        except BaseException:
            self.close()  # the workers are in the middle of a round that nobody wants
            raise

    def _settings(self, number: int) -> TorchSettings:
        device = self._clients.device
        on_gpu = device.type == "cuda"  # whose own is the first worker's
        return TorchSettings(
            self.n_threads,
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            ((device.index or 0) + number) % torch.cuda.device_count() if on_gpu else None,
        )

    def _names(self, number: int) -> list[str]:
        return list(self._clients.data)[number :: self.n_workers]

    def _part(self, number: int, ongoing: OpenRound) -> Part:
        names = self._names(number)
        here = set(names)
        return Part(
            self._team.workers[number],
            [name for name in ongoing.times if name in here],
            lambda: self._shard(names, ongoing),
        )

    def _shard(self, names: Sequence[str], ongoing: OpenRound) -> Shard:
        run, roles = self._clients, ongoing.outgoing.clients
        clients = Clients(
            run.algorithm,
            run.model,
            {name: run.data[name] for name in names},
            run.training,
            {name: run.index[name] for name in names},
        )
        members = tuple(
            Member(name, role.weight, role.equal_weight, role.identity_secret())
            for name, role in ((name, roles[name]) for name in names)
        )
        return Shard(clients, members, self._inner)

    def close(self) -> None:
        """See `Engine.close`."""
        self._team.close()


def reason_against_workers(clients: Clients) -> str:
    """Why nothing of this run can be given to another process; empty where it can."""
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
            return f"{what} cannot be given to another process ({error}): define it in a module"
    return ""


@dataclass(slots=True)
class _Team:
    """Workers, and what they share."""

    workers: list[WorkerProcess] = field(default_factory=list)
    block: Block | None = None
    """The state of the round."""
    largest: int = 0
    """Bytes of any contribution until now."""

    def close(self) -> None:
        """Nothing is left behind; safe to call twice."""
        while self.workers:
            self.workers.pop().close()
        if self.block:
            self.block.remove()
            self.block = None

    def shared(self, state: State) -> State | str:
        """The block that a state is in; itself where there is no shared memory."""
        parts = packed(state)
        needed = packed_bytes(parts)
        if self.block is None or self.block.n_bytes < needed:
            if self.block:
                self.block.remove()
            self.block = Block.made(needed)
        if self.block is None:
            return state
        self.block.write(0, parts)
        return self.block.name


class _Orders:
    """What the workers are told of one round."""

    def __init__(self, ongoing: OpenRound, team: _Team) -> None:
        outgoing, specs = ongoing.outgoing, ongoing.plan.update
        self._ongoing = ongoing
        self._state = team.shared(ongoing.state)
        expected = sum(_VALUE_BYTES * spec.n_values for spec in specs) + 2**14
        self._slot_bytes = max(team.largest, expected)
        sealers = next(iter(outgoing.clients.values())).sealers
        self._sealers = sealers
        self._key = ",".join(sorted({sealer.key_id for sealer in sealers.values()}))

    def tell(self, part: Part) -> None:
        """A worker trains clients of this round."""
        worker, ongoing, outgoing = part.worker, self._ongoing, self._ongoing.outgoing
        knows_key = worker.is_told and worker.key == self._key
        if not worker.is_told:
            worker.tell(part.shard())
        order = Order(
            self._state,
            ongoing.plan,
            outgoing.run,
            outgoing.sums,
            outgoing.update,
            {name: ongoing.times[name] for name in part.names},
            frozenset(name for name in part.names if _kept(ongoing.memories[name])),
            worker.slots(self._slot_bytes),
            None if knows_key else self._public_keys(),
        )
        worker.tell(order)
        worker.is_told, worker.key = True, self._key

    def _public_keys(self) -> dict[Kind, PlainChannel | str]:
        files: dict[str, PlainChannel | str] = {}
        for sealer in self._sealers.values():
            if sealer.key_id not in files:
                files[sealer.key_id] = _key(sealer)
        return {kind: files[sealer.key_id] for kind, sealer in self._sealers.items()}


def _kept(memory: Memory) -> bool:
    return any(getattr(memory, field.name) for field in fields(memory))


def _key(sealer: Sealer) -> PlainChannel | str:
    if isinstance(sealer, CkksSealer):
        return sealer.public_key.to_json()
    if isinstance(sealer, PlainChannel):
        return sealer
    raise ConfigError(
        f"workers: there is no way to give a {type(sealer).__name__} to another process; use "
        'run.engine = "sequential"'
    )
