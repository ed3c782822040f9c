"""Batch normalisation with the moments of all clients' batches: FedTAN's layer.

y is normalised by (μ, σ²) over the union of the clients' batches, and the backward pass is that of
the union too (FedTAN Algorithms 2 and 3).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from securefl.errors import DataError
from securefl.exchange.moments import Batch, Channels, fused, two_pass
from securefl.exchange.sums import Exchange
from securefl.norms.bn_function import training_forward
from securefl.norms.find import BatchNorm, normalises_by_batch
from securefl.norms.padded import moments_of
from securefl.norms.patch_forward import replaced_forwards
from securefl.types import Gradients, NamedTensors


@dataclass(slots=True)
class _PooledForward:
    """Forward of one BN layer while its batches are pooled."""

    name: str
    layer: BatchNorm
    exchange: Exchange
    reference_C: Channels | None
    """Reference about which moments are fused, the same at every client; None for two passes."""
    gradients: Gradients
    means: dict[str, Channels]
    called: bool = False

    def __call__(self, y: Batch) -> Tensor:
        if not normalises_by_batch(self.layer):  # the model's own `train()` keeps it so
            return type(self.layer).forward(self.layer, y)
        if self.called:
            raise DataError(
                f"BN layer {self.name!r} is used twice in one forward pass; FedTAN pools each "
                "layer once a step: give each use a layer of its own"
            )
        self.called = True
        layer = self.layer
        *own, n_own = moments_of(layer, y)
        if self.reference_C is None:
            pooled = two_pass(self.exchange, self.name, own, self.gradients)
        else:
            pooled = fused(self.exchange, self.name, own, self.reference_C.to(y))
        self.means[self.name] = pooled.mu_C.detach()
        # The union has n_i / p_i values where p_i is this batch's share of it.
        n = n_own / pooled.share
        return training_forward(layer, y, pooled.mu_C, pooled.var_C, n)


@contextmanager
def pooled_batch_norm(
    model: nn.Module, exchange: Exchange, references: NamedTensors, gradients: Gradients
) -> Iterator[dict[str, Channels]]:
    """Show the model's BN layers the batches of all clients, forward and backward, within.

    Every client of the round must run the same layers. Raises DataError where one runs twice, or
    has a forward of its own.

    Args:
        model: with BN layers anywhere in it.
        exchange: this client's end of the sums.
        references: by layer, what its moments are fused about; those without take two passes.
        gradients: whose gradients of the statistics flow backward.

    Yields:
        The pooled means by layer, of those called so far.
    """
    means: dict[str, Channels] = {}
    with replaced_forwards(
        model,
        lambda name, layer: _PooledForward(
            name, layer, exchange, references.get(name), gradients, means
        ),
    ):
        yield means
