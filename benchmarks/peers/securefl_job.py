"""SecureFL's rounds of a job: python securefl_job.py JOB ROUNDS [ENGINE].

`Rounds.step` as a run does it, with its defaults: it scores the model after each round, here on one
batch, which the peers do not, and keeps the ledger of all messages.
"""

from __future__ import annotations

import sys

import torch
from jobs import LR, STEPS, Job, Laps, asked
from models import made

from securefl.build.simulation import simulated
from securefl.settings.tables import Config
from securefl.task import Task


def main() -> None:
    """Run the rounds."""
    job, n_rounds = asked()
    laps = Laps("securefl", "torch", "numpy")
    engine = sys.argv[3] if len(sys.argv) > 3 else "auto"
    rounds = simulated(configured(job, engine), task(job), None, None)
    laps.start()
    for _ in range(n_rounds):
        rounds.step()
        laps.end()
    rounds.close()


def configured(job: Job, engine: str) -> Config:
    """Return settings of FedAvg in the clear, as the other tools do it."""
    selection = {"name": "random", "fraction": job.cohort / job.n_clients}
    return Config.model_validate(
        {
            "run": {"rounds": 10**6, "engine": engine},
            "algorithm": {"name": "fedavg", "local_steps": STEPS},
            "train": {"lr": LR, "batch_size": job.batch, "lr_drops": ()},
            "exchange": {"encrypt": "none"},
            **({"selection": selection} if job.cohort < job.n_clients else {}),
        }
    )


def task(job: Job) -> Task:
    """Return the job's clients; the first batch of the first one is the test data."""
    x, y = map(torch.from_numpy, job.samples())
    clients = list(zip(x, y, strict=True))
    return Task(made(job.model), clients, (x[0, : job.batch], y[0, : job.batch]))


if __name__ == "__main__":
    main()
