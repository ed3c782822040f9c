"""FedTAN (Wang, Shi, Chang, "Why Batch Normalization Damage FL on Non-IID Data?", Algorithms 1-3).

Only the first of a client's E local steps differs from FedAvg: its BN layers use the mean and
variance of all clients' batches (Algorithm 2) and back-propagate the sum of all clients' gradients
with respect to them (Algorithm 3). With E = 1 a round is one step of centralised SGD on the union
of the batches. 3L + 1 exchanges a round for L BN layers, 2L + 1 with fused moments.

Fused moments are about the pooled mean of the round before, which all clients of a round know: it
is in the state, and each client sends it with its statistics. The first round has two passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from securefl.errors import ConfigError
from securefl.settings.axes import Normalisation, Normalises, never_frozen, rounds_in
from securefl.settings.table import Count, Share
from securefl.types import Freeze, Gradients, Moments, State

if TYPE_CHECKING:
    from torch import nn

    from securefl.algorithms.normalisation.policy import Policy, RoundNorm
    from securefl.settings.tables import Config

GRADIENT = "every record's gradient depends on all records of all clients' batches"
OUTPUT = "every record's output depends on all records of all clients' batches"


class PooledBN(Normalisation):
    """Choices by which the first local step normalises by all clients' batches."""

    moments: Literal["two-pass", "fused"] = "two-pass"
    """Exchanges of a round in which statistics travel: 3L + 1, or 2L + 1."""
    needs_bn: ClassVar[bool] = True
    pools: ClassVar[bool] = True
    normalises: ClassVar[Normalises] = Normalises.BY_POOLED
    mixes_records: ClassVar[str] = GRADIENT

    def build(self, rounds: int) -> Policy:
        """See `Normalisation`."""
        return FedTAN(Moments(self.moments), pooled_rounds=self.switch_round(rounds))


class PooledThroughout(PooledBN):
    """FedTAN."""

    name: Literal["fedtan"] = "fedtan"


class PooledThenFrozen(PooledBN):
    """FedTAN-II: pooled rounds, then frozen ones."""

    name: Literal["fedtan-ii"] = "fedtan-ii"
    switch: Share | Count = 0.5
    """When BN is frozen: after this share of the rounds, or after so many."""

    @property
    def frozen(self) -> Freeze:
        """See `Normalisation`."""
        return Freeze.STATISTICS

    def switch_round(self, rounds: int) -> int:
        """See `Normalisation`."""
        return rounds_in(self.switch, rounds)

    def clashes(self, config: Config) -> Iterator[str]:
        """See `Normalisation`."""
        yield from never_frozen(self.switch, config.run.rounds)


class ForwardOnly(Normalisation):
    """FedAvg with FedTAN's forward exchange alone ("FedAvg + Algorithm 2")."""

    name: Literal["forward-only"] = "forward-only"
    needs_bn: ClassVar[bool] = True
    pools: ClassVar[bool] = True
    normalises: ClassVar[Normalises] = Normalises.BY_POOLED_CONSTANTS
    mixes_records: ClassVar[str] = OUTPUT

    def build(self, rounds: int) -> Policy:
        """See `Normalisation`."""
        del rounds
        return FedTAN(gradients=Gradients.OWN)


@dataclass(frozen=True, slots=True)
class FedTAN:
    """FedTAN's policy; with `Gradients.OWN` the forward-only variant ("FedAvg + Algorithm 2").

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
                "fused moments with each client's own gradients: fused moments share their "
                "gradients; use two passes"
            )

    def __call__(self, state: State, model: nn.Module) -> RoundNorm:
        """Return a pooled round, or a frozen one after M; DataError where the model has no BN.

        Raises:
            ConfigError: torch.compile made the model.
        """
        from securefl.algorithms.normalisation.policy import (
            Pooling,
            RoundNorm,
            references,
            required_normalising,
        )

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
