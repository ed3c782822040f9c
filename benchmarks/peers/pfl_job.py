"""pfl-research's rounds of a job: .peers/pfl/bin/python pfl_job.py JOB ROUNDS [PROCESSES].

Its simulated backend, which trains all clients in one model; data sets are kept, so that pfl keeps
its batches of them. The batches are always the same ones, no weights are attached, and running
statistics of batch normalisation are not averaged, as pfl does not average buffers: all of that is
in its favour. With several processes, each trains its share of the clients, in one thread
(apple.github.io/pfl-research/guides/simulation_distributed).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

N_PROCESSES = int(sys.argv[3]) if len(sys.argv) > 3 else 1
RANK = int(os.environ.setdefault("PFL_WORKER_RANK", "0"))
workers: list[subprocess.Popen[bytes]] = []
if N_PROCESSES > 1 and RANK == 0:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join([address] * N_PROCESSES)
    os.environ["OMP_NUM_THREADS"] = "1"
    workers = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env=os.environ | {"PFL_WORKER_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
        )
        for rank in range(1, N_PROCESSES)
    ]

import torch
from jobs import LR, STEPS, Job, Laps, asked
from models import made
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Trained(nn.Module):
    """Model with the two methods that pfl asks for."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.train()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return cross_entropy(self.model(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Return metrics, asked for in the first round alone."""
        return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


class Clock(TrainingProcessCallback):
    """Clock with a lap for each round."""

    def __init__(self, laps: Laps) -> None:
        self.laps = laps

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Begin the first round."""
        del model
        self.laps.start()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """End a round."""
        del aggregate_metrics, model, central_iteration
        self.laps.end()
        return False, Metrics()


def federation(job: Job) -> FederatedDataset:
    """Return all clients' samples as pfl's data sets."""
    x, y = map(torch.from_numpy, job.samples())
    kept = [PyTorchTensorDataset(pair) for pair in zip(x, y, strict=True)]
    sampler = get_user_sampler("minimize_reuse", list(range(job.n_clients)))
    return FederatedDataset(kept.__getitem__, sampler)


def main() -> None:
    """Run the rounds."""
    job, rounds = asked()
    data = federation(job)
    trained = Trained(made(job.model))
    central = torch.optim.SGD(trained.parameters(), lr=1.0)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**9,
            train_cohort_size=job.cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        PyTorchModel(trained, torch.optim.SGD, central),
        NNTrainHyperParams(
            local_num_epochs=None,
            local_learning_rate=LR,
            local_batch_size=job.batch,
            local_num_steps=STEPS,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Clock(Laps("pfl", "torch", "numpy"))],
        send_metrics_to_platform=False,
    )
    for worker in workers:
        worker.wait()


if __name__ == "__main__":
    main()
