"""Feature skew: every client's sensor adds noise of its own; alone or beside a partition.

Hu, Qiu & Tang, "Feature Norm Regularized Federated Learning", section 4.1. Label and quantity
skew are partitions: `Dirichlet`, `QuantitySkew`, `LabelQuantitySkew`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from securefl.data.partition import Partition, split_clients
from securefl.data.split import Labelled
from securefl.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True)
class FeatureNoise:
    """Sensor of one client: x' = x + mask ⊙ N(0, 1) · sigma + mean, Eq. (2).

    Raises:
        ConfigError: sigma below 0, mask_share outside [0, 1], or a number that is not finite.
    """

    sigma: float
    """Standard deviation of the noise, in the units of x; the paper takes 0.1 to 0.5."""

    mean: float = 0.0
    """Shift added to every value, masked or not."""

    mask_share: float = 1.0
    """Share of a sample's positions that get noise.

    The paper does not say which: they are drawn once per client and hold for all its samples, as
    broken pixels do.
    """

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise ConfigError(f"sigma = {self.sigma}: must be a finite number from 0 on")
        if not math.isfinite(self.mean):
            raise ConfigError(f"mean = {self.mean}: must be a finite number")
        if not 0 <= self.mask_share <= 1:
            raise ConfigError(
                f"mask_share = {self.mask_share}: must be in 0..1; 1 puts noise on every value"
            )


def noise_ladder(
    n_clients: int, sigma: float, mean: float = 0.0, mask_share: float = 1.0
) -> tuple[FeatureNoise, ...]:
    """Return noise that differs from client to client, in even steps.

    Client i of K has sigma · i / K (Li et al., "Federated Learning on Non-IID Data Silos", 2022:
    the last client has all of it) and a mean from -mean to +mean, so that the federation's own
    mean stays. A single client has `sigma` and mean 0.

    Raises:
        ConfigError: fewer than one client, or numbers that `FeatureNoise` refuses.
    """
    if n_clients < 1:
        raise ConfigError(f"n_clients = {n_clients}: must be at least 1")
    means = np.linspace(-mean, mean, n_clients) if n_clients > 1 else np.zeros(1)
    return tuple(
        FeatureNoise(sigma * i / n_clients, float(own_mean), mask_share)
        for i, own_mean in enumerate(means, start=1)
    )


def add_noise(
    x: Float[Tensor, "n ..."], noise: FeatureNoise, rng: np.random.Generator
) -> Float[Tensor, "n ..."]:
    """Return a copy of one client's samples with its noise; not clipped to the range of x.

    Raises:
        DataError: x has no floating-point values.
    """
    if not x.is_floating_point():
        raise DataError(f"inputs of {x.dtype} take no noise; convert them to float32 first")
    n_positions = math.prod(x.shape[1:])
    n_masked = round(noise.mask_share * n_positions)
    mask = (rng.permutation(n_positions) < n_masked).reshape(x.shape[1:])
    drawn = rng.standard_normal(tuple(x.shape)) * mask * noise.sigma + noise.mean
    return x + torch.from_numpy(drawn).to(x)


def skewed_clients(
    x: Float[Tensor, "n ..."],
    y: Shaped[Tensor, "n ..."],
    partition: Partition,
    noises: Sequence[FeatureNoise],
    rng: np.random.Generator,
) -> tuple[Labelled, ...]:
    """Return one client (x, y) per noise: the samples dealt to it, as its sensor sees them.

    `Iid` is feature skew alone, `Dirichlet` is the mix of label and feature skew.

    Raises:
        ConfigError: the partition cannot be made for so many clients.
        DataError: x and y differ in length, or x has no floating-point values.
    """
    if len(x) != len(y):
        raise DataError(f"{len(x)} inputs but {len(y)} labels")
    held_by_client = split_clients(y.numpy(force=True), len(noises), partition, rng)
    clients = []
    for held, noise in zip(held_by_client, noises, strict=True):
        index = torch.from_numpy(held)
        clients.append((add_noise(x[index], noise, rng), y[index]))
    return tuple(clients)
