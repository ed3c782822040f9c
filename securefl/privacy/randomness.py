"""Randomness of a client's noise and of its Poisson samples.

Whoever knows them takes the noise off again, so they come from the operating system; a seed is for
experiments that must be repeated, and protects nobody.
"""

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
    """Random draws of one client, in one round."""

    def gaussian(self, size: int, deviation: float) -> Values:
        """Draw independently with mean zero, shape (size,)."""

    def uniform(self, size: int) -> Values:
        """Draw independently from [0, 1), shape (size,)."""

    def layer_seed(self) -> int:
        """Draw a seed for layers such as Dropout: masks that others know couple records."""


@final
class Secret:
    """Draws of the operating system; no seed gives them again."""

    def gaussian(self, size: int, deviation: float) -> Values:
        """Draw as `exchange.gaussian`."""
        return gaussian(size, deviation)

    def uniform(self, size: int) -> Values:
        """Draw from 53 random bits each."""
        words = np.frombuffer(os.urandom(8 * size), np.uint64)
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def layer_seed(self) -> int:
        """Draw another seed each time."""
        return int.from_bytes(os.urandom(7), "little")


@final
class Seeded:
    """Draws that are the same for the same generator: for experiments alone."""

    def __init__(self, rng: torch.Generator) -> None:
        """Take `rng`, the client's own for the round, on the CPU."""
        seed = torch.randint(2**62, (), generator=rng).item()
        self._rng = np.random.default_rng(int(seed))
        # A generator of their own, so that how often layers draw does not move the noise.
        self._layers = np.random.default_rng([1, int(seed)])

    def gaussian(self, size: int, deviation: float) -> Values:
        """Draw by NumPy's generator."""
        return self._rng.normal(0.0, deviation, size) if deviation else np.zeros(size)

    def uniform(self, size: int) -> Values:
        """Draw by NumPy's generator."""
        return self._rng.random(size)

    def layer_seed(self) -> int:
        """Return the next seed; the other draws do not depend on it."""
        return int(self._layers.integers(2**56))


def noisy(value: Tensor, randomness: Randomness, deviation: float) -> Tensor:
    """Return the value with noise on each element, drawn in double and added in its own type."""
    noise = torch.from_numpy(randomness.gaussian(value.numel(), deviation))
    return value + noise.reshape(value.shape).to(value)


RandomnessOf = Callable[[torch.Generator], Randomness]
"""Randomness of a client in a round, from its generator of that round: `Seeded`, or `secret`."""


def secret(rng: torch.Generator) -> Secret:
    """Return the operating system's randomness, whatever the generator."""
    del rng
    return Secret()


def randomness_of(noise: str) -> RandomnessOf:
    """Return the source of all of a client's noise, by the setting `privacy.noise`."""
    return Seeded if noise == "seeded" else secret
