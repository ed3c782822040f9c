"""Sizes of clients: equal, normal, or with one class that dominates.

Wu et al., "FedProf", section 5.1: about 60 % (EMNIST) or 37 % (CIFAR-10) of a client's samples.
Arrays end with their axes: C classes, K clients.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from securefl.errors import ConfigError

MIN_SAMPLES = 2  # batch normalisation has no variance to offer for a batch of one
_LEAST = 0.1


@dataclass(frozen=True, slots=True)
class NormalSizes:
    """Clients' sizes drawn from N(m, (share · m)²), m their mean; classes are mixed.

    Wu et al., "FedProf", Table 2: GasTurbine's are N(514, 101²), a share of 0.1965.

    Raises:
        ConfigError: `share` is not between 0 and 1.
    """

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ConfigError(
                f'partition = "{self}": the deviation must be a share of the mean size, between 0 '
                'and 1; write "sizes:0.2" for a fifth of it, "iid" for equal sizes'
            )

    def __str__(self) -> str:
        return f"sizes:{float(self.share)!r}"


def check_enough(n_samples: int, n_clients: int) -> None:
    """Refuse clients that would get fewer than two samples; raises ConfigError."""
    if n_clients < 1:
        raise ConfigError(f"clients = {n_clients}: must be at least 1")
    if n_samples < MIN_SAMPLES * n_clients:
        raise ConfigError(
            f"clients = {n_clients}: {n_samples} samples do not give each client "
            f"{MIN_SAMPLES}; have at most {n_samples // MIN_SAMPLES} clients, or more samples"
        )


def equal_sizes(n_samples: int, n_holders: int) -> Int64[np.ndarray, " holders"]:
    """Return sizes that differ by one at most; the first holders get the larger ones."""
    gets_one_more = np.arange(n_holders) < n_samples % n_holders
    sizes: Int64[np.ndarray, " holders"] = n_samples // n_holders + gets_one_more.astype(np.int64)
    return sizes


def normal_sizes(
    n_samples: int, n_clients: int, partition: NormalSizes, rng: np.random.Generator
) -> Int64[np.ndarray, " clients"]:
    """Return sizes in proportion to normal draws; they sum to `n_samples`, two or more each.

    A draw below a tenth of the mean (of GasTurbine's one in 400 000) counts as that tenth.

    Raises:
        ConfigError: too few samples for two each.
    """
    check_enough(n_samples, n_clients)
    drawn = np.maximum(rng.normal(1, partition.share, n_clients), _LEAST)
    ends = np.floor(drawn.cumsum() / drawn.sum() * n_samples).astype(np.int64)
    ends[-1] = n_samples
    sizes: Int64[np.ndarray, " clients"] = np.diff(ends, prepend=0)
    while sizes.min() < MIN_SAMPLES:
        sizes[sizes.argmin()] += 1
        sizes[sizes.argmax()] -= 1
    return sizes


_BALANCING_STEPS = 500
_EMPTY = 1e-9  # of a sample; in the place of a sum of nothing
_MIN_SIZE = 8  # of fewer samples no share is of one class, once they are whole


@dataclass(frozen=True, slots=True)
class Dominant:
    """Clients of equal size, each with `share` of its samples of one class; classes take turns.

    Raises:
        ConfigError: `share` is not between 0 and 1.
    """

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ConfigError(
                f'partition = "{self}": the share must be between 0 and 1; write "dominant:0.6" '
                "for three fifths of a client's samples"
            )

    def __str__(self) -> str:
        return f"dominant:{float(self.share)!r}"


def dominant_sizes(
    sizes_C: Int64[np.ndarray, " C"], n_clients: int, partition: Dominant
) -> Int64[np.ndarray, "C K"]:
    """Return how many samples of each class every client holds; all are dealt.

    A client's size and its dominant class are rounded to within one sample for each class.

    Raises:
        ConfigError: the classes have too few samples, or are too few, for such shares.
    """
    client = np.arange(n_clients)
    own = client % len(sizes_C)
    size = sizes_C.sum() / n_clients
    fixed_CK = np.zeros((len(sizes_C), n_clients))
    fixed_CK[own, client] = partition.share * size
    left_C = sizes_C - fixed_CK.sum(axis=1)
    rest_CK = _balanced(left_C, np.full(n_clients, (1 - partition.share) * size), fixed_CK == 0)
    if rest_CK is None or size < _MIN_SIZE:
        raise ConfigError(
            f'partition = "{partition}": classes of {sizes_C.min()} to {sizes_C.max()} samples '
            f"cannot dominate {n_clients} clients of {size:.0f} each; take a smaller share, or a "
            f"multiple of {len(sizes_C)} clients, of {_MIN_SIZE} samples or more"
        )
    ends_CK = np.floor((fixed_CK + rest_CK).cumsum(axis=1) + 0.5).astype(np.int64)
    ends_CK[:, -1] = sizes_C  # rounding must not lose a class's last sample
    sizes_CK: Int64[np.ndarray, "C K"] = np.diff(ends_CK, axis=1, prepend=0)
    return sizes_CK


def _balanced(
    rows_C: Float64[np.ndarray, " C"],
    columns_K: Float64[np.ndarray, " K"],
    allowed_CK: np.ndarray,
) -> Float64[np.ndarray, "C K"] | None:
    """Return allowed entries with these sums of rows and columns, by scaling in turns, or None."""
    if rows_C.min() < 0:
        return None
    # Iterative proportional fitting: rows, then columns, are scaled to their sums.
    x_CK = allowed_CK.astype(np.float64)
    for _ in range(_BALANCING_STEPS):
        x_CK *= (rows_C / np.maximum(x_CK.sum(axis=1), _EMPTY))[:, None]
        x_CK *= columns_K / np.maximum(x_CK.sum(axis=0), _EMPTY)
    close = np.abs(x_CK.sum(axis=1) - rows_C).max() < 0.5
    return x_CK if close else None
