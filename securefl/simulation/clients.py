"""A run's simulated clients, and the work of each one's round."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from securefl.algorithms.algorithm import Algorithm, Loss, Replay, Work
from securefl.data.samples import Samples, minibatches
from securefl.federation.training import Training, round_generator
from securefl.simulation.graphed import may_be_captured
from securefl.types import ClientState, State

if TYPE_CHECKING:
    from securefl.simulation.workspace import Workspace


@dataclass(frozen=True, slots=True, eq=False)
class Clients:
    """All clients of a run. Each has a model only while it trains."""

    algorithm: Algorithm
    model: nn.Module
    """Model before the first round; it does not change."""
    data: Mapping[str, Samples]
    training: Training
    index: Mapping[str, int]
    """Numbers of clients among all of the run, for their randomness."""

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.model.parameters()).device

    def casting(self) -> AbstractContextManager[object]:
        """Return a context in which layers compute in the precision asked for."""
        dtype = self.training.autocast
        if dtype is None:
            return nullcontext()
        # Weights change between the forward passes within, so that no cast of one is kept.
        return torch.autocast(self.device.type, dtype, cache_enabled=False)

    def replay(self, workspace: Workspace, loss: Loss) -> Replay | None:
        """Return the replay of passes of a workspace's model; None where none is captured.

        Args:
            workspace: whose model trains.
            loss: made of the run's loss, and equal in all calls for this workspace.
        """
        if self.device.type != "cuda" or not may_be_captured(self.training.loss):
            return None
        return workspace.replay(loss)

    def work(
        self,
        name: str,
        state: State,
        workspace: Workspace,
        client_state: ClientState,
        replay: Replay | None = None,
    ) -> Work:
        """Build this client's work of the round after `state`, on the model of `workspace`."""
        workspace.load(state)
        training, data = self.training, self.data[name]
        rng = round_generator(training.seed, state.round, self.index[name])
        return Work(
            workspace.model,
            data,
            minibatches(data, training.batch_size, rng, self.device),
            training.steps(data),
            training.loss,
            training.sgd(state.round),
            client_state,
            rng,
            replay,
        )
