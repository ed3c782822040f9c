"""Algorithm and local training by the settings: a choice on each axis, steps, rates, weights."""

from collections.abc import Mapping

import torch
from torch import nn

from securefl.algorithms.algorithm import Loss, Sgd, averaged_tensors
from securefl.errors import ConfigError
from securefl.federation.training import Schedule, Training
from securefl.settings.axes import Weights
from securefl.settings.tables import FEWEST_ROUNDS_WITH_DROPS, Config
from securefl.types import Floats, Kind


def divergence_advice(config: Config, rounds_done: int) -> str:
    """Return why these settings may have diverged after so many rounds, and a remedy."""
    if config.algorithm.frozen is None:
        return ""
    switch = config.algorithm.switch_round(config.run.rounds)
    if switch is not None and rounds_done < switch:
        return ""
    return (
        f". {config.algorithm.name} has frozen BN: nothing rescales activations any more, so a "
        f"learning rate that BN bore is too large now. Let it drop when BN is frozen, for example "
        "train.lr_drops = [0.5, 0.75] with algorithm.switch = 0.5"
    )


def training_of(config: Config, loss: Loss, batch_size: int) -> Training:
    """Build the settings of local training."""
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


def schedule(config: Config) -> Schedule:
    """Build the schedule of local steps, by rounds completed."""
    train = config.train
    drops_at = tuple(config.rounds_in(share) for share in config.lr_drops)
    first = Sgd(train.lr, train.momentum, train.weight_decay)
    return Schedule(first, drops_at, train.lr_drop_factor, train.lr_decay)


def rate_said(config: Config) -> str:
    """Describe how the learning rate changes over the run."""
    train, n = config.train, config.run.rounds
    drops = [config.rounds_in(share) for share in config.lr_drops]
    said = f"{train.lr:g}"
    if drops:
        said += f", times {train.lr_drop_factor:g} after round {' and '.join(map(str, drops))}"
        if train.lr_drops is None and n < FEWEST_ROUNDS_WITH_DROPS:
            said += ", as BN at rest diverges at a large rate"
    elif train.lr_drops is None:
        are = "round is" if n == 1 else "rounds are"
        said += f" to the end: {n} {are} too few to drop it (train.lr_drops)"
    return said if train.lr_decay == 1 else f"{said}, times {train.lr_decay:g} after each round"


def client_weights(
    config: Config, n_samples: Mapping[str, int | None], batch_size: int
) -> dict[str, float]:
    """Return each client's weight: its size over a power of two that bounds the sum of sizes.

    The bound is public, and reveals no more of the sizes than the magnitude of their sum. Where
    sites bring their own data, the settings have it, and a client whose number of samples is None
    weighs as much as any may.
    """
    most = config.samples.most if config.samples else 0
    known = {name: most if n is None else n for name, n in n_samples.items()}
    match config.algorithm.weights:
        case Weights.SAMPLES:
            sizes = known
        case Weights.BATCH:
            sizes, most = {name: min(batch_size, n) for name, n in known.items()}, batch_size
        case Weights.UNIFORM:
            sizes, most = dict.fromkeys(known, 1), 1
    bound = _next_power_of_two(most * len(sizes) if config.samples else sum(sizes.values()))
    if config.selection.repeats:  # one client may count as often as clients are drawn
        bound *= _next_power_of_two(config.selection.n_selected(len(sizes)))
    return {name: size / bound for name, size in sizes.items()}


def equal_weight(n_clients: int) -> float:
    """Return the weight of every client where all count alike."""
    return 1 / _next_power_of_two(n_clients)


def precision_of(model: nn.Module) -> Floats:
    """Return the precision in which a model's values travel in the clear: its own."""
    parameters = averaged_tensors(model)[Kind.PARAMETERS]
    return "float64" if next(iter(parameters.values())).dtype is torch.float64 else "float32"


def check_precision(config: Config, model: nn.Module) -> None:
    """Raise ConfigError where local steps cannot have the precision asked for."""
    if config.train.precision == "bfloat16" and precision_of(model) == "float64":
        raise ConfigError(
            'train.precision = "bfloat16" with a model of float64: autocast leaves doubles as they '
            'are; set model.dtype = "float32", or leave train.precision out'
        )


def _next_power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
