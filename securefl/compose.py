"""The composition root: settings become an algorithm, a solver, and the three roles.

The only module that sees client, server and authority together.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from securefl.algorithms.base import Algorithm, Sgd, averaged_tensors
from securefl.choose import chosen_algorithm
from securefl.config.schema import Config, Encrypt, Weights
from securefl.crypto.secret import KeySet
from securefl.data.samples import Samples
from securefl.engines.delivery import Delivery, Incident
from securefl.engines.sequential import SequentialEngine, Training
from securefl.errors import ConfigError
from securefl.exchange.base import Adder, Sealer
from securefl.exchange.ckks import CkksAdder, CkksSealer
from securefl.exchange.ckks_open import CkksOpener
from securefl.exchange.plain import PlainChannel
from securefl.refinement import check_refinement, refined
from securefl.roles.authority import Authority, Opening
from securefl.roles.client import Client
from securefl.roles.ledger import Ledger
from securefl.roles.server import Server
from securefl.roles.wire import Roster
from securefl.runfolder import RunFolder
from securefl.task import Task, client_data
from securefl.types import Kind

SEALED = {
    Encrypt.STATISTICS: {Kind.STATISTICS, Kind.GRADIENTS},
    Encrypt.PROFILES: {Kind.PROFILES},
    Encrypt.MODEL: set(Kind) - {Kind.SELECTION},
}


@dataclass(slots=True)
class Record:
    """What the roles write down while a run goes on."""

    ledger: Ledger = field(default_factory=Ledger)
    incidents: list[Incident] = field(default_factory=list)
    openings: list[Opening] = field(default_factory=list)
    folder: RunFolder | None = None

    def log_opening(self, opening: Opening) -> None:
        """On disk before the total is released."""
        self.openings.append(opening)
        if self.folder:
            self.folder.note_opening(opening)


def compose(
    config: Config, task: Task, keys: KeySet | None, record: Record
) -> tuple[Algorithm, Training, SequentialEngine]:
    """The objects of a run; nothing has happened yet.

    Raises:
        ConfigError, DataError: the settings, the model and the data do not go together.
    """
    data, batch_size = client_data(config, task)
    sgd = _schedule(config)
    algorithm = task.algorithm or refined(config, task, chosen_algorithm(config), sgd)
    if isinstance(algorithm, type) or not isinstance(algorithm, Algorithm):
        raise ConfigError(
            f"{algorithm!r:.80} is no algorithm: it needs the methods init, plan, client "
            "and update of securefl.algorithms.base.Algorithm"
        )
    training = Training(
        task.loss,
        sgd,
        config.algorithm.local_steps,
        batch_size,
        config.run.seed,
        config.algorithm.local_epochs,
    )
    check_refinement(config, task, algorithm, data)
    _check_sealed(config, algorithm, task.model)
    delivery = _roles(config, task.model, keys, _weights(config, data, batch_size), record)
    return algorithm, training, SequentialEngine(algorithm, task.model, data, training, delivery)


def _check_sealed(config: Config, algorithm: Algorithm, model: nn.Module) -> None:
    """Raises ConfigError where `encrypt = "statistics"` would seal nothing."""
    parts = config.exchange.encrypt
    if Encrypt.STATISTICS not in parts or Encrypt.MODEL in parts:
        return
    plan = algorithm.plan(algorithm.init(model), model)
    if not SEALED[Encrypt.STATISTICS] & {spec.kind for spec in (*plan.sums, *plan.update)}:
        raise ConfigError(
            'exchange.encrypt = "statistics", and a model without BN has none to send: nothing '
            'would be encrypted; set exchange.encrypt = "none", or "model"'
        )


def _schedule(config: Config) -> Callable[[int], Sgd]:
    train = config.train
    drops_at = [config.rounds_in(share) for share in train.lr_drops]

    def sgd(rounds_done: int) -> Sgd:
        drops = sum(rounds_done >= done for done in drops_at)
        return Sgd(
            lr=train.lr * train.lr_drop_factor**drops * train.lr_decay**rounds_done,
            momentum=train.momentum,
            weight_decay=train.weight_decay,
        )

    return sgd


def _weights(config: Config, data: dict[str, Samples], batch_size: int) -> dict[str, float]:
    """Each client's weight: its size over a power of two that bounds the sum of sizes.

    The bound is public; of the sizes it tells no more than the magnitude of their sum.
    """
    match config.algorithm.weights:
        case Weights.SAMPLES:
            sizes = {name: len(d) for name, d in data.items()}
        case Weights.BATCH:
            sizes = {name: min(batch_size, len(d)) for name, d in data.items()}
        case Weights.UNIFORM:
            sizes = dict.fromkeys(data, 1)
    bound = _next_power_of_two(sum(sizes.values()))
    return {name: size / bound for name, size in sizes.items()}


def _next_power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _roles(
    config: Config,
    model: nn.Module,
    keys: KeySet | None,
    weights: dict[str, float],
    record: Record,
) -> Delivery:
    dtype = next(iter(averaged_tensors(model)[Kind.PARAMETERS].values())).dtype
    plain = PlainChannel("float64" if dtype is torch.float64 else "float32")
    sealed = frozenset[Kind]().union(*(SEALED[part] for part in config.exchange.encrypt))
    sealers: dict[Kind, Sealer] = dict.fromkeys(Kind, plain)
    adders: dict[Kind, Adder] = dict.fromkeys(Kind, plain)
    if keys:
        sealers |= dict.fromkeys(sealed, CkksSealer(keys.public))
        adders |= dict.fromkeys(sealed, CkksAdder(keys.adding))
    alike = 1 / _next_power_of_two(len(weights))
    clients = {name: Client(name, weight, sealers, alike) for name, weight in weights.items()}
    roster = Roster({name: client.identity for name, client in clients.items()})
    authority = None
    if keys:
        opener = CkksOpener(keys.secret, config.exchange.precision_bits)
        authority = Authority(opener, roster, config.exchange.min_clients, record.log_opening)
    session = secrets.token_hex(32)
    return Delivery(
        run=session,
        clients=clients,
        server=Server(session, roster, adders),
        authority=authority,
        plain=plain,
        sealed=sealed,
        value_bytes=np.dtype(plain.dtype).itemsize,
        ledger=record.ledger,
        report=record.incidents.append,
    )
