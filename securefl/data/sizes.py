"""How many samples each client gets, where classes do not matter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from securefl.errors import ConfigError

MIN_SAMPLES = 2  # batch normalisation has no variance to offer for a batch of one
_LEAST = 0.1


@dataclass(frozen=True, slots=True)
class NormalSizes:
    """Clients' sizes are draws of N(m, (share · m)²), m their mean; classes are mixed.

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
    """Refuses clients that would get fewer than two samples; raises ConfigError."""
    if n_clients < 1:
        raise ConfigError(f"n_clients = {n_clients}: must be at least 1")
    if n_samples < MIN_SAMPLES * n_clients:
        raise ConfigError(
            f"n_clients = {n_clients}: {n_samples} samples do not give each client "
            f"{MIN_SAMPLES}; have at most {n_samples // MIN_SAMPLES} clients, or more samples"
        )


def equal_sizes(n_samples: int, n_holders: int) -> Int64[np.ndarray, " holders"]:
    """Sizes that differ by one at most; the first holders get the larger ones."""
    gets_one_more = np.arange(n_holders) < n_samples % n_holders
    sizes: Int64[np.ndarray, " holders"] = n_samples // n_holders + gets_one_more.astype(np.int64)
    return sizes


def normal_sizes(
    n_samples: int, n_clients: int, partition: NormalSizes, rng: np.random.Generator
) -> Int64[np.ndarray, " clients"]:
    """Sizes in proportion to normal draws; they sum to `n_samples`, two or more each.

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
