"""Where a client's noise and its Poisson samples come from.

Whoever knows them takes the noise off again, so they come from the operating system; a seed is for
experiments that must be repeated, and protects nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol, final, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from securefl.exchange.noise import gaussian
from securefl.exchange.sums import Values


@runtime_checkable
class Randomness(Protocol):
    """One client's, in one round."""

    def gaussian(self, size: int, deviation: float) -> Values:
        """Independent draws of mean zero, shape (size,)."""

    def uniform(self, size: int) -> Values:
        """Independent draws from [0, 1), shape (size,)."""

    def layer_seed(self) -> int:
        """For layers that draw, such as Dropout: masks that others know couple records."""


@final
class Secret:
    """The operating system's; no seed gives it again."""

    def gaussian(self, size: int, deviation: float) -> Values:
        """As `exchange.gaussian`."""
        return gaussian(size, deviation)

    def uniform(self, size: int) -> Values:
        """Of 53 random bits each."""
        words = np.frombuffer(os.urandom(8 * size), np.uint64)
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def layer_seed(self) -> int:
        """Another each time."""
        return int.from_bytes(os.urandom(7), "little")


@final
class Seeded:
    """The same draws again for the same generator: for experiments alone."""

    def __init__(self, rng: torch.Generator) -> None:
        """`rng` is the client's own for the round, on the CPU."""
        seed = torch.randint(2**62, (), generator=rng).item()
        self._rng = np.random.default_rng(int(seed))
        self._layers = np.random.default_rng([1, int(seed)])

    def gaussian(self, size: int, deviation: float) -> Values:
        """By NumPy's generator."""
        return self._rng.normal(0.0, deviation, size) if deviation else np.zeros(size)

    def uniform(self, size: int) -> Values:
        """By NumPy's generator."""
        return self._rng.random(size)

    def layer_seed(self) -> int:
        """The next one; the other draws do not depend on it."""
        return int(self._layers.integers(2**56))


def noisy(value: Tensor, randomness: Randomness, deviation: float) -> Tensor:
    """With noise of its own on each element: drawn in double precision, added in the value's."""
    noise = torch.from_numpy(randomness.gaussian(value.numel(), deviation))
    return value + noise.reshape(value.shape).to(value)


RandomnessOf = Callable[[torch.Generator], Randomness]
"""A client's in a round, from its generator of that round: `Seeded`, or `secret`."""


def secret(rng: torch.Generator) -> Secret:
    """The operating system's, whatever the generator."""
    del rng
    return Secret()
