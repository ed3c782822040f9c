"""What each process makes of the settings, which all of them share: model, algorithm, own data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from securefl.algorithms.base import Algorithm, Work
from securefl.algorithms.participation import Aggregation, Participating
from securefl.build.algorithm import chosen_algorithm
from securefl.build.terms import (
    check_sealed,
    client_weights,
    equal_weight,
    precision_of,
    sealed_kinds,
    training_of,
)
from securefl.config.devices import DevicesTable
from securefl.config.schema import Config
from securefl.crypto.public import PublicKey
from securefl.errors import ConfigError
from securefl.evaluation.evaluator import Evaluator as TestBench
from securefl.exchange.base import Sealer
from securefl.exchange.ckks import CkksSealer
from securefl.exchange.plain import PlainChannel
from securefl.federation.server import Shares
from securefl.federation.training import Training
from securefl.simulation.clients import Clients, Place
from securefl.task import Task, client_data, configured_task
from securefl.types import Floats, Kind, Memory, State

ALGORITHMS = ("fedavg", "fedtan")


@dataclass(frozen=True, slots=True)
class Common:
    """What server and clients have alike."""

    config: Config
    names: tuple[str, ...]
    """The clients', in the order in which they are added up."""
    algorithm: Algorithm
    model: nn.Module
    training: Training
    precision: Floats

    @property
    def sealed(self) -> frozenset[Kind]:
        """The kinds that travel as ciphertext."""
        return sealed_kinds(self.config)


@dataclass(frozen=True, slots=True)
class ServerParty:
    """The server's: of the data it has the test samples alone."""

    common: Common
    bench: TestBench
    shares: Shares


@dataclass(frozen=True, slots=True)
class ClientParty:
    """A client's."""

    common: Common
    name: str
    clients: Clients
    """Itself, and its own data."""
    place: Place
    weight: float
    equal_weight: float

    def work(self, run: str, state: State, memory: Memory) -> Work:
        """One round's work from the global `state`, in the run of this id.

        Two runs draw other mini-batches, so that a run begun anew without one client does not
        show that client's update; with `run.reproducible` they are a simulation's.
        """
        table, training = self.common.config.run, self.clients.training
        seed = table.seed if table.reproducible else int(run, 16) << 32 | table.seed
        clients = replace(self.clients, training=replace(training, seed=seed))
        return clients.work(self.name, state, self.place, memory)


def settings_digest(config: Config) -> str:
    """Names the settings; where the data lie is each process's own affair."""
    own = {"data": {"root"}, "run": {"name"}}
    return hashlib.sha256(config.model_dump_json(exclude=own).encode()).hexdigest()


def check_scope(config: Config) -> None:
    """Raise ConfigError where processes do not run these settings yet."""
    wanted = {
        "selection.name": (config.selection.name, ("all",)),
        "algorithm.name": (config.algorithm.name, ALGORITHMS),
        "solver.name": (config.solver.name, ("sgd",)),
        "server.name": (config.server.name, ("average",)),
        "fnr.name": (config.fnr.name, ("none",)),
        "privacy.level": (config.privacy.level, ("none",)),
        "train.precision": (config.train.precision, ("model",)),
        "run.device": (config.run.device or "cpu", ("cpu",)),
        "run.engine": (config.run.engine, ("auto", "sequential")),
    }
    for key, (value, allowed) in wanted.items():
        if value not in allowed:
            names = " or ".join(f'"{name}"' for name in allowed)
            raise ConfigError(
                f'{key} = "{value}": separate processes run {names}; take that, or run in one '
                "process with: securefl run"
            )
    if config.exchange.committee:
        raise ConfigError(
            f"exchange.committee = {config.exchange.committee}: separate processes have one "
            "authority; leave it out, or run in one process with: securefl run"
        )
    if config.devices != DevicesTable():
        raise ConfigError(
            "[devices]: separate processes are as fast as they are and simulate none; leave the "
            "table out, or run in one process with: securefl run"
        )


def sealers(common: Common, key: PublicKey) -> dict[Kind, Sealer]:
    """How each kind of value leaves a client."""
    plain: dict[Kind, Sealer] = dict.fromkeys(Kind, PlainChannel(common.precision))
    return plain | dict.fromkeys(common.sealed, CkksSealer(key))


def server_party(config: Config) -> ServerParty:
    """The server's part. In a simulation it comes with the clients' data, which are let go here.

    Raises:
        ConfigError, DataError: the settings and the model do not fit.
    """
    task = _task(config)
    data, batch_size = client_data(config, task)
    weights = client_weights(config, data, batch_size)
    common = _common(config, task, weights)
    shares = Shares(weights, equal_weight(len(data)))
    return ServerParty(common, TestBench(task, common.names), shares)


def client_party(config: Config, name: str) -> ClientParty:
    """The part of the client of that name, with its data alone.

    Raises:
        ConfigError: there is none of that name, or the settings do not fit.
        DataError: its data cannot be used.
    """
    task = _task(config)
    data, batch_size = client_data(config, task)
    if name not in data:
        raise ConfigError(
            f"{name!r:.100} is no client of these settings, which name {', '.join(data):.200}: "
            "name them as their certificates do, with data.names"
        )
    weights = client_weights(config, data, batch_size)
    common = _common(config, task, weights)
    # Torch loads a third of itself with the first of these: not while the first round waits.
    torch.optim.SGD(common.model.parameters(), lr=0.0)
    clients = Clients(
        common.algorithm,
        common.model,
        {name: data[name]},
        common.training,
        {name: list(data).index(name)},
    )
    return ClientParty(
        common,
        name,
        clients,
        Place(common.model),
        weights[name],
        equal_weight(len(data)),
    )


def _task(config: Config) -> Task:
    check_scope(config)
    task = configured_task(config)
    if task.client_tests:
        raise ConfigError(
            "each client has test data of its own here, which no server sees: take data with a "
            "common test set, or run in one process with: securefl run"
        )
    return task


def _common(config: Config, task: Task, weights: Mapping[str, float]) -> Common:
    names, algorithm = tuple(weights), chosen_algorithm(config, sealed_kinds(config))
    check_sealed(config, algorithm, task.model, len(names))
    aggregation = Aggregation(config.selection.aggregation)
    around = Participating(algorithm, len(names), sum(weights.values()), aggregation)
    training = training_of(config, task.loss, config.train.batch_size)
    return Common(config, names, around, task.model, training, precision_of(task.model))
