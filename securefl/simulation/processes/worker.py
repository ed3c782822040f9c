"""A worker: a process that trains some of a run's clients, the same ones in every round.

It seals and signs what they send, with their own identities and a public key; it holds nothing that
opens. What it needs to know it is told at the start of each round, so that another one can take its
place at any time.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from typing import Any

from securefl.crypto.public import PublicKey
from securefl.errors import ConfigError, SecureFLError
from securefl.exchange.base import Sealer
from securefl.exchange.ckks import CkksSealer
from securefl.exchange.layout import Rows
from securefl.exchange.plain import PlainChannel
from securefl.federation.outgoing import Outgoing, Sent
from securefl.simulation.malloc import keep_freed_memory
from securefl.simulation.processes.ipc import Block, Gone, packed, packed_bytes, receive, send
from securefl.simulation.processes.messages import (
    Answer,
    Asked,
    Content,
    Failed,
    Finished,
    Free,
    Layout,
    Order,
    Posted,
    Recall,
    Shard,
    Slots,
    TorchSettings,
    Trained,
)
from securefl.types import Contribution, Kind, Memory, NamedTensors, State, Total


def work(pipe: Connection, settings: TorchSettings) -> None:
    """The whole life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()
    worker: _Worker | None = None
    keep_freed_memory()
    try:
        settings.take_over()
        while True:
            match _heard(pipe):
                case Shard() as shard:
                    worker = _Worker(pipe, shard)
                case Order() as order if worker:
                    worker.train(order)
                case Free():
                    pass  # of the round before
    except Gone:
        return
    except Exception as error:
        with suppress(Gone):
            send(pipe, Failed(_portable(error)))


def _end_with_parent() -> None:
    """However the main process ends, in the middle of a round too."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _heard(pipe: Connection) -> Any:
    try:
        return receive(pipe)
    except (AttributeError, ImportError) as error:
        raise ConfigError(
            f"a worker cannot find a part of the task ({error}): define it at the top level of a "
            'module, or set run.engine = "sequential"'
        ) from error


def _portable(error: Exception) -> Exception:
    """The same error, or its words where it cannot be pickled."""
    where = "".join(traceback.format_exception(error))
    try:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301  (this process's own)
        known = isinstance(copy, type(error)) and not type(error).__module__.startswith("__")
    except Exception:
        known = False
    carried = error if known else SecureFLError(f"{type(error).__name__}: {error}")
    carried.add_note(f"In a worker:\n{where}")
    return carried


class _Worker:
    """The worker's clients, and what they train with."""

    def __init__(self, pipe: Connection, shard: Shard) -> None:
        clients = shard.clients
        if clients.device.type == "cuda":
            clients.model.to("cuda")  # this worker's
        self._pipe = pipe
        self._engine = shard.inner(clients)
        self._sealers: dict[Kind, Sealer] = {}
        self._roles = {member.name: member.client(self._sealers) for member in shard.members}
        self._blocks: dict[str, Block] = {}

    def train(self, order: Order) -> None:
        if order.public_keys is not None:
            self._sealers.update(_sealers(order.public_keys))
        known = order.state if isinstance(order.state, str) else ""
        self._open_only({known, order.slots.block})
        state = order.state if isinstance(order.state, State) else self._blocks[known].read(0)
        ways = order.sums, order.update
        outgoing = Outgoing.after(state, order.run, ways, order.times, self._roles)
        desk = _Desk(self._pipe, order.slots, self._blocks.get(order.slots.block))
        self._engine.train(_ShardRound(state, order, outgoing, desk))
        send(self._pipe, Finished())

    def _open_only(self, names: set[str]) -> None:
        for name in self._blocks.keys() - names:
            self._blocks.pop(name).close()
        for name in names - self._blocks.keys() - {""}:
            self._blocks[name] = Block.named(name)


def _sealers(keys: Mapping[Kind, PlainChannel | str]) -> dict[Kind, Sealer]:
    files = {key for key in keys.values() if isinstance(key, str)}
    made = {text: CkksSealer(PublicKey.from_json(text)) for text in files}
    return {kind: made[key] if isinstance(key, str) else key for kind, key in keys.items()}


class _Desk:
    """Where a worker leaves what its clients send, in so many slots."""

    def __init__(self, pipe: Connection, slots: Slots, block: Block | None) -> None:
        self._pipe = pipe
        self._slots = slots
        self._block = block
        self._free = list(range(slots.count))

    def leave(self, name: str, content: Content, layout: Layout | None) -> None:
        """Waits for a slot where none is free."""
        while not self._free:
            self._hear(receive(self._pipe))
        slot, parts = self._free.pop(), packed(content)
        n_bytes = packed_bytes(parts)
        if self._block and n_bytes <= self._slots.n_bytes:
            self._block.write(slot * self._slots.n_bytes, parts)
            send(self._pipe, Trained(name, slot, n_bytes, layout, None))
        else:
            send(self._pipe, Trained(name, slot, n_bytes, layout, content))

    def post(self, posted: Posted) -> None:
        """Waits while the pipe is full."""
        send(self._pipe, posted)

    def ask(self, question: Recall | Asked) -> Any:
        """What the main process answers."""
        send(self._pipe, question)
        while isinstance(heard := receive(self._pipe), Free):
            self._hear(heard)
        return heard

    def _hear(self, free: Free) -> None:
        self._free.append(free.slot)


class _Memories(Mapping[str, Memory]):
    """What clients have kept, which the main process keeps for them."""

    def __init__(self, order: Order, desk: _Desk) -> None:
        self._order = order
        self._desk = desk

    def __getitem__(self, name: str) -> Memory:
        if name not in self._order.remember:
            return Memory()
        memory: Memory = self._desk.ask(Recall(name))
        return memory

    def __iter__(self) -> Iterator[str]:
        return iter(self._order.times)

    def __len__(self) -> int:
        return len(self._order.times)


class _ShardRound:
    """The round, as the engine inside sees it: of this worker's clients."""

    def __init__(self, state: State, order: Order, outgoing: Outgoing, desk: _Desk) -> None:
        self.state = state
        self.plan = order.plan
        self.times = order.times
        self.memories: Mapping[str, Memory] = _Memories(order, desk)
        self._outgoing = outgoing
        self._desk = desk
        self._known: Layout | None = None

    def weight(self, name: str) -> float:
        """See `OpenRound.weight`."""
        return self._outgoing.weight(name)

    def sum(self, asks: Mapping[str, tuple[str, NamedTensors]]) -> tuple[Total, list[str]]:
        """See `OpenRound.sum`; waits until the clients of all workers have asked."""
        way = self._outgoing.due({name for name, _ in asks.values()})
        for client in (name for name in self.times if name in asks):  # in the order of the sum
            sent = self._outgoing.asked(client, way, asks[client][1])
            self._desk.post(Posted(way.spec.name, client, sent.parcels, _layout(sent)))
        answer: Answer = self._desk.ask(Asked())
        return answer.total, [client for client in asks if client in answer.left]

    def sum_rows(self, name: str, clients: Sequence[str], rows: Rows) -> tuple[Total, list[str]]:
        """See `OpenRound.sum_rows`; the main process adds the clients of all workers in order."""
        return self.sum({client: (name, row) for client, row in zip(clients, rows, strict=True)})

    def finish(self, name: str, contribution: Contribution) -> None:
        """See `OpenRound.finish`."""
        sent = self._outgoing.trained(name, contribution)
        layout = _layout(sent)
        known, self._known = layout == self._known, layout
        content = Content(sent.parcels, contribution.memory)
        self._desk.leave(name, content, None if known else layout)


def _layout(sent: Sent) -> Layout:
    return {
        message: {n: (tuple(v.shape), v.dtype, v.device.type) for n, v in named.items()}
        for message, named in sent.like.items()
    }
