"""What every client of a run does alike, and where its randomness comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from securefl.algorithms.base import Loss, Sgd
from securefl.data.samples import Samples, batches_in_epoch

SELECTION, DROPOUT, DEVICES = 2**31, 2**31 + 1, 2**31 + 2
"""In the place of a client's number: what the server draws."""
PROFILING = 2**32
"""Added to a client's number: its noise on what it is asked before a round."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The settings of SGD by the number of rounds completed."""

    first: Sgd
    drops_at: tuple[int, ...]
    """After so many rounds the learning rate drops."""
    drop_factor: float
    decay: float
    """By which it is multiplied after each round."""

    def __call__(self, rounds_done: int) -> Sgd:
        """Of the round that is next."""
        drops = sum(rounds_done >= done for done in self.drops_at)
        lr = self.first.lr * self.drop_factor**drops * self.decay**rounds_done
        return replace(self.first, lr=lr)


@dataclass(frozen=True, slots=True)
class Training:
    """The settings of local training."""

    loss: Loss
    sgd: Callable[[int], Sgd]
    """By the number of rounds completed."""
    local_steps: int
    batch_size: int
    seed: int
    local_epochs: int | None = None
    """Passes over a client's own data, in the place of `local_steps`."""
    autocast: torch.dtype | None = None
    """What layers compute in, where that is not the model's own precision."""
    threads: int | None = None
    """Of torch, in each process that trains; as many as it takes by itself where None."""

    def steps(self, data: Samples) -> int:
        """How many local steps a client with these data takes."""
        if self.local_epochs is None:
            return self.local_steps
        return self.local_epochs * batches_in_epoch(data, self.batch_size)


def round_generator(seed: int, round_number: int, drawer: int) -> torch.Generator:
    """The randomness of one client's round, or of a draw; independent of who else takes part."""
    words = np.random.SeedSequence([seed, round_number, drawer]).generate_state(2, np.uint32)
    return torch.Generator().manual_seed(int(words[0]) << 32 | int(words[1]))
