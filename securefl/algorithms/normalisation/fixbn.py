"""FixBN (Zhong, Chen, Chao, "Making Batch Normalization Great in Federated Deep Learning", Alg. 1).

Stage I, rounds 1..T*: FedAvg with BN. Stage II: the global running statistics are frozen and
normalise every batch; all else learns on. It needs the learning rate to drop by then.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from securefl.algorithms.normalisation.policy import RoundNorm, required_layers
from securefl.algorithms.normalisation.window import Window
from securefl.norms.frozen import Freeze
from securefl.types import State


@dataclass(frozen=True, slots=True)
class FixBN:
    """T* as a round, or as the window rule that finds it; and what is frozen then (Table H)."""

    switch: int | Window
    freeze: Freeze = Freeze.STATISTICS

    def __call__(self, state: State, model: nn.Module) -> RoundNorm:
        """FedAvg's round, or a frozen one; DataError where the model has no BN."""
        required_layers(model, "FixBN")
        if isinstance(self.switch, Window):
            # Frozen rounds send no variation: once settled, the state says so for ever.
            if self.switch.settled(state):
                return RoundNorm(freeze=self.freeze, layers_alone=True)
            return RoundNorm(window=self.switch, layers_alone=True)
        freeze = self.freeze if state.round >= self.switch else None
        return RoundNorm(freeze=freeze, layers_alone=True)
