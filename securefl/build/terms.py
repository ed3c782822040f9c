"""What all parties of a run must see alike: local training, what is sealed, how clients count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from securefl.algorithms.base import Algorithm, Loss, Sgd, averaged_tensors
from securefl.build.algorithm import n_selected
from securefl.config.schema import Config, Encrypt, Weights
from securefl.data.samples import Samples
from securefl.errors import ConfigError
from securefl.exchange.policy import OpeningRule, Policy
from securefl.federation.training import Schedule, Training
from securefl.types import Floats, Kind

SEALED: dict[Encrypt, set[Kind]] = {
    Encrypt.STATISTICS: {Kind.STATISTICS, Kind.GRADIENTS, Kind.CLIPPING},
    Encrypt.PROFILES: {Kind.PROFILES},
    Encrypt.MODEL: set(Kind) - {Kind.SELECTION},
}


def precision_of(model: nn.Module) -> Floats:
    """The precision in which a model's values travel in the clear: its own."""
    parameters = averaged_tensors(model)[Kind.PARAMETERS]
    return "float64" if next(iter(parameters.values())).dtype is torch.float64 else "float32"


def sealed_kinds(config: Config) -> frozenset[Kind]:
    """The kinds that travel as ciphertext."""
    return frozenset[Kind]().union(*(SEALED[part] for part in config.exchange.encrypt))


def policy_of(config: Config, consortium: Policy | None) -> Policy:
    """What the authority enforces: the consortium's policy, and never less than the settings ask.

    Where there is no consortium, the settings are all there is.
    """
    exchange = config.exchange
    policy = consortium or Policy(rules=(OpeningRule("*", exchange.precision_bits),))
    rules = (
        replace(rule, precision_bits=min(rule.precision_bits, exchange.precision_bits))
        for rule in policy.rules
    )
    least = max(policy.min_contributions, exchange.min_clients)
    return replace(policy, min_contributions=least, rules=tuple(rules))


def least_clients(config: Config) -> int:
    """Contributions without which a round comes to nothing.

    Where any sum is sealed, exchange.min_clients holds for all: with fewer, each client could work
    out the others' values from a total. Where none is, the server reads them anyway.
    """
    return config.exchange.min_clients if config.exchange.seals_sums else 1


def noise_seed(config: Config) -> int | None:
    """Of the noise on opened sums; None where nobody can repeat it."""
    return config.run.seed if config.run.reproducible else None


def score_seed(config: Config) -> int | None:
    """Of the noise on opened scores, which may be what hides clients (`privacy.noise`)."""
    private = config.privacy.level == "client" and config.privacy.noise == "secret"
    return None if private else noise_seed(config)


def check_reproducible(seed: int | None, given: int | None) -> None:
    """Raise ConfigError where seeded noise is asked for, and keys are given that have none."""
    if seed is not None and given is None:
        raise ConfigError(
            "run.reproducible = true under keys that are given: they outlive the run, and noise "
            "from a seed would hide nothing of them; leave out --keys, or run.reproducible"
        )


def check_sealed(config: Config, algorithm: Algorithm, model: nn.Module, n_clients: int) -> None:
    """Raise ConfigError where nothing would be encrypted, or where no total could be opened."""
    exchange, least = config.exchange, config.exchange.min_clients
    if Encrypt.STATISTICS in exchange.encrypt and Encrypt.MODEL not in exchange.encrypt:
        plan = algorithm.plan(algorithm.init(model), model)
        if not SEALED[Encrypt.STATISTICS] & {spec.kind for spec in (*plan.sums, *plan.update)}:
            raise ConfigError(
                'exchange.encrypt = "statistics", and a model without BN (or one whose statistics '
                "come from privacy.warm_up) has none to send: nothing would be encrypted; set "
                'exchange.encrypt = "none", or "model"'
            )
    n, found = n_selected(config, n_clients), f"{n_clients} clients"
    if config.selection.name != "all":
        found = f"selection.fraction = {config.selection.fraction} of {found} are {n} in a round"
    if exchange.seals_sums and n < least:
        raise ConfigError(
            f"{found}: the authority opens totals of at least exchange.min_clients = {least}; "
            'have more clients, or select more of them, or set exchange.encrypt = "none"'
        )


def training_of(config: Config, loss: Loss, batch_size: int) -> Training:
    """The settings of local training."""
    table = config.algorithm
    return Training(
        loss,
        schedule(config),
        table.local_steps,
        batch_size,
        config.run.seed,
        table.local_epochs,
        torch.bfloat16 if config.train.precision == "bfloat16" else None,
        config.run.threads,
    )


def check_precision(config: Config, model: nn.Module) -> None:
    """Raise ConfigError where local steps cannot have the precision asked for."""
    if config.train.precision == "bfloat16" and precision_of(model) == "float64":
        raise ConfigError(
            'train.precision = "bfloat16" with a model of float64: autocast leaves doubles as they '
            'are; set model.dtype = "float32", or leave train.precision out'
        )


def schedule(config: Config) -> Schedule:
    """How a local step is taken, by rounds completed."""
    train = config.train
    drops_at = tuple(config.rounds_in(share) for share in config.lr_drops)
    first = Sgd(train.lr, train.momentum, train.weight_decay)
    return Schedule(first, drops_at, train.lr_drop_factor, train.lr_decay)


def rate_said(config: Config) -> str:
    """Returns in words how the learning rate changes over the run."""
    train = config.train
    drops = [config.rounds_in(share) for share in config.lr_drops]
    said = f"{train.lr:g}"
    if drops:
        said += f", times {train.lr_drop_factor:g} after round {' and '.join(map(str, drops))}"
    elif train.lr_drops is None:
        said += f" to the end: {config.run.rounds} rounds are too few to drop it (train.lr_drops)"
    return said if train.lr_decay == 1 else f"{said}, times {train.lr_decay:g} after each round"


def client_weights(
    config: Config, data: Mapping[str, Samples], batch_size: int
) -> dict[str, float]:
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
    if config.selection.replacement == "with":  # one client may count as often as clients are drawn
        bound *= _next_power_of_two(n_selected(config, len(sizes)))
    return {name: size / bound for name, size in sizes.items()}


def equal_weight(n_clients: int) -> float:
    """Of every client where all count alike."""
    return 1 / _next_power_of_two(n_clients)


def _next_power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
