"""Partition of samples into clients: mixed, by class, or by Dirichlet draws.

Arrays end with their axes: C classes, K clients, P piles that are dealt one by one.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped

from securefl.data.sizes import (
    MIN_SAMPLES,
    Dominant,
    NormalSizes,
    check_enough,
    dominant_sizes,
    equal_sizes,
    normal_sizes,
)
from securefl.errors import ConfigError

DIRICHLET_TRIES = 1000

_FORMS = (
    '"iid", "sizes:0.2", "classes:2", "dominant:0.6", "dirichlet:0.5", "quantity:0.5" or '
    '"label-quantity:0.5"'
)


@dataclass(frozen=True, slots=True)
class Iid:
    """Equal shares of the shuffled samples for all clients."""

    def __str__(self) -> str:
        return "iid"


@dataclass(frozen=True, slots=True)
class ClassesPerClient:
    """Partition in which every client holds `k` neighbouring classes (FedTAN, appendix D).

    Raises:
        ConfigError: `k` is below 1.
    """

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(
                f'partition = "{self}": a client holds at least 1 class; '
                'write "classes:2" for two classes per client'
            )

    def __str__(self) -> str:
        return f"classes:{self.k}"


@dataclass(frozen=True, slots=True)
class Dirichlet:
    """Partition of every class in shares drawn from Dir(alpha); a small alpha is a strong skew.

    Raises:
        ConfigError: `alpha` is not a finite number above 0.
    """

    alpha: float

    def __post_init__(self) -> None:
        _check_alpha(self)

    def __str__(self) -> str:
        return "dirichlet:" + _number(self.alpha)


@dataclass(frozen=True, slots=True)
class QuantitySkew:
    """Shares of all samples drawn from Dir(alpha), with every class in equal shares.

    Hu, Qiu & Tang, FNR-FL, section 4.3. Equal to the sample: rounding moves one of a class at most.

    Raises:
        ConfigError: `alpha` is not a finite number above 0.
    """

    alpha: float

    def __post_init__(self) -> None:
        _check_alpha(self)

    def __str__(self) -> str:
        return "quantity:" + _number(self.alpha)


@dataclass(frozen=True, slots=True)
class LabelQuantitySkew:
    """Partition of different sizes and classes, both by Dirichlet draws of one alpha.

    Sizes q ~ Dir(alpha) for K clients, then every class in shares drawn from Dir(alpha K q). A
    client's expected size is its drawn one, and equal sizes would give `Dirichlet(alpha)`. The
    FNR-FL paper mixes the two skews (section 6.3) and does not say how.

    Raises:
        ConfigError: `alpha` is not a finite number above 0.
    """

    alpha: float

    def __post_init__(self) -> None:
        _check_alpha(self)

    def __str__(self) -> str:
        return "label-quantity:" + _number(self.alpha)


DirichletSkew: TypeAlias = Dirichlet | QuantitySkew | LabelQuantitySkew
Partition: TypeAlias = Iid | NormalSizes | ClassesPerClient | Dominant | DirichletSkew

_BY_NUMBER: dict[str, Callable[[float], Partition]] = {
    "sizes": NormalSizes,
    "dominant": Dominant,
    "dirichlet": Dirichlet,
    "quantity": QuantitySkew,
    "label-quantity": LabelQuantitySkew,
}


def parse_partition(text: str) -> Partition:
    """Return the partition that `text` names; `str(partition)` gives the text back.

    Raises:
        ConfigError: `text` has none of the seven forms, or its number is out of range.
    """
    if text == "iid":
        return Iid()
    if found := re.fullmatch(r"classes:(-?[0-9]{1,9})", text):
        return ClassesPerClient(int(found[1]))
    if found := re.fullmatch(r"([a-z-]+):(-?[0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?)", text):
        partition = _BY_NUMBER.get(found[1])
        if partition:
            return partition(float(found[2]))
    raise ConfigError(f'partition = "{text}": must have the form {_FORMS}')


def _check_alpha(partition: DirichletSkew) -> None:
    if not (math.isfinite(partition.alpha) and partition.alpha > 0):
        form = str(partition).partition(":")[0]
        raise ConfigError(
            f'partition = "{partition}": alpha must be a finite number above 0; '
            f'write "{form}:0.5" for a strong skew, "{form}:100" for almost none'
        )


def _number(alpha: float) -> str:
    return repr(float(alpha)).removesuffix(".0")


def split_clients(
    labels: Shaped[np.ndarray, "samples ..."],
    n_clients: int,
    partition: Partition,
    rng: np.random.Generator,
) -> tuple[Int64[np.ndarray, " _"], ...]:
    """Return one ascending index array per client; every sample goes to exactly one client.

    A client gets at least two samples. Classes are the distinct values of `labels`, in ascending
    order; targets that are no whole numbers have none. The same labels and the same state of `rng`
    give the same split.

    Raises:
        ConfigError: the partition cannot be made of these samples for so many clients.
    """
    n_samples = len(labels)
    check_enough(n_samples, n_clients)
    if isinstance(partition, Iid):
        return _deal([np.arange(n_samples)], equal_sizes(n_samples, n_clients)[None], rng)
    if isinstance(partition, NormalSizes):
        sizes_K = normal_sizes(n_samples, n_clients, partition, rng)
        return _deal([np.arange(n_samples)], sizes_K[None], rng)
    if not np.issubdtype(labels.dtype, np.integer):
        raise ConfigError(
            f'partition = "{partition}": deals samples by class, and targets of {labels.dtype} '
            'have none; write "iid", or "sizes:0.2" for clients of unequal size'
        )

    classes, sizes_C = np.unique(labels, return_counts=True)
    if isinstance(partition, ClassesPerClient):
        sizes_CK = _sizes_by_class(sizes_C, n_clients, partition)
    elif isinstance(partition, Dominant):
        sizes_CK = dominant_sizes(sizes_C, n_clients, partition)
    else:
        sizes_CK = _sizes_by_dirichlet(sizes_C, n_clients, partition, rng)
    return _deal([np.flatnonzero(labels == name) for name in classes], sizes_CK, rng)


def _sizes_by_class(
    sizes_C: Int64[np.ndarray, " C"], n_clients: int, partition: ClassesPerClient
) -> Int64[np.ndarray, "C K"]:
    n_classes = len(sizes_C)
    if partition.k > n_classes:
        raise ConfigError(
            f'partition = "{partition}": the labels have only {n_classes} classes; '
            f'write "classes:{n_classes}" or fewer'
        )
    holds_CK = _held_classes(n_classes, n_clients, partition.k)
    if not holds_CK.any(axis=1).all():
        raise ConfigError(
            f'partition = "{partition}": {n_clients} clients leave some of {n_classes} classes '
            f'to nobody; write "classes:{math.ceil(n_classes / n_clients)}" or more, '
            f"or have at least {math.ceil(n_classes / partition.k)} clients"
        )
    sizes_CK = np.zeros(holds_CK.shape, dtype=np.int64)
    for size, holds_K, sizes_K in zip(sizes_C, holds_CK, sizes_CK, strict=True):
        sizes_K[holds_K] = equal_sizes(int(size), int(holds_K.sum()))
    if sizes_CK.sum(axis=0).min() < MIN_SAMPLES:
        raise ConfigError(
            f'partition = "{partition}": the classes are too small to give each of {n_clients} '
            f"clients {MIN_SAMPLES} samples; have fewer clients, or more classes per client"
        )
    return sizes_CK


def _held_classes(n_classes: int, n_clients: int, k: int) -> Bool[np.ndarray, "C K"]:
    # With ten classes and five clients, client i (from 1) starts at class 2(i-1) + 1: appendix D.
    first_K = np.arange(n_clients) * n_classes // n_clients
    held_CK: Bool[np.ndarray, "C K"] = (np.arange(n_classes)[:, None] - first_K) % n_classes < k
    return held_CK


def _sizes_by_dirichlet(
    sizes_C: Int64[np.ndarray, " C"],
    n_clients: int,
    partition: DirichletSkew,
    rng: np.random.Generator,
) -> Int64[np.ndarray, "C K"]:
    for _ in range(DIRICHLET_TRIES):
        shares_CK = _draw_shares(partition, len(sizes_C), n_clients, rng)
        ends_CK = (shares_CK.cumsum(axis=1) * sizes_C[:, None]).astype(np.int64)
        ends_CK[:, -1] = sizes_C  # rounding must not lose a class's last sample
        sizes_CK: Int64[np.ndarray, "C K"] = np.diff(ends_CK, axis=1, prepend=0)
        if sizes_CK.sum(axis=0).min() >= MIN_SAMPLES:
            return sizes_CK
    raise ConfigError(
        f'partition = "{partition}": {DIRICHLET_TRIES} draws left some of {n_clients} clients with '
        f"fewer than {MIN_SAMPLES} samples each; raise alpha, or have fewer clients"
    )


def _draw_shares(
    partition: DirichletSkew, n_classes: int, n_clients: int, rng: np.random.Generator
) -> Float64[np.ndarray, "C K"]:
    """Draw every client's share of every class; a class's shares sum to 1."""
    alpha_K = np.full(n_clients, partition.alpha)
    if isinstance(partition, Dirichlet):
        return rng.dirichlet(alpha_K, size=n_classes)
    size_K = rng.dirichlet(alpha_K)
    if isinstance(partition, QuantitySkew):
        return np.tile(size_K, (n_classes, 1))
    # A small alpha draws sizes that round to 0, which numpy takes for no concentration.
    concentration_K = np.maximum(partition.alpha * (n_clients * size_K), np.finfo(float).tiny)
    return rng.dirichlet(concentration_K, size=n_classes)


def _deal(
    piles: list[Int64[np.ndarray, " _"]],
    sizes_PK: Int64[np.ndarray, "P K"],
    rng: np.random.Generator,
) -> tuple[Int64[np.ndarray, " _"], ...]:
    """Shuffle each pile and cut it to `sizes_PK`; a client's cuts become one sorted array."""
    cuts_PK = [
        np.split(rng.permutation(pile), sizes_K.cumsum()[:-1])
        for pile, sizes_K in zip(piles, sizes_PK, strict=True)
    ]
    return tuple(np.sort(np.concatenate(cuts)) for cuts in zip(*cuts_PK, strict=True))
