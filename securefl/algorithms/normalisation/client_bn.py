"""Client-specific BN: a part of the model is each client's own and never travels.

FedBN (Li et al. 2021; UniFed, Algorithm 1) keeps all of BN, SiloBN (Andreux et al. 2020) its
statistics, and the reverse of SiloBN γ and β. SingleNet keeps everything: every client for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from securefl.settings.axes import Normalisation
from securefl.types import State

if TYPE_CHECKING:
    from torch import nn

    from securefl.algorithms.normalisation.policy import Policy, RoundNorm

OTHERS = "each client normalises a record by the others of its batch"


class KeptBN(Normalisation):
    """Choices by which a part of the model is each client's own."""

    needs_bn: ClassVar[bool] = True
    keeps_statistics: ClassVar[bool] = True
    keeps_affine: ClassVar[bool] = True
    mixes_records: ClassVar[str] = OTHERS

    def build(self, rounds: int) -> Policy:
        """See `Normalisation`."""
        del rounds
        return ClientBN(self.name, statistics=self.keeps_statistics, affine=self.keeps_affine)


class FedBN(KeptBN):
    """BN that stays at each client."""

    name: Literal["fedbn"] = "fedbn"
    kept: ClassVar[str] = "BN"
    statistics_stay: ClassVar[bool] = True


class SiloBN(KeptBN):
    """BN statistics that stay at each client."""

    name: Literal["silobn"] = "silobn"
    kept: ClassVar[str] = "the BN statistics"
    statistics_stay: ClassVar[bool] = True
    keeps_affine: ClassVar[bool] = False


class LocalAffine(KeptBN):
    """γ and β that stay at each client."""

    name: Literal["local-affine"] = "local-affine"
    kept: ClassVar[str] = "γ and β"
    keeps_statistics: ClassVar[bool] = False


class SingleNet(Normalisation):
    """A whole model at each client."""

    name: Literal["singlenet"] = "singlenet"
    kept: ClassVar[str] = "the model"
    global_model: ClassVar[bool] = False

    def build(self, rounds: int) -> Policy:
        """See `Normalisation`."""
        del rounds
        return own_model


@dataclass(frozen=True, slots=True)
class ClientBN:
    """The policy by which each client keeps statistics, scale and shift of BN, or one of them."""

    name: str
    """Name of the algorithm, for messages."""
    statistics: bool = True
    affine: bool = True

    def __call__(self, state: State, model: nn.Module) -> RoundNorm:
        """Return the same in all rounds; DataError where the model has no BN."""
        from securefl.algorithms.normalisation.policy import RoundNorm, required_layers
        from securefl.norms.find import affine, statistics

        del state
        required_layers(model, self.name)
        local: set[str] = set()
        if self.statistics:
            local |= statistics(model).keys()
        if self.affine:
            local |= affine(model).keys()
        return RoundNorm(local=frozenset(local), layers_alone=True)


def own_model(state: State, model: nn.Module) -> RoundNorm:
    """Return the policy by which each client keeps everything, the same in all rounds."""
    from securefl.algorithms.algorithm import averaged_tensors
    from securefl.algorithms.normalisation.policy import RoundNorm

    del state
    return RoundNorm(
        local=frozenset(name for named in averaged_tensors(model).values() for name in named)
    )
