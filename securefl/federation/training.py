"""Settings of local training, the same for every client of a run, and its sources of randomness."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from securefl.algorithms.algorithm import Loss, Sgd
from securefl.data.samples import Samples, batches_in_epoch

SELECTION, DROPOUT, DEVICES = 2**31, 2**31 + 1, 2**31 + 2
"""Numbers of the server's own draws, in the place of a client's number."""
PROFILING = 2**32
"""Offset of a client's number for the noise on its answers before a round."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Schedule of SGD's settings, a function of the number of rounds completed."""

    first: Sgd
    drops_at: tuple[int, ...]
    """Numbers of rounds after which the learning rate drops."""
    drop_factor: float
    decay: float
    """Factor of the learning rate after each round."""

    def __call__(self, rounds_done: int) -> Sgd:
        """Return the settings of the next round."""
        drops = sum(rounds_done >= done for done in self.drops_at)
        lr = self.first.lr * self.drop_factor**drops * self.decay**rounds_done
        return replace(self.first, lr=lr)


@dataclass(frozen=True, slots=True)
class Training:
    """Settings of local training."""

    loss: Loss
    sgd: Callable[[int], Sgd]
    """Settings of SGD, by the number of rounds completed."""
    local_steps: int
    batch_size: int
    seed: int
    local_epochs: int | None = None
    """Passes over a client's own data, in the place of `local_steps`."""
    autocast: torch.dtype | None = None
    """Precision that layers compute in; the model's own where None."""
    threads: int | None = None
    """Number of torch's threads in each process that trains; torch's default where None."""

    def steps(self, data: Samples) -> int:
        """Return the number of local steps of a client with these data."""
        if self.local_epochs is None:
            return self.local_steps
        return self.local_epochs * batches_in_epoch(data, self.batch_size)


def round_generator(seed: int, round_number: int, drawer: int) -> torch.Generator:
    """Return the generator of one client's round, or of a draw, independent of the others."""
    words = np.random.SeedSequence([seed, round_number, drawer]).generate_state(2, np.uint32)
    return torch.Generator().manual_seed(int(words[0]) << 32 | int(words[1]))
