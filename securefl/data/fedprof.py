"""FedProf's three tasks: who has which data, of what quality; and a twin of each on digits.

Wu et al., "FedProf", Table 2 and section 5.1. A twin has its task's kinds of low quality, at the
task's shares, and its skew, with scikit-learn's digits in the place of the data set. The EMNIST
twin has a tenth of the clients. The GasTurbine twin takes the 64 pixels for a sensor's readings,
and its target is the digit: a class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from securefl.data.cifar import load_cifar10
from securefl.data.digits import load_digits
from securefl.data.dominant import Dominant
from securefl.data.gas_turbine import load_gas_turbine
from securefl.data.mnist import load_emnist
from securefl.data.partition import split_clients
from securefl.data.quality import (
    Population,
    Quality,
    assign_qualities,
    spoilt_images,
    spoilt_readings,
)
from securefl.data.sizes import NormalSizes, normal_sizes
from securefl.data.split import Split
from securefl.errors import ConfigError

_SENSORS = {Quality.POLLUTED: 0.10, Quality.NOISY: 0.40}
_EMNIST = {Quality.IRRELEVANT: 0.15, Quality.BLURRED: 0.20, Quality.SALT_AND_PEPPER: 0.25}
_CIFAR10 = {Quality.IRRELEVANT: 0.10, Quality.BLURRED: 0.20, Quality.SALT_AND_PEPPER: 0.20}
SIZE_DEVIATION = 101 / 514
"""Of GasTurbine's clients, N(514, 101²), as a share of the mean."""


@dataclass(frozen=True, slots=True)
class QualityTask:
    """Clients of one task."""

    n_clients: int
    shares: Mapping[Quality, float]
    """Of clients with low-quality data; the others' are normal."""
    dominant: float | None
    """The share of a client's own class; None where clients differ in size."""


FEDPROF: Mapping[str, QualityTask] = MappingProxyType(
    {
        "gasturbine": QualityTask(50, _SENSORS, None),
        "emnist": QualityTask(500, _EMNIST, 0.60),
        "cifar10": QualityTask(10, _CIFAR10, 0.37),
        "gasturbine-twin": QualityTask(50, _SENSORS, None),
        "emnist-twin": QualityTask(50, _EMNIST, 0.60),
        "cifar10-twin": QualityTask(10, _CIFAR10, 0.37),
    }
)

Pair = tuple[Float[Tensor, "_ ..."], Shaped[Tensor, "_ ..."]]


# Two are compared by identity: tensors have no single truth value to compare by.
@dataclass(frozen=True, slots=True, eq=False)
class QualityFederation:
    """Each client's samples and their quality; what is tested is of normal quality."""

    clients: Sequence[Pair]
    qualities: Sequence[Quality]
    """In the order of `clients`."""
    test: Pair

    def flat(self) -> QualityFederation:
        """The same, with each sample as one row of values."""
        clients = [(x.flatten(1), y) for x, y in self.clients]
        return replace(self, clients=clients, test=(self.test[0].flatten(1), self.test[1]))


def load_fedprof(
    name: str,
    root: str | Path | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> QualityFederation:
    """The clients of a task; the same seed gives the same ones.

    Args:
        name: a key of `FEDPROF`.
        root: the folder with the data set's standard files; a twin has none.
        seed: decides who has what and of which quality.
        dtype: of the samples.

    Raises:
        ConfigError: no such task, or a task without its folder.
        DataError: a file is missing or damaged; the message says what to put where.
    """
    if name not in FEDPROF:
        raise ConfigError(f'task "{name}": must be one of {", ".join(FEDPROF)}')
    task, rng = FEDPROF[name], np.random.default_rng(seed)
    if name == "gasturbine":
        data = load_gas_turbine(_folder(name, root), seed, dtype)
        return of_sensors((data.train_x, data.train_y), (data.test_x, data.test_y), task, rng)
    if name == "gasturbine-twin":
        split = load_digits(seed, dtype)
        return of_sensors((split.train_x, split.train_y), (split.test_x, split.test_y), task, rng)
    match name:
        case "emnist":
            split = load_emnist(_folder(name, root), "digits")
        case "cifar10":
            split = load_cifar10(_folder(name, root))
        case _:
            split = load_digits(seed, dtype).as_images()
    return of_images(
        replace(split, train_x=split.train_x.to(dtype), test_x=split.test_x.to(dtype)), task, rng
    )


def of_images(split: Split, task: QualityTask, rng: np.random.Generator) -> QualityFederation:
    """Clients with a dominant class each, whose images are spoilt by their quality.

    Raises:
        ConfigError: the task has no dominant class, or the classes are too small for it.
    """
    if task.dominant is None:
        raise ConfigError("a task of images needs the share of each client's dominant class")
    parts = split_clients(split.train_y.numpy(), task.n_clients, Dominant(task.dominant), rng)
    qualities = assign_qualities(task.n_clients, task.shares, rng)
    clients = []
    for part, quality in zip(map(torch.from_numpy, parts), qualities, strict=True):
        clients.append((spoilt_images(split.train_x[part], quality, rng), split.train_y[part]))
    return QualityFederation(clients, qualities, (split.test_x, split.test_y))


def of_sensors(
    train: Pair, test: Pair, task: QualityTask, rng: np.random.Generator
) -> QualityFederation:
    """Clients of unequal size, whose readings are spoilt by their quality."""
    x, y = train
    sizes = normal_sizes(len(y), task.n_clients, NormalSizes(SIZE_DEVIATION), rng)
    parts = torch.from_numpy(rng.permutation(len(y))).split(sizes.tolist())
    qualities, population = assign_qualities(task.n_clients, task.shares, rng), Population.of(x)
    clients = [
        (spoilt_readings(x[part], quality, population, rng), y[part])
        for part, quality in zip(parts, qualities, strict=True)
    ]
    return QualityFederation(clients, qualities, test)


def _folder(name: str, root: str | Path | None) -> Path:
    if root is None:
        raise ConfigError(
            f'task "{name}" needs the folder with its data set\'s files; "{name}-twin" runs on '
            "digits without one"
        )
    return Path(root)
