"""Refinements: what is trained on public samples after the clients' own training.

FNR-FL's mathematics is in `fnr`, the server's own training in `public_training`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from securefl.settings.axes import FnrChoice
from securefl.settings.table import BatchSize, Count, NotNegative, Share

if TYPE_CHECKING:
    from torch import nn

    from securefl.algorithms.algorithm import Loss, Sgd
    from securefl.algorithms.federated import Federated
    from securefl.algorithms.fnr import FNR
    from securefl.algorithms.public_training import ServerTuned
    from securefl.data.samples import Samples


@dataclass(frozen=True, slots=True)
class RefinementContext:
    """Parts of a run that a refinement is built from."""

    public: Samples
    model: nn.Module
    loss: Loss
    sgd: Callable[[int], Sgd]
    """SGD's settings by rounds completed."""
    seed: int
    noisy: bool
    """True where noise hides each client in what it contributes."""


class NoRefinement(FnrChoice):
    """No training on public samples."""

    name: Literal["none"] = "none"
    trains: ClassVar[bool] = False


class OnPublicSamples(FnrChoice):
    """Keys of all that train on public samples."""

    epochs: Count = 5
    """E_re, passes over the public samples."""
    batch_size: BatchSize = 32
    """Public samples in a batch."""


class WeakestClients(OnPublicSamples):
    """FNR-FL: the clients that do worst on the public samples train on them.

    Its penalty compares their class-average feature norms.
    """

    share: Share = 0.3
    """p, the share of clients that are refined."""
    strength: NotNegative = 0.1
    """λ; 0 trains them on the public samples and penalises nothing."""
    refines: ClassVar[bool] = True

    def around(self, inner: Federated, context: RefinementContext) -> FNR:
        """See `FnrChoice`."""
        from securefl.algorithms.fnr import FNR, Match, Ranking
        from securefl.algorithms.public_training import PublicData

        public = PublicData(context.public, self.batch_size, self.epochs, context.seed)
        ranking = Ranking.NOISY if context.noisy else Ranking.EXACT
        return FNR(inner, public, self.share, self.strength, Match(self.name), ranking)


class Matched(WeakestClients):
    """FNR-FL with a penalty that has a gradient."""

    name: Literal["matched"] = "matched"


class LiteralFnr(WeakestClients):
    """FNR-FL with the paper's penalty, which has no gradient."""

    name: Literal["literal"] = "literal"


class AtServer(OnPublicSamples):
    """Training of the average by the server on the public samples; clients are not refined."""

    name: Literal["server"] = "server"

    def around(self, inner: Federated, context: RefinementContext) -> ServerTuned:
        """See `FnrChoice`."""
        from securefl.algorithms.public_training import PublicData, ServerTuned

        public = PublicData(context.public, self.batch_size, self.epochs, context.seed)
        return ServerTuned(inner, public, context.model, context.loss, context.sgd)
