"""One round that several workers train, added up in the clients' order; who dies begins again.

What is added stays added. A worker that takes another's place trains the clients whose
contributions are missing from the round's start; where it asks for a sum that the round has had,
it hears the total that the others have heard. As all is seeded, the result is the same: to the bit
where clients train one after the other.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import connection

import torch

from securefl.errors import ConfigError, PeerError
from securefl.exchange.layout import hollow
from securefl.federation.outgoing import Sent
from securefl.federation.round import OpenRound, OpenSum
from securefl.simulation.processes.ipc import Gone
from securefl.simulation.processes.messages import (
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
from securefl.simulation.processes.worker_process import WorkerProcess
from securefl.types import NamedTensors

MOST_DEATHS = 3
_LOG = logging.getLogger(__name__)


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
    posted: deque[Posted] = field(default_factory=deque)
    """For the sum that is open, in order, not yet added."""
    has_asked: bool = False
    """Whether all of its clients have posted, and wait for the total."""
    n_heard: int = 0
    """Totals."""
    arrived: dict[str, Arrived] = field(default_factory=dict)
    like: Mapping[str, NamedTensors] = field(default_factory=dict)
    n_deaths: int = 0

    def begin(self, *, sums: bool) -> None:
        """From the round's start."""
        self.is_training, self.may_ask, self.n_heard = True, sums, 0
        self.has_asked = False
        self.posted.clear()
        self.arrived.clear()

    @property
    def is_far_ahead(self) -> bool:
        """Whether it waits with its next post until one of the last is added."""
        return len(self.posted) >= self.worker.n_slots


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
        self._open: OpenSum | None = None
        self._pending = deque(ongoing.times)
        """Who may yet post for the open sum."""
        self._taken: set[str] = set()
        """Who has."""
        self._device = device

    def run(self) -> None:
        """Raises what is raised in a worker, and PeerError where one does not live long enough."""
        for part in self._parts:
            if part.worker.pid is None:
                part.worker.start()  # all, before the first is waited for
        for part in self._parts:
            self._begin(part)
        while training := [part for part in self._parts if part.is_training]:
            pipes = [part.worker.pipe for part in training if not part.is_far_ahead]
            ready = set(connection.wait([*pipes, *(part.worker.sentinel for part in training)]))
            for part in training:
                # Who has ended is heard to the end: it may have said why.
                if ready & {part.worker.pipe, part.worker.sentinel}:
                    self._hear(part)
            self._add_posted()
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
        _LOG.warning(
            "round %d: a worker has died (exit code %s); another one trains its clients from the "
            "round's start, with the same seeds",
            self._ongoing.state.round + 1,
            code,
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
            case Posted():  # or again, after a death, what has been added
                if part.n_heard == len(self._answers) and said.client not in self._taken:
                    part.posted.append(said)
            case Asked():
                part.has_asked = True
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

    def _reply(self, part: Part) -> None:
        part.has_asked = False
        part.worker.tell(self._answers[part.n_heard])
        part.n_heard += 1

    def _add_posted(self) -> None:
        """What has come for the open sum, as far as it is next; its total, once all has."""
        while self._pending:
            name = self._pending[0]
            part = self._owner[name]
            if part.posted and part.posted[0].client == name:
                self._take(part.posted.popleft())
            elif part.may_ask and not part.posted and not part.has_asked:
                return  # it may come
            self._pending.popleft()
        if self._open is None or any(part.may_ask and not part.has_asked for part in self._parts):
            return
        total, left = self._open.total()
        self._answers.append(Answer(total, frozenset(left)))
        self._open, self._pending = None, deque(self._ongoing.times)
        self._taken.clear()
        for part in self._parts:
            if part.has_asked:
                self._reply(part)

    def _take(self, posted: Posted) -> None:
        if self._open is None:
            self._open = self._ongoing.open_sum({posted.name})
        self._ongoing.outgoing.due({posted.name, self._open.way.spec.name})
        self._open.take(posted.client, Sent(posted.parcels, _like(posted.layout, self._device)))
        self._taken.add(posted.client)

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
        return hollow(shape, dtype, where)

    return {
        message: {name: like(*of) for name, of in named.items()}
        for message, named in layout.items()
    }


def _no_start(exit_code: int) -> str:
    script = getattr(sys.modules["__main__"], "__file__", "")
    read = f"Each worker reads {script} anew: put" if script else "Put"
    return (
        f"a worker ended (exit code {exit_code}) before it began; what it said is above. {read} "
        'what the script does under `if __name__ == "__main__":`, or set run.engine = "sequential"'
    )
