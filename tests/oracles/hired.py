"""For tests of the parallel engine: workers that serve run after run, and what makes them die."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from multiprocessing import parent_process
from pathlib import Path

import torch
from torch.nn import functional

from securefl.algorithms.federated import Federated
from securefl.engines.worker_process import WorkerProcess
from securefl.types import Kind


class Lent(WorkerProcess):
    """A worker that is given back after a run, in the place of being ended."""

    def close(self):
        self._remove_block()
        self._slot_bytes = 0
        self.is_told = False


class Agency:
    """Lends the same workers to all runs of a test file; a start takes seconds."""

    def __init__(self):
        self.workers = []
        self.at_work = []

    def __call__(self, settings, n_clients):
        """In the place of `WorkerProcess`."""
        idle = [worker for worker in self.workers if worker not in self.at_work]
        if not idle:
            idle = [Lent(settings, n_clients)]
            self.workers += idle
        idle[0]._n_clients = n_clients
        self.at_work.append(idle[0])
        return idle[0]

    def close(self):
        for worker in self.workers:
            WorkerProcess.close(worker)


@dataclass(frozen=True)
class Spoiling:
    """FedAvg in which the client with so many samples sends NaN in round 2."""

    n_samples: int
    inner: Federated = Federated()  # noqa: RUF009  (frozen)

    def init(self, model):
        return self.inner.init(model)

    def plan(self, state, model):
        return self.inner.plan(state, model)

    def update(self, state, totals):
        return self.inner.update(state, totals)

    def client(self, state, work, exchange):
        contribution = self.inner.client(state, work, exchange)
        if state.round == 1 and len(work.data) == self.n_samples:
            next(iter(contribution.tensors[Kind.PARAMETERS].values())).view(-1)[1] = torch.nan
        return contribution


@dataclass(frozen=True)
class Returning(Spoiling):
    """Its clients return nothing."""

    def client(self, state, work, exchange):
        return None


@dataclass
class Deadly:
    """A loss that kills the worker that calls it for the n-th time; so often in all."""

    folder: Path
    call: int
    deaths: int = 1
    seen: int = 0

    def __call__(self, output, y):
        self.seen += 1
        done = len(list(self.folder.iterdir()))
        if parent_process() and self.seen == self.call and done < self.deaths:
            (self.folder / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return functional.cross_entropy(output, y)


def spoilt_loss(output, y):
    """NaN for a batch in which all labels are 2."""
    value = functional.cross_entropy(output, y)
    return value * torch.nan if (y == 2).all() else value
