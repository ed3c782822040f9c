"""For tests of the parallel engine: runs to compare, workers that are lent, and what kills one."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from multiprocessing import parent_process
from pathlib import Path

import torch
from by_hand import task
from side_by_side import SMALL, vector
from torch.nn import functional

import securefl
from securefl.algorithms.federated import Federated
from securefl.algorithms.normalisation.fedtan import FedTAN
from securefl.simulation.processes.worker_process import WorkerProcess
from securefl.types import Kind

SIZES = (5, 9, 14, 8, 6)


def trained(settings, engine, job=None, n_workers=2, **more):
    """What a run leaves."""
    chosen = [f"run.engine={engine}"]
    if engine in {"parallel", "ray"}:
        chosen.append(f"run.workers={n_workers}")
    config = securefl.load_config(None, [*SMALL, *settings, *chosen])
    return securefl.run(config, job or task(sizes=SIZES), **more)


def require_same_bits(settings, job=None, agency=None, engine="parallel"):
    """Model, metrics, messages and incidents."""
    one = trained(settings, "sequential", job)
    if agency:
        agency.at_work.clear()
    other = trained(settings, engine, job)
    require_alike(one, other)
    return other


def require_alike(one, other):
    assert torch.equal(vector(one.model), vector(other.model))
    assert [m.loss for m in one.metrics] == [m.loss for m in other.metrics]
    assert one.ledger.entries == other.ledger.entries
    assert one.incidents == other.incidents
    assert one.participants == other.participants


class Lent(WorkerProcess):
    """A worker that is given back after a run, in the place of being ended."""

    def start(self):
        if self.pid is None:
            super().start()

    def end(self):
        pass


class Agency:
    """Lends the same workers to all runs of a test file; a start takes seconds."""

    def __init__(self):
        self.workers = []
        self.at_work = []

    def __call__(self, make):
        """In the place of `WorkerProcess`."""
        idle = [worker for worker in self.workers if worker not in self.at_work]
        if not idle:
            idle = [Lent(make)]
            self.workers += idle
        self.at_work.append(idle[0])
        return idle[0]

    def close(self):
        for worker in self.workers:
            WorkerProcess.end(worker)


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


@dataclass(frozen=True)
class Garbling(Spoiling):
    """FedTAN in which that client has no tensors for the first sum."""

    inner: Federated = Federated(FedTAN())  # noqa: RUF009  (frozen)

    def client(self, state, work, exchange):
        if len(work.data) == self.n_samples:
            exchange.sum("1/mean", {"mean": None})
        return self.inner.client(state, work, exchange)


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
