"""Jobs that engines are timed on. Data are random: only speed is looked at.

The server's test data are four samples, so that a round's evaluation does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from securefl.build.simulation import simulated
from securefl.models.build import build_model
from securefl.runs.loop import Rounds
from securefl.settings.load import parse_tables
from securefl.settings.tables import Config
from securefl.task import Task

LR = 0.01
N_CLASSES = 10
POOL = 16_000
"""Samples that exist at most; where clients hold more, they are windows that overlap."""

ENGINES: Mapping[str, Mapping[str, Any]] = {
    "sequential": {"engine": "sequential"},
    "vectorised": {"engine": "vectorised"},
    "parallel": {"engine": "parallel", "workers": 2},
    "auto": {},
}
"""Settings of `[run]` by way; `auto` has none, as a user who does not care."""


@dataclass(frozen=True, slots=True)
class Job:
    """Federation, and what it does in a round."""

    model: str
    """Name of `build_model`, with BN; or "lenet5", which has none."""
    shape: tuple[int, ...]
    """Shape of one sample."""
    n_clients: int
    local_steps: int = 5
    batch_size: int = 32
    n_samples: int = 160
    """Number of each client's samples."""
    fraction: float = 1.0
    """Share of the clients that are drawn at random for a round."""
    algorithm: str = "fedavg"
    moments: str = "two-pass"
    encrypt: str = "none"
    device: str = "cpu"
    precision: str = "model"
    """Precision of local steps, as in the settings; the model is in float32."""

    def __str__(self) -> str:
        who = f"{self.n_clients:,} clients" if self.n_clients > 1 else "1 client"
        if self.fraction < 1:
            who += f", {self.n_selected} of them in a round"
        steps = f"{self.local_steps} steps" if self.local_steps > 1 else "1 step"
        coarse = f", {self.precision}" if self.precision != "model" else ""
        return f"{self.model}, {who}, {steps} of {self.batch_size}{coarse}"

    @property
    def n_selected(self) -> int:
        """Clients in a round."""
        return parse_tables(Config, self.tables()).selection.n_selected(self.n_clients)

    @property
    def n_batches(self) -> int:
        """Number of batches of all of a round's clients."""
        return self.n_selected * self.local_steps

    def tables(self, run: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the settings, with these of the table `[run]`."""
        selection = {"name": "random", "fraction": self.fraction} if self.fraction < 1 else {}
        return {
            "run": {"rounds": 10_000, "device": self.device, **(run or {})},
            "algorithm": {
                "name": self.algorithm,
                "moments": self.moments,
                "local_steps": self.local_steps,
            },
            "train": {
                "batch_size": self.batch_size,
                "lr": LR,
                "precision": self.precision,
            },
            "exchange": {"encrypt": self.encrypt},
            "selection": selection,
        }

    def rounds(self, task: Task, run: Mapping[str, Any]) -> Rounds:
        """Begin a run of this job; raises ConfigError where the settings refuse it."""
        return simulated(parse_tables(Config, self.tables(run)), task, None, None)

    def casting(self) -> torch.autocast:
        """Return the context of a forward pass, for the ways that are not ours."""
        coarse = self.precision == "bfloat16"
        return torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=coarse)

    def wait(self) -> None:
        """Wait until the device has done what it was told: a GPU is told ahead."""
        if torch.device(self.device).type == "cuda":
            torch.cuda.synchronize(self.device)

    def small(self) -> Job:
        """Return the job as quick as can be: to try a benchmark, not to measure."""
        few = 3 if self.fraction == 1 else round(2 / self.fraction)
        images = self.model in {"cnn", "resnet20"}  # others take one size alone
        return replace(
            self,
            shape=(self.shape[0], 8, 8) if images else self.shape,
            n_clients=min(few, self.n_clients),
            local_steps=min(2, self.local_steps),
            batch_size=4,
            n_samples=8,
        )


MLP = Job("mlp", (784,), n_clients=100)
CNN = Job("cnn", (3, 32, 32), n_clients=20)
RESNET20 = Job("resnet20", (3, 32, 32), n_clients=5, batch_size=128, n_samples=640)
LENET5 = Job("lenet5", (1, 28, 28), n_clients=500, fraction=0.05)
MANY = Job("mlp", (784,), n_clients=10_000, fraction=0.01, n_samples=64)


def lenet5() -> nn.Sequential:
    """Build LeCun et al.'s for images of 28 × 28, with ReLU and maximum pooling as is usual now."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(
            *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Flatten(),
            *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
            nn.Linear(84, N_CLASSES),
        )


def model_of(job: Job, width: int | None = None) -> nn.Module:
    """Build the model as before the first round; `width` as `build_model` has it."""
    if job.model == "lenet5":
        return lenet5()
    sizes = {"in_channels": job.shape[0], "n_features": job.shape[0], "n_classes": N_CLASSES}
    return build_model(job.model, "batch", **sizes, width=width)


def pool_of(job: Job) -> tuple[Tensor, Tensor]:
    """Return all samples that there are."""
    rng = torch.Generator().manual_seed(0)
    n = min(POOL, job.n_clients * job.n_samples)
    x, y = (
        torch.randn((n, *job.shape), generator=rng),
        torch.randint(N_CLASSES, (n,), generator=rng),
    )
    return x, y


def task_of(job: Job) -> Task:
    """Return the job's model, and for each client a window of the pool."""
    x, y = pool_of(job)
    places = len(y) - job.n_samples + 1
    starts = [client * job.n_samples % places for client in range(job.n_clients)]
    windows = [slice(start, start + job.n_samples) for start in starts]
    return Task(model_of(job), [(x[w], y[w]) for w in windows], (x[:4], y[:4]))
