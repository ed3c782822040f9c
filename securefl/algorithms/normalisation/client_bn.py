"""Client-specific BN: a part of the model is each client's own and never travels.

FedBN (Li et al. 2021; UniFed, Algorithm 1) keeps all of BN, SiloBN (Andreux et al. 2020) its
statistics, and the reverse of SiloBN γ and β. SingleNet keeps everything: every client for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torch import nn

from securefl.algorithms.algorithm import averaged_tensors
from securefl.algorithms.normalisation.policy import RoundNorm, required_layers
from securefl.norms.find import affine, statistics
from securefl.types import State


class Keep(StrEnum):
    """What a client keeps."""

    BATCH_NORM = "fedbn"
    STATISTICS = "silobn"
    AFFINE = "local-affine"
    ALL = "singlenet"


@dataclass(frozen=True, slots=True)
class ClientBN:
    """Each client keeps `keep`."""

    keep: Keep

    def __call__(self, state: State, model: nn.Module) -> RoundNorm:
        """The same in all rounds; DataError where the model has no BN."""
        del state
        local = frozenset(self._names(model))
        return RoundNorm(local=local, layers_alone=self.keep is not Keep.ALL)

    def _names(self, model: nn.Module) -> set[str]:
        if self.keep is Keep.ALL:
            return {name for named in averaged_tensors(model).values() for name in named}
        required_layers(model, self.keep)
        names: set[str] = set()
        if self.keep is not Keep.AFFINE:
            names |= statistics(model).keys()
        if self.keep is not Keep.STATISTICS:
            names |= affine(model).keys()
        return names
