"""FedAvg (McMahan et al. 2017), as in FedTAN's Eqs. (5) and (6): BN statistics are averaged too.

Each client takes E steps of SGD from {w̄, S̄}; the server sets {w̄, S̄} = Σ p_i {w_i, S_i}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from securefl.algorithms.base import Work, averaged_tensors, snapshot
from securefl.algorithms.local import train
from securefl.exchange.base import Exchange
from securefl.types import Contribution, Kind, MessageSpec, State, Total


@dataclass(frozen=True, slots=True)
class FedAvg:
    """Average what the clients have trained."""

    def messages(self, model: nn.Module) -> Sequence[MessageSpec]:
        """None: a FedAvg client talks at the end of its round."""
        del model
        return ()

    def init(self, model: nn.Module) -> State:
        """{w̄, S̄} of the model as it is."""
        return State(0, snapshot(averaged_tensors(model)))

    def client(self, state: State, work: Work, exchange: Exchange) -> Contribution:
        """E local steps."""
        del state, exchange
        return train(work)

    def update(self, state: State, totals: Mapping[Kind, Total]) -> State:
        """{w̄, S̄} = Σ p_i {w_i, S_i}."""
        return averaged(state, totals)


def averaged(state: State, totals: Mapping[Kind, Total]) -> State:
    """The state after a round that ends in an average."""
    return State(state.round + 1, {kind: total.values for kind, total in totals.items()})
