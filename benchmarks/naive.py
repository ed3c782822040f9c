"""Yardsticks of engines: FedAvg as research code has it, and one model on all the data.

The naive loop: for each client a deep copy of the model, a new optimiser, and a DataLoader with
shuffling, whose batches go to the GPU where there is one; at the end the mean of all state_dicts.
It selects clients, and evaluates nothing.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from itertools import islice

import torch
from engine_jobs import LR, Job, model_of, pool_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from securefl.task import Task

StateDict = dict[str, Tensor]


class NaiveLoop:
    """Naive loop; a call is one round."""

    def __init__(self, job: Job, task: Task) -> None:
        self._job = job
        self._model = copy.deepcopy(task.model).to(job.device)
        self._datasets = [TensorDataset(*data) for data in task.clients if isinstance(data, tuple)]

    def __call__(self) -> None:
        """Select, train one after the other, average."""
        selected = random.sample(self._datasets, self._job.n_selected)
        self._model.load_state_dict(_mean([self._client(data) for data in selected]))

    def _client(self, data: TensorDataset) -> StateDict:
        model = copy.deepcopy(self._model).train()
        optimiser = torch.optim.SGD(model.parameters(), lr=LR)
        loader = DataLoader(data, batch_size=self._job.batch_size, shuffle=True)
        for batch in islice(_epochs(loader), self._job.local_steps):
            x, y = (values.to(self._job.device) for values in batch)
            _step(model, optimiser, x, y, self._job.casting())
        return model.state_dict()


class Centralised:
    """One model on as many batches as a round of the federation has; a call takes them all.

    The samples are tensors in the device's memory, and a batch is an index into them.
    """

    def __init__(self, job: Job, memory_format: torch.memory_format) -> None:
        self._job = job
        self._model = model_of(job).to(job.device).train()
        self._model.to(memory_format=memory_format)  # type: ignore[call-overload]  # torch has it
        self._optimiser = torch.optim.SGD(self._model.parameters(), lr=LR)
        x, y = (values.to(job.device) for values in pool_of(job))
        if x.dim() == 4:
            x = x.contiguous(memory_format=memory_format)
        self._batches = _batches(x, y, job.batch_size)

    def __call__(self) -> None:
        """Take a step for each batch."""
        for x, y in islice(self._batches, self._job.n_batches):
            _step(self._model, self._optimiser, x, y, self._job.casting())


def _step(
    model: nn.Module, optimiser: torch.optim.SGD, x: Tensor, y: Tensor, casting: torch.autocast
) -> None:
    optimiser.zero_grad()
    with casting:  # of one forward pass, since it keeps what it has cast the weights to
        loss = cross_entropy(model(x), y)
    loss.backward()
    optimiser.step()


def _epochs(loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[list[Tensor]]:
    while True:
        yield from loader


def _batches(x: Tensor, y: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        order = torch.randperm(len(y)).to(y.device)
        for start in range(0, len(y) - batch_size + 1, batch_size):
            index = order[start : start + batch_size]
            yield x[index], y[index]


def _mean(states: list[StateDict]) -> StateDict:
    mean = copy.deepcopy(states[0])
    for name in mean:
        for state in states[1:]:
            mean[name] += state[name]
        mean[name] = torch.div(mean[name], len(states))
    return mean
