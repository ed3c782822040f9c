"""Workers in this process, each called as a function from bytes to bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

from securefl.simulation.processes.ipc import Gone
from securefl.simulation.processes.machines import Death


@dataclass
class WorkerHere:
    """A `Worker` that answers as it is told."""

    make: object
    end_: object = None
    replies: list = field(default_factory=list)

    def start(self):
        self.end_, self.replies = self.make(), []

    def tell(self, message):
        self.replies.append(self.end_.handle([bytearray(part) for part in message]))

    def hear(self, begins):
        message = self.replies.pop(0)
        if message is None:
            raise Gone
        begins(message[:1], sum(map(len, message)))
        return message

    def death(self):
        return Death("it has said nothing")

    def end(self):
        self.end_ = None


@dataclass
class Here:
    """`Machines` of so many of them."""

    n_workers: int = 2
    n_threads: int = 1

    def gpu(self, number):
        del number

    def worker(self, make):
        return WorkerHere(make)

    def close(self):
        pass
