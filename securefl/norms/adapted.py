"""Batch normalisation with statistics re-estimated from test batches: UniFed's external clients.

A client that never trained has no statistics of its own, and those of the others do not fit its
data. UniFed (Eq. 4) estimates them from the batches that are to be classified, without a label.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from securefl.errors import ConfigError, DataError
from securefl.exchange.moments import Batch, Channels, along_channels, channel_mean
from securefl.norms.find import BatchNorm, batch_norm_layers, scale_and_shift
from securefl.norms.patch_forward import replaced_forwards


@dataclass(slots=True)
class _AdaptedForward:
    """Forward of one BN layer that carries its statistics from batch to batch."""

    name: str
    layer: BatchNorm
    tau: float
    mu_C: Channels | None = None
    var_C: Channels | None = None

    def __call__(self, y: Batch) -> Tensor:
        layer = self.layer
        mu_C, var_C = self._follow(y.detach())
        x = (y - along_channels(mu_C, y)) * along_channels(torch.rsqrt(var_C + layer.eps), y)
        weight_C, bias_C = scale_and_shift(layer, mu_C)
        return x * along_channels(weight_C, y) + along_channels(bias_C, y)

    def _follow(self, y: Batch) -> tuple[Channels, Channels]:
        """Follow Eq. (4), where τ weighs the old value: PyTorch's momentum is 1 - τ."""
        tau = self.tau if self.mu_C is not None else 0.0
        if tau == 0 and y.numel() <= y.shape[1]:
            raise DataError(
                f"BN layer {self.name!r} gets one value per channel, whose variance is 0: give "
                "batches of at least two samples, and a last batch of one only to a τ above 0"
            )
        # The paper does not say where μ and σ² start. From the global ones, six batches at
        # τ = 0.9 do not get away; so the first batch's own statistics are the start.
        mu_C = channel_mean(y)
        if self.mu_C is not None:
            mu_C = tau * self.mu_C + (1 - tau) * mu_C
        var_C = channel_mean((y - along_channels(mu_C, y)).square())  # about the updated μ
        if self.var_C is not None:
            var_C = tau * self.var_C + (1 - tau) * var_C
        if not (mu_C.isfinite().all() and var_C.isfinite().all()):
            raise DataError(
                f"BN layer {self.name!r} gets values that are not finite: clean the data of NaN "
                "and infinity, or take a model that has not diverged"
            )
        self.mu_C, self.var_C = mu_C, var_C
        return mu_C, var_C


@contextmanager
def adapted_batch_norm(model: nn.Module, tau: float) -> Iterator[None]:
    """Normalise by statistics of the batches that the model's BN layers get, within the block.

    The statistics start from the first batch alone, and each further batch updates them before it
    is normalised. With τ = 0 each batch is normalised by itself. The model's running statistics
    are neither read nor written; afterwards the model is as it was. A layer that is used twice in
    one forward pass takes its inputs as two batches, as PyTorch's running statistics do.

    Args:
        model: with BN layers anywhere in it, found by type.
        tau: τ, the weight of the old value, 0 <= τ < 1; the paper's is 0.9.

    Raises:
        ConfigError: τ is out of range.
        DataError: the model has no BN layer, or one with a forward of its own; within, a batch of
            one value per channel, or of values that are not finite.
    """
    if not 0 <= tau < 1:
        raise ConfigError(f"tau = {tau}: must be at least 0 and below 1; the paper's is 0.9")
    if not batch_norm_layers(model):
        raise DataError(
            f"the model ({type(model).__name__}) has no BN layer, so there are no statistics to "
            "adapt: evaluate it without adaptation"
        )
    with replaced_forwards(model, lambda name, layer: _AdaptedForward(name, layer, tau)):
        yield
