"""Records that nobody would hold, put into a run by fair coins: what the run shows of them.

Steinke, Nasr, Jagielski, Privacy Auditing with One (1) Training Run, NeurIPS 2023. A canary is an
image whose pixels are shuffled, with a label at random: nothing else teaches a model about it. Who
sees the global model after each round scores it by how far each round moved along its gradient,

    Σ_t <∇ℓ(w_t; canary), w_t - w_{t+1}>,

which is large where the canary was trained on (the white-box attack of section 6 there).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import ConcatDataset, TensorDataset

from securefl.algorithms.algorithm import Loss, trained_parameters
from securefl.data.samples import ClientData, samples, whole
from securefl.settings.tables import Config
from securefl.task import Task
from securefl.types import NamedTensors

_CHUNK = 64
"""Samples whose gradients are in memory at once."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Canaries:
    """m records, and which of them the run has."""

    x: Tensor
    y: Tensor
    included: NDArray[np.bool_]
    """Shape (m,), by fair coins."""


def drawn_canaries(public: ClientData, count: int, seed: int) -> Canaries:
    """From samples of nobody's: pixels shuffled in each anew, labels dealt out at random."""
    rng = np.random.default_rng(seed)
    x, y = whole(public, "the canaries' samples")
    images_BX = x[rng.integers(len(x), size=count)].flatten(1)
    order_BX = torch.from_numpy(
        rng.permuted(np.tile(np.arange(images_BX.shape[1]), (count, 1)), axis=1)
    )
    shuffled = images_BX.gather(1, order_BX).reshape(count, *x.shape[1:])
    labels = y[rng.integers(len(y), size=count)]
    return Canaries(shuffled, labels, rng.random(count) < 0.5)


def with_canaries(task: Task, canaries: Canaries) -> Task:
    """The task, its clients holding those that are included.

    Each would be at the same client whatever the other coins show: so one coin moves one record.
    """
    n, number = len(task.clients), np.arange(len(canaries.included))
    clients = []
    for i, data in enumerate(task.clients):
        own = np.flatnonzero(canaries.included & (number % n == i))
        clients.append(_joined(data, canaries.x[own], canaries.y[own]))
    return replace(task, clients=clients)


def with_room(config: Config, task: Task) -> Config:
    """Return the settings, whose bound of a site's samples holds for this task's clients, too."""
    if config.samples is None:
        return config
    most = max(config.samples.most, *(len(samples(of, "a client")) for of in task.clients))
    return config.model_copy(update={"samples": config.samples.model_copy(update={"most": most})})


def alignment(
    model: nn.Module, loss: Loss, models: Sequence[NamedTensors], canaries: Canaries
) -> NDArray[np.float64]:
    """Each canary's score, shape (m,).

    Args:
        model: of the run's architecture; copied, not changed.
        loss: the run's.
        models: the global tensors before the first round and after each, or after some of them.
        canaries: whose scores.
    """
    scores = torch.zeros(len(canaries.y), dtype=torch.float64)
    gradients = _gradients(model, loss)
    for before, after in pairwise(models):
        found = gradients(before, canaries.x, canaries.y)
        for name, gradient in found.items():
            moved = (before[name] - after[name]).double()
            scores += gradient.double().flatten(1) @ moved.flatten()
    return scores.numpy()


def _gradients(
    model: nn.Module, loss: Loss
) -> Callable[[NamedTensors, Tensor, Tensor], NamedTensors]:
    """Of each sample, with BN at its running statistics: no sample acts on another."""
    resting = copy.deepcopy(model).eval()
    names = trained_parameters(resting).keys()
    others = {n: v for n, v in resting.state_dict().items() if n not in names}

    def loss_of(trained: NamedTensors, rest: NamedTensors, x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(resting, {**rest, **trained}, (x[None],)), y[None])

    each = vmap(grad(loss_of), in_dims=(None, None, 0, 0), chunk_size=_CHUNK)

    def gradients(state: NamedTensors, x: Tensor, y: Tensor) -> NamedTensors:
        trained = {name: state[name] for name in names}
        rest = {name: state.get(name, value) for name, value in others.items()}
        found: NamedTensors = each(trained, rest, x, y)
        return found

    return gradients


def _joined(data: ClientData, x: Tensor, y: Tensor) -> ClientData:
    if isinstance(data, tuple):
        return torch.cat([data[0], x]), torch.cat([data[1], y])
    return ConcatDataset([data, TensorDataset(x, y)])
