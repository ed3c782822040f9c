"""Static BN (HeteroFL: Diao, Ding, Tarokh, ICLR 2021, section 3.2).

Training normalises each batch by itself and tracks nothing. Statistics are asked for apart: each
client measures those of the global model on all its data, and the server averages them. HeteroFL
asks once, after the last round; here each round begins with it, on the model that it begins with,
so that every round can be scored, and the last model with the statistics of the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from securefl.settings.axes import Normalisation
from securefl.types import State

if TYPE_CHECKING:
    from torch import nn

    from securefl.algorithms.normalisation.policy import Policy, RoundNorm

MEASURED = "statistics are measured on the clients' records without noise"


class StaticBN(Normalisation):
    """Statistics of the round's first model on all of a client's data."""

    name: Literal["static-bn"] = "static-bn"
    needs_bn: ClassVar[bool] = True
    mixes_records: ClassVar[str] = MEASURED

    def build(self, rounds: int) -> Policy:
        """See `Normalisation`."""
        del rounds
        return static_bn


def static_bn(state: State, model: nn.Module) -> RoundNorm:
    """Return the same in all rounds; DataError where the model has no BN."""
    from securefl.algorithms.normalisation.policy import RoundNorm, required_normalising

    del state
    required_normalising(model, "static BN")
    return RoundNorm(static=True, layers_alone=True)
