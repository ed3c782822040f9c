"""Training on public samples: a client's refinement, and the ablation where the server does it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from securefl.algorithms.algorithm import (
    Loss,
    Sgd,
    Work,
    averaged_tensors,
    copied,
    load_tensors,
    trained_parameters,
)
from securefl.algorithms.features import last_linear, observed_features
from securefl.algorithms.local_sgd import local_sgd
from securefl.data.samples import Samples, batches_in_epoch, minibatches
from securefl.errors import DataError
from securefl.exchange.sums import Exchange
from securefl.types import Contribution, Kind, Plan, State, Total

if TYPE_CHECKING:
    from securefl.algorithms.federated import Federated


Penalty = Callable[[Tensor, Tensor], Tensor]
"""J of a batch, from its features and labels."""


@dataclass(frozen=True, slots=True)
class PublicData:
    """Labelled samples that everybody has, and how one trains on them."""

    samples: Samples
    batch_size: int = 64
    epochs: int = 5
    """E_re."""
    seed: int = 0
    """Seed of the order of the batches, which is the same for all clients of a round."""

    def batches(self, round_number: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all epochs' batches of one round."""
        words = np.random.SeedSequence([self.seed, round_number]).generate_state(2, np.uint32)
        rng = torch.Generator().manual_seed(int(words[0]) << 32 | int(words[1]))
        n_batches = self.epochs * batches_in_epoch(self.samples, self.batch_size)
        return islice(minibatches(self.samples, self.batch_size, rng, device), n_batches)

    def check_labels(self, n_classes: int) -> None:
        """Raises DataError where a label is not one of so many classes."""
        _, y = self.samples.take(torch.arange(len(self.samples)))
        if y.is_floating_point() or not 0 <= int(y.min()) <= int(y.max()) < n_classes:
            raise DataError(f"public labels must be whole numbers in 0..{n_classes - 1}")


@dataclass(frozen=True, slots=True)
class Objective:
    """Φ = L + λ J  # Eq. (9)."""

    loss: Loss
    strength: float = 0.0
    """λ"""
    penalty: Penalty | None = None


def train_on_public(
    model: nn.Module, public: PublicData, round_number: int, sgd: Sgd, objective: Objective
) -> None:
    """Train by SGD from where the model is, in training mode; its momentum begins empty."""
    model.train()
    optimiser = local_sgd(trained_parameters(model).values(), sgd)
    device = next(model.parameters()).device
    with observed_features(model) as seen:
        for x, y in public.batches(round_number, device):
            optimiser.zero_grad()
            seen.clear()
            loss = objective.loss(model(x), y)
            if objective.penalty:
                loss = loss + objective.strength * objective.penalty(seen[-1], y)
            loss.backward()
            optimiser.step()


@dataclass(frozen=True, slots=True)
class ServerTuned:
    """FNR-FL's ablation: the server trains each round's average on the public set, and no client.

    The server sees no more than without it, the global model. What stays at the clients
    (client-specific BN) stays untrained by it, and frozen BN stays frozen.
    """

    inner: Federated
    public: PublicData
    model: nn.Module
    """Model of the architecture that is trained; copied, not changed."""
    loss: Loss
    sgd: Callable[[int], Sgd]
    """Settings of SGD by the number of rounds completed."""

    def init(self, model: nn.Module) -> State:
        """Return the inner one's state."""
        return self.inner.init(model)

    def plan(self, state: State, model: nn.Module) -> Plan:
        """Return the inner one's plan.

        Raises:
            DataError: the model has no last linear layer, or fewer outputs than public classes.
        """
        self.public.check_labels(last_linear(model).out_features)
        return self.inner.plan(state, model)

    def client(self, state: State, work: Work, exchange: Exchange) -> Contribution:
        """Return the inner one's contribution."""
        return self.inner.client(state, work, exchange)

    def update(self, state: State, totals: Mapping[Kind, Total]) -> State:
        """Train on public samples what travelled."""
        reached = self.inner.update(state, totals)
        model = copy.deepcopy(self.model)
        load_tensors(model, reached)
        norm = self.inner.normalisation(state, model)
        with norm.more_training(model):
            train_on_public(
                model, self.public, state.round, self.sgd(state.round), Objective(self.loss)
            )
        tensors = dict(reached.tensors)
        for kind, named in averaged_tensors(model).items():
            if kind in totals:
                new = {name: v for name, v in named.items() if name in totals[kind].values}
                tensors[kind] = {**tensors[kind], **copied(new)}
        return State(reached.round, tensors, reached.private)
