"""FedTAN (Wang, Shi, Chang, "Why Batch Normalization Damage FL on Non-IID Data?", Algorithms 1-3).

Only the first of a client's E local steps differs from FedAvg: its BN layers use the mean and
variance of all clients' batches (Algorithm 2) and back-propagate the sum of all clients' gradients
with respect to them (Algorithm 3). With E = 1 a round is one step of centralised SGD on the union
of the batches. 3L + 1 exchanges a round for L BN layers, 2L + 1 with fused moments.

Fused moments are about the pooled mean of the round before, which all clients of a round know: it
is in the state, and each client sends it with its statistics. The first round has two passes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from securefl.algorithms.normalisation.policy import (
    Pooling,
    RoundNorm,
    references,
    required_normalising,
)
from securefl.errors import ConfigError
from securefl.exchange.moments import Gradients, Moments
from securefl.norms.frozen import Freeze
from securefl.types import State


@dataclass(frozen=True, slots=True)
class FedTAN:
    """FedTAN; with `Gradients.OWN` the forward-only variant ("FedAvg + Algorithm 2").

    With `pooled_rounds` = M it is FedTAN-II: M such rounds, then FedAvg on w with S frozen at its
    global value (section VI).

    Raises:
        ConfigError: fused moments with each client's own gradients, which is no known method.
    """

    moments: Moments = Moments.TWO_PASS
    gradients: Gradients = Gradients.SHARED
    pooled_rounds: int | None = None

    def __post_init__(self) -> None:
        if self.moments is Moments.FUSED and self.gradients is Gradients.OWN:
            raise ConfigError(
                'algorithm.moments = "fused" with algorithm.name = "forward-only": fused moments '
                'share their gradients; use "two-pass", or algorithm.name = "fedtan"'
            )

    def __call__(self, state: State, model: nn.Module) -> RoundNorm:
        """Pooled, or frozen after M rounds; DataError where the model has no BN.

        Raises:
            ConfigError: torch.compile made the model.
        """
        required_normalising(model, "FedTAN")
        if any(hasattr(layer, "_orig_mod") for layer in model.modules()):
            raise ConfigError(
                "FedTAN exchanges statistics in the middle of the model's forward, which "
                "torch.compile does not let it: give the model as it was before torch.compile"
            )
        if self.pooled_rounds is not None and state.round >= self.pooled_rounds:
            return RoundNorm(freeze=Freeze.STATISTICS, layers_alone=True)
        known = references(state) if self.moments is Moments.FUSED else {}
        return RoundNorm(pooling=Pooling(self.moments, self.gradients, known), layers_alone=True)
