"""Task of a run: the model, and whose data train it, your own or those of the settings."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import ConcatDataset, Dataset, TensorDataset

from securefl.algorithms.algorithm import Algorithm, Loss
from securefl.data.catalogue import Targets
from securefl.data.federation import load_federation
from securefl.data.samples import ClientData, Dtypes, Given, Samples, given_data, samples
from securefl.errors import ConfigError, DataError
from securefl.federation.ledger import AUTHORITY, SERVER
from securefl.io.text import can_name_a_folder
from securefl.losses.cox import cox_loss
from securefl.losses.dice import dice_loss
from securefl.losses.kinds import loss_name, takes_floats, takes_survival
from securefl.metrics.chosen import Measure, chosen_metric
from securefl.models.build import build_model
from securefl.settings.choice import Choice
from securefl.settings.clashes import public_reader
from securefl.settings.data_set import numbered, require_data_set
from securefl.settings.tables import Config
from securefl.trial import labelled, require_plain, tried

N_PUBLIC = 180
"""Number of samples set aside where something reads them and the settings name no number: a
tenth of the digits, as many as FNR-FL's table on them has.
"""

LOSSES: Mapping[Targets, Loss] = {
    Targets.CLASSES: functional.cross_entropy,
    Targets.NUMBERS: functional.mse_loss,
    Targets.SURVIVAL: cox_loss,
    Targets.MASKS: dice_loss,
}
"""Loss that goes with each form of targets."""
MAX_NAME = 64
"""Largest number of characters of a client's name, as in `data.names`."""


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class Task:
    """Model, and the data of each client.

    Data are pairs (x, y) of tensors or numpy arrays, or torch Datasets of such pairs. Floats come
    in the model's type, and labels as int64; `clients` by name are a dict.

    Examples:
        >>> task = securefl.Task(model, clients, test)  # by name, or a list
        >>> list(task.names)
        ['north', 'south', 'east']
        >>> own = {"north": test, "south": test, "east": test}
        >>> task = securefl.Task(model, clients, test, client_tests=own, metric="balanced-accuracy")
        >>> securefl.run(config, task).metric
        'balanced-accuracy'
    """

    model: nn.Module
    """Model, copied and not changed. Training runs on its device, if `run.device` names none."""
    clients: Sequence[ClientData]
    test: ClientData
    loss: Loss
    """Loss as mean over a batch, of (model output, y); or `securefl.cox_loss` of survival."""
    algorithm: Algorithm | None
    """Algorithm of your own; the one of the settings where None."""
    client_tests: Sequence[ClientData]
    """Test data of each client, in the order of `clients`; empty where all share `test`."""
    external: Mapping[str, ClientData]
    """Clients that never train, by name."""
    public: ClientData | None
    """Labelled samples that no client holds and nobody is tested on: FNR-FL trains on them, and
    FedProf's server profiles them."""
    qualities: Sequence[str]
    """Quality of each client's data, in the order of `clients`, for the record; empty where
    nobody knows."""
    metric: str | Measure | None
    """Metric of tests: "accuracy" (classes, by the largest output), "label-accuracy" (labels 0
    or 1, by the sign of each logit), "r2" (numbers), "c-index" (survival) or another by name; or a
    function of all outputs and all targets of a test set, both on the CPU, or its
    `module:function`. Where None, it follows from one of torch's losses, `cox_loss` or
    `dice_loss`, if loss and targets leave no doubt.
    """
    choices: Sequence[Choice]
    """A normalisation, solver, server optimiser or selector of your own, as objects, each in the
    place of the settings'."""
    names: Sequence[str]
    """Names of the clients, in the order of `clients`; empty where the settings name them."""

    def __init__(  # noqa: PLR0913  (a task may have all of these)
        self,
        model: nn.Module,
        clients: Sequence[Given] | Mapping[str, Given],
        test: Given,
        loss: Loss = functional.cross_entropy,
        *,
        algorithm: Algorithm | None = None,
        choices: Sequence[Choice] = (),
        client_tests: Sequence[Given] | Mapping[str, Given] = (),
        external: Mapping[str, Given] = MappingProxyType({}),
        public: Given | None = None,
        qualities: Sequence[str] = (),
        metric: str | Measure | None = None,
        names: Sequence[str] = (),
    ) -> None:
        """See the attributes.

        Raises:
            ConfigError: the model is none, a script, or has layers without a size; the loss is no
                function, the metric unknown, or names do not fit.
            DataError: data of another form; the message says whose, and what to give.
        """
        require_plain(model)
        _require_function(loss)
        if metric is not None:
            chosen_metric(metric)
        dtypes = data_types(model, loss)
        _require_several("clients", clients)
        _require_several("client_tests", client_tests)
        if isinstance(clients, Mapping):
            names, clients = _names(clients), list(clients.values())
        if isinstance(client_tests, Mapping):
            client_tests = _in_order(client_tests, names)
        owners = names if len(names) == len(clients) else numbered(len(clients))
        tests = [f"the test data of {owner}" for owner in owners]
        values = {
            "model": model,
            "clients": _each(clients, owners, dtypes),
            "test": given_data(test, "the test data", dtypes),
            "loss": loss,
            "algorithm": algorithm,
            "choices": tuple(choices),
            "client_tests": _each(client_tests, tests, dtypes),
            "external": {
                name: given_data(data, f"the external client {name}", dtypes)
                for name, data in external.items()
            },
            "public": None if public is None else given_data(public, "the public samples", dtypes),
            "qualities": qualities,
            "metric": metric,
            "names": tuple(names),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        sizes = f"{len(self.clients)} clients"
        return f"Task({type(self.model).__name__}, {sizes}, loss {loss_name(self.loss)})"


def data_types(model: nn.Module, loss: Loss) -> Dtypes:
    """Return the types that data of this model and loss come in."""
    floats = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return Dtypes(
        floats.pop() if len(floats) == 1 else None, takes_floats(loss) or takes_survival(loss)
    )


def _each(given: Sequence[Given], owners: Sequence[str], dtypes: Dtypes) -> list[ClientData]:
    single = isinstance(given, Dataset | Tensor | np.ndarray)
    if single or any(isinstance(of, Tensor | np.ndarray) for of in given):
        what = type(given).__name__ if single else "one pair of arrays"
        raise DataError(
            f"clients: {what}; give one (x, y) for each client, in a list, or in a dict by name"
        )
    known = chain(owners, repeat("data of no client"))
    return [given_data(data, owner, dtypes) for owner, data in zip(known, given, strict=False)]


def _require_function(loss: object) -> None:
    if isinstance(loss, type) or not callable(loss):
        raise ConfigError(
            f"loss = {loss!r:.80}: must be a function of (outputs, targets), the mean over a "
            "batch, such as torch.nn.functional.cross_entropy or nn.BCEWithLogitsLoss()"
        )


def _require_several(name: str, given: object) -> None:
    if not hasattr(given, "__len__"):
        raise DataError(
            f"{name} is {type(given).__name__}; give one (x, y) for each client, in a list, or in "
            "a dict by name"
        )


def _names(clients: Mapping[str, Given]) -> tuple[str, ...]:
    for name in clients:
        if not isinstance(name, str) or not can_name_a_folder(name) or len(name) > MAX_NAME:
            raise ConfigError(
                f"clients: {name!r:.80} cannot name a client: take printable text of 1 to "
                f'{MAX_NAME} characters without "/"'
            )
    return tuple(clients)


def _in_order(tests: Mapping[str, Given], names: Sequence[str]) -> list[Given]:
    if tests.keys() != set(names):
        raise ConfigError(
            f"client_tests are of {', '.join(tests):.200}, and clients are "
            f"{', '.join(names) or 'without names':.200}: give both by the same names, or both as "
            "lists"
        )
    return [tests[name] for name in names]


def configured_task(config: Config) -> Task:
    """Build the data and the model that the settings name; ConfigError as `require_data_set`."""
    require_data_set(config)
    model, seed = config.model, config.run.seed
    dtype = getattr(torch, model.dtype)
    n_public = config.data.public or (N_PUBLIC if public_reader(config) else 0)
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


def with_metric(task: Task, config: Config) -> Task:
    """Return the task with the settings' metric, where these name one.

    Raises:
        ConfigError: the task has another.
    """
    named = config.run.metric
    if named is None or task.metric == named:
        return task
    if task.metric is not None:
        raise ConfigError(
            f"run.metric = {named!r}, and the task has the metric {loss_name(task.metric)}: leave "
            "one of them out"
        )
    return replace(task, metric=named)


def own_settings(config: Config, task: Task) -> Config:
    """Return the settings of a run on a user's own task: defaults of others name nothing in it."""
    config = config.with_choices(task.choices)
    algorithm = config.algorithm.name if task.algorithm is None else type(task.algorithm).__name__
    return config.of_own_task(algorithm, type(task.model).__name__)


def placed(task: Task, device: str | None) -> Task:
    """Return the task with its model on this device; as it is where None.

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
    """Return the loss of the settings' data, by the form of their targets."""
    return LOSSES[config.data.traits.targets]


def client_data(config: Config, task: Task) -> tuple[dict[str, Samples], int]:
    """Return each client's samples by name, and the batch size; centralised training unites them.

    Raises:
        ConfigError: too few clients for what is encrypted.
        DataError: data that cannot be used, or that the model and the loss do not take.
    """
    clients, batch_size = list(task.clients), config.train.batch_size
    if not clients:
        raise ConfigError("a task needs at least one client")
    names = client_names(config, task)
    if is_centralised(config, task):
        batch_size *= len(clients)
        names, clients = numbered(1), [_union(clients)]
    data = {name: samples(of, name) for name, of in zip(names, clients, strict=True)}
    if task.algorithm is None:  # what that one does with samples, it alone knows
        data = labelled(data, tried(task.model, task.loss, data), task.loss)
    return data, batch_size


def is_centralised(config: Config, task: Task) -> bool:
    """Return whether one party trains on all clients' data."""
    return config.algorithm.joins_data and task.algorithm is None


def client_names(config: Config, task: Task) -> tuple[str, ...]:
    """Return each client's name, in the order of the task's clients: the task's or the settings'.

    Raises:
        ConfigError: not one for each, or both have names, and others.
    """
    n = len(task.clients)
    names = tuple(task.names) or config.data.names
    if not names:
        return numbered(n)
    if config.data.names and config.data.names != names:
        raise ConfigError(
            "the task and data.names name other clients: leave one of them out, or name the same "
            "clients in the same order"
        )
    if len(names) != n or len({*names, SERVER, AUTHORITY}) != n + 2:
        where = "the task's names" if task.names else "data.names"
        wrong = sorted({m for m in names if names.count(m) > 1 or m in {SERVER, AUTHORITY}})
        found = f"{', '.join(map(repr, wrong)):.200} in {where}"
        if not wrong:
            found = f"{where}: {len(names)} names, and there are {n} clients"
        raise ConfigError(
            f"{found}: name each client once, and none {SERVER!r} or {AUTHORITY!r}, whose messages "
            "the ledger has under these names"
        )
    return names


def _union(clients: Sequence[ClientData]) -> ClientData:
    pairs = [data for data in clients if isinstance(data, tuple)]
    if len(pairs) == len(clients):
        return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    return ConcatDataset([TensorDataset(*d) if isinstance(d, tuple) else d for d in clients])
