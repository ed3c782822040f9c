"""BN that is averaged like all else (FedTAN, Eqs. (5), (6)), or trained in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from securefl.settings.axes import Normalisation
from securefl.types import State

if TYPE_CHECKING:
    from torch import nn

    from securefl.algorithms.normalisation.policy import Policy, RoundNorm


class FedAvg(Normalisation):
    """Statistics, scale and shift are averaged like weights."""

    name: Literal["fedavg"] = "fedavg"

    def build(self, rounds: int) -> Policy:
        """See `Normalisation`."""
        del rounds
        return aggregated


class Centralised(Normalisation):
    """One model is trained on all data in one place: FedAvg of one client that has everything."""

    name: Literal["centralised"] = "centralised"
    joins_data: ClassVar[bool] = True

    def build(self, rounds: int) -> Policy:
        """See `Normalisation`."""
        del rounds
        return aggregated


def aggregated(state: State, model: nn.Module) -> RoundNorm:
    """Average statistics, scale and shift like weights.

    FedAvg's policy, and the only one for a model without BN.
    """
    from securefl.algorithms.normalisation.policy import RoundNorm

    del state, model
    return RoundNorm()
