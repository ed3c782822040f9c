"""FedTAN (Wang, Shi, Chang, "Why Batch Normalization Damage FL on Non-IID Data?", Algorithms 1-3).

Only the first of a client's E local steps differs from FedAvg: its BN layers use the mean and
variance of all clients' batches (Algorithm 2) and back-propagate the sum of all clients' gradients
with respect to them (Algorithm 3). With E = 1 a round is one step of centralised SGD on the union
of the batches. 3L + 1 exchanges a round for L BN layers, 2L + 1 with fused moments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from securefl.algorithms.base import Work, averaged_tensors, snapshot
from securefl.algorithms.fedavg import averaged
from securefl.algorithms.local import train
from securefl.errors import ConfigError, DataError
from securefl.exchange.base import Exchange
from securefl.exchange.moments import Gradients, Moments, moment_messages
from securefl.norms.find import batch_norm_layers
from securefl.norms.pooled import pooled_batch_norm
from securefl.types import Contribution, Kind, MessageSpec, State, Total


@dataclass(frozen=True, slots=True)
class FedTAN:
    """FedTAN; with `Gradients.OWN` the forward-only variant ("FedAvg + Algorithm 2").

    Raises:
        ConfigError: fused moments with each client's own gradients, which is no known method.
    """

    moments: Moments = Moments.TWO_PASS
    gradients: Gradients = Gradients.SHARED

    def __post_init__(self) -> None:
        if self.moments is Moments.FUSED and self.gradients is Gradients.OWN:
            raise ConfigError(
                'algorithm.moments = "fused" with algorithm.name = "forward-only": fused moments '
                'share their gradients; use "two-pass", or algorithm.name = "fedtan"'
            )

    def messages(self, model: nn.Module) -> Sequence[MessageSpec]:
        """The statistics of each BN layer and their gradients; DataError where there is none."""
        layers = batch_norm_layers(model)
        if not layers:
            raise DataError(
                "FedTAN needs batch normalisation and this model has none: use "
                'algorithm.name = "fedavg", or a model with BN layers (model.norm = "batch")'
            )
        return [
            spec
            for name, layer in layers.items()
            for spec in moment_messages(name, layer.num_features, self.moments, self.gradients)
        ]

    def init(self, model: nn.Module) -> State:
        """{w̄, S̄} of the model as it is."""
        return State(0, snapshot(averaged_tensors(model)))

    def client(self, state: State, work: Work, exchange: Exchange) -> Contribution:
        """One pooled step, then E - 1 ordinary ones."""
        del state
        return train(work, pooled_batch_norm(work.model, exchange, self.moments, self.gradients))

    def update(self, state: State, totals: Mapping[Kind, Total]) -> State:
        """{w̄, S̄} = Σ p_i {w_i, S_i}."""
        return averaged(state, totals)
