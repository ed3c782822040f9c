"""One round that several workers train, added up in the clients' order; who dies begins again.

What is added stays added. A worker that takes another's place trains the clients whose
contributions are missing from the round's start; where it asks for a sum that the round has had,
it hears the total that the others have heard. As all is seeded, the result is the same: to the bit
where clients train one after the other.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import connection

import torch

from securefl.engines.crossing import Gone
from securefl.engines.open_round import OpenRound
from securefl.engines.orders import (
    Answer,
    Asked,
    Content,
    Failed,
    Finished,
    Layout,
    Posted,
    Recall,
    Shard,
    Trained,
)
from securefl.engines.outgoing import Sent
from securefl.engines.worker_process import WorkerProcess
from securefl.errors import ConfigError, PeerError
from securefl.types import NamedTensors

MOST_DEATHS = 3


@dataclass(slots=True)
class Arrived:
    """What a client has left, not yet added."""

    like: Mapping[str, NamedTensors]
    trained: Trained
    content: Content | None = None
    """Where it has made room for others in the slots."""


@dataclass(slots=True)
class Part:
    """One worker's clients of a round, and how far they are."""

    worker: WorkerProcess
    names: list[str]
    """In order; after a death, those whose contribution was missing."""
    shard: Callable[[], Shard]
    is_training: bool = True
    may_ask: bool = False
    """For a sum in the middle of the round."""
    asked: dict[str, tuple[str, Sent]] = field(default_factory=dict)
    """The sum that each client waits for."""
    n_heard: int = 0
    """Totals."""
    arrived: dict[str, Arrived] = field(default_factory=dict)
    like: Mapping[str, NamedTensors] = field(default_factory=dict)
    n_deaths: int = 0

    def begin(self, *, sums: bool) -> None:
        """From the round's start."""
        self.is_training, self.may_ask, self.n_heard = True, sums, 0
        self.asked.clear()
        self.arrived.clear()


class SharedRound:
    """From the first order to the last contribution."""

    def __init__(
        self,
        ongoing: OpenRound,
        parts: list[Part],
        order: Callable[[Part], None],
        device: torch.device,
    ) -> None:
        """`order` tells a part's worker to train its clients; `device` is the model's here."""
        self.largest = 0
        """Bytes of any contribution."""
        self._ongoing = ongoing
        self._parts = parts
        self._order = order
        self._owner = {name: part for part in parts for name in part.names}
        self._missing = deque(ongoing.times)
        self._answers: list[Answer] = []
        self._device = device

    def run(self) -> None:
        """Raises what is raised in a worker, and PeerError where one does not live long enough."""
        for part in self._parts:
            if part.worker.pid is None:
                part.worker.start()  # all, before the first is waited for
        for part in self._parts:
            self._begin(part)
        while training := [part for part in self._parts if part.is_training]:
            sources = [x for part in training for x in (part.worker.pipe, part.worker.sentinel)]
            ready = set(connection.wait(sources))
            for part in training:
                if part.worker.pipe in ready:
                    self._hear(part)
                elif part.worker.sentinel in ready:
                    self._begin_again(part)
            self._answer()
            self._add()

    def _begin(self, part: Part) -> None:
        part.begin(sums=bool(self._ongoing.plan.sums))
        self._order(part)

    def _begin_again(self, part: Part) -> None:
        code = part.worker.exit_code()
        if not part.worker.has_spoken and code is not None and code >= 0:
            raise ConfigError(_no_start(code))
        part.n_deaths += 1
        if part.n_deaths >= MOST_DEATHS:
            raise PeerError(
                f"round {self._ongoing.state.round + 1}: a worker has died {MOST_DEATHS} times "
                f"(exit code {code}; -9 is how the system ends what takes too much memory): have "
                'fewer of them (run.workers), or set run.engine = "sequential"; a run folder can '
                "be resumed from its last round"
            )
        missing = set(self._missing)
        part.names = [name for name in part.names if name in missing]
        part.worker.start()
        self._begin(part)  # also without names: it is there for the next round

    def _hear(self, part: Part) -> None:
        try:
            said = part.worker.hear()
        except Gone:
            self._begin_again(part)
            return
        match said:
            case Failed(error):
                raise error
            case Recall(name):
                part.worker.tell(self._ongoing.memories[name])
            case Asked(name, posted):
                part.asked = {client: (name, self._sent(one)) for client, one in posted.items()}
                if part.n_heard < len(self._answers):
                    self._reply(part)
            case Trained():
                part.may_ask = False
                if said.layout is not None:
                    part.like = _like(said.layout, self._device)
                part.arrived[said.name] = Arrived(part.like, said)
                self.largest = max(self.largest, said.n_bytes)
            case Finished():
                part.may_ask = part.is_training = False

    def _sent(self, posted: Posted) -> Sent:
        return Sent(posted.parcels, _like(posted.layout, self._device))

    def _reply(self, part: Part) -> None:
        part.asked.clear()
        part.worker.tell(self._answers[part.n_heard])
        part.n_heard += 1

    def _answer(self) -> None:
        """Once all who may still ask have asked."""
        asking = [part for part in self._parts if part.asked]
        if not asking or any(part.may_ask and not part.asked for part in self._parts):
            return
        asks = {name: ask for part in asking for name, ask in part.asked.items()}
        in_order = {name: asks[name] for name in self._ongoing.times if name in asks}
        total, left = self._ongoing.sum_sent(in_order)
        self._answers.append(Answer(total, frozenset(left)))
        for part in asking:
            self._reply(part)

    def _add(self) -> None:
        """What has arrived, as far as it is next in order; not before the last of the sums."""
        if any(part.may_ask for part in self._parts):
            return
        while self._missing:
            name = self._missing[0]
            part = self._owner[name]
            if name in part.arrived:
                one = part.arrived.pop(name)
                content = one.content or part.worker.take(one.trained)
                self._ongoing.finish_sent(name, Sent(content.parcels, one.like), content.memory)
            elif part.is_training:
                _make_room(part)
                return
            self._missing.popleft()  # without a contribution, where it has left in a sum


def _make_room(part: Part) -> None:
    """A worker whose slots are taken, none of them by the next in order, could not go on."""
    in_slots = [one for one in part.arrived.values() if one.content is None]
    if len(in_slots) >= part.worker.n_slots:
        for one in in_slots:
            one.content = part.worker.take(one.trained)


def _like(layout: Layout, device: torch.device) -> dict[str, dict[str, torch.Tensor]]:
    """Tensors of these shapes, which take no memory; `device` is that of its kind here."""

    def like(shape: tuple[int, ...], dtype: torch.dtype, kind: str) -> torch.Tensor:
        where = device if device.type == kind else torch.device(kind)
        return torch.empty((), dtype=dtype, device=where).expand(shape)

    return {
        message: {name: like(*of) for name, of in named.items()}
        for message, named in layout.items()
    }


def _no_start(exit_code: int) -> str:
    script = getattr(sys.modules["__main__"], "__file__", "")
    read = f"Each worker reads {script} anew: put" if script else "Put"
    return (
        f'run.engine = "parallel": a worker ended (exit code {exit_code}) before it began; what it '
        f"said is above. {read} what the script does under `if __name__ == "
        '"__main__":`, or set run.engine = "sequential"'
    )
