"""What a run trains, on whose data: your own, or what the settings name."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import ConcatDataset, TensorDataset

from securefl.algorithms.base import Algorithm, Loss
from securefl.config.data import REGRESSIONS
from securefl.config.rules import reads_public
from securefl.config.schema import Config
from securefl.data.federation import load_federation
from securefl.data.samples import ClientData, Samples, samples
from securefl.data.sources import leave_out_choices
from securefl.errors import ConfigError
from securefl.models import build_model
from securefl.roles.ledger import AUTHORITY, SERVER

N_PUBLIC = 180
"""Samples set aside where something reads them and the settings name no number: a tenth of the
digits, as many as FNR-FL's table on them has."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A model and who has which data. Data are (x, y) tensors or torch Datasets."""

    model: nn.Module
    """Copied, not changed. Its device is where training runs, unless `run.device` names one."""
    clients: Sequence[ClientData]
    test: ClientData
    loss: Loss = functional.cross_entropy
    """Mean over a batch, of (model output, y).

    With targets that are floats of the model's output's shape, and a loss for them such as
    `torch.nn.functional.mse_loss`, runs report R² as accuracy; it may be below 0."""
    algorithm: Algorithm | None = None
    """Your own; the one of the settings where None."""
    client_tests: Sequence[ClientData] = ()
    """Each client's own test data, in the order of `clients`; empty where all share `test`."""
    external: Mapping[str, ClientData] = field(default_factory=dict)
    """Clients that never train, by name."""
    public: ClientData | None = None
    """Labelled samples that no client holds and nobody is tested on: FNR-FL trains on them, and
    FedProf's server profiles them."""
    qualities: Sequence[str] = ()
    """What each client's data are like, in the order of `clients`, for the record; empty where
    nobody knows."""


def configured_task(config: Config) -> Task:
    """The data and the model that the settings name."""
    model, seed = config.model, config.run.seed
    dtype = getattr(torch, model.dtype)
    n_public = config.data.public or (N_PUBLIC if reads_public(config) else 0)
    data = load_federation(config.data, seed, dtype, n_public)
    x, _ = data.test
    built = build_model(
        model.name,
        model.norm,
        in_channels=x.shape[1],
        n_features=x[0].numel(),
        n_classes=data.n_outputs,
        groups=model.groups,
        width=model.width,
        seed=seed,
    ).to(dtype)
    if model.name == "mlp":
        data = data.flat()
    return Task(
        built,
        data.clients,
        data.test,
        configured_loss(config),
        client_tests=data.client_tests,
        external=data.external,
        public=data.public,
        qualities=[quality.value for quality in data.qualities],
    )


def placed(task: Task, device: str | None) -> Task:
    """The task with its model on this device; as it is where None.

    Raises:
        ConfigError: torch knows no such device here.
    """
    if device is None:
        return task
    model = copy.deepcopy(task.model)
    loss = copy.deepcopy(task.loss) if isinstance(task.loss, nn.Module) else task.loss
    try:
        model.to(device)
        if isinstance(loss, nn.Module):  # which may have weights of classes
            loss.to(device)
    except (RuntimeError, AssertionError) as error:  # the one of CUDA, the other without it
        raise ConfigError(
            f'run.device = "{device}": torch {torch.__version__} cannot use it here ({error}); '
            'take "cpu", or leave it out; a run that is resumed has it in its config.json'
        ) from error
    return replace(task, model=model, loss=loss)


def configured_loss(config: Config) -> Loss:
    """Of the data that the settings name: mean squared error where targets are numbers."""
    regression = config.data.dataset in REGRESSIONS
    return functional.mse_loss if regression else functional.cross_entropy


def domains(config: Config) -> list[str]:
    """What `data.leave_out` can be, one after the other, for leave-one-out.

    Families of corruptions, or the folders and hospitals that are clients.

    Raises:
        ConfigError: the clients do not differ by domain, or there is one domain alone.
        DataError: the folder of the domains cannot be read.
    """
    return leave_out_choices(config.data)


def client_data(config: Config, task: Task) -> tuple[dict[str, Samples], int]:
    """Each client's samples by its name, and the batch size; centralised training unites them.

    Raises:
        ConfigError: too few clients for what is encrypted.
        DataError: data that cannot be used.
    """
    clients, batch_size = list(task.clients), config.train.batch_size
    if not clients:
        raise ConfigError("a task needs at least one client")
    if config.algorithm.name == "centralised" and task.algorithm is None:
        batch_size *= len(clients)
        clients = [_union(clients)]
    n = len(clients)
    named = zip(client_names(config, n), clients, strict=True)
    return {name: samples(data, name) for name, data in named}, batch_size


def client_names(config: Config, n: int) -> tuple[str, ...]:
    """Of n clients; raises ConfigError where `data.names` has not one for each."""
    names = config.data.names
    if not names or config.algorithm.name == "centralised":
        return tuple(f"client-{i}" for i in range(1, n + 1))
    if len(names) != n or len({*names, SERVER, AUTHORITY}) != n + 2:
        raise ConfigError(
            f"data.names has {len(names)} names and there are {n} clients: name each of them once, "
            f"and none {SERVER!r} or {AUTHORITY!r}"
        )
    return names


def _union(clients: Sequence[ClientData]) -> ClientData:
    pairs = [data for data in clients if isinstance(data, tuple)]
    if len(pairs) == len(clients):
        return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    return ConcatDataset([TensorDataset(*d) if isinstance(d, tuple) else d for d in clients])
