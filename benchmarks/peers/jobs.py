"""Jobs that every tool does, and their times; imports what all of them have."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

STEPS = 5
"""Local mini-batches a round; a client has as many samples as they take."""
LR = 0.05
"""Learning rate of plain SGD."""
N_CLASSES = 10


@dataclass(frozen=True, slots=True)
class Job:
    """FedAvg of one model."""

    model: str
    """Name of a model of `models.py`, and `fedjax_models.py`."""
    shape: tuple[int, ...]
    """Shape of a sample, channels first."""
    n_clients: int
    cohort: int
    """Number of clients in a round, drawn at random where they are not all."""
    batch: int = 32

    @property
    def n_samples(self) -> int:
        """Number of one client's samples."""
        return STEPS * self.batch

    def samples(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Draw x (clients, samples, *shape) and y (clients, samples); always the same."""
        rng = np.random.default_rng(0)
        size = (self.n_clients, self.n_samples)
        x = rng.standard_normal((*size, *self.shape), dtype=np.float32)
        return x, rng.integers(N_CLASSES, size=size)


JOBS = {
    "mlp": Job("mlp", (784,), n_clients=100, cohort=100),
    "cnn": Job("cnn", (3, 32, 32), n_clients=20, cohort=20),
    "lenet": Job("lenet", (1, 28, 28), n_clients=500, cohort=25),
    "resnet20": Job("resnet20", (3, 32, 32), n_clients=5, cohort=5, batch=128),
}


def asked() -> tuple[Job, int]:
    """Return the job and the number of rounds that the command line of a tool's process names."""
    name, rounds = sys.argv[1:3]
    return JOBS[name], int(rounds)


class Laps:
    """Teller of each round's seconds, one JSON line each, after a line with the versions."""

    def __init__(self, *packages: str) -> None:
        """Wait for `start`, with which the clock starts."""
        self._began = 0.0
        print(json.dumps({"versions": {name: version(name) for name in packages}}), flush=True)

    def start(self) -> None:
        """Begin the first round."""
        self._began = time.perf_counter()

    def end(self) -> None:
        """End a round, and begin the next one."""
        now = time.perf_counter()
        print(json.dumps({"seconds": now - self._began}), flush=True)
        self._began = time.perf_counter()
