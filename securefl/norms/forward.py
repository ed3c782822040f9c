"""A BN layer's forward in training, with moments that PyTorch has not found."""

from __future__ import annotations

import torch
from torch import Tensor

from securefl.norms.find import BatchNorm, scale_and_shift
from securefl.norms.normalised import normalised


def training_forward(
    layer: BatchNorm, y: Tensor, mu_C: Tensor, var_C: Tensor, n: float | Tensor
) -> Tensor:
    """The batch normalised by (μ, σ²); running statistics move towards them as PyTorch's would.

    Args:
        layer: whose γ and β scale and shift.
        y: a batch (B, C, ...).
        mu_C: the mean.
        var_C: the biased variance.
        n: of how many values they are, more than one, in all or by channel: the running variance is
            the unbiased one.
    """
    if (
        layer.momentum is not None
        and layer.running_mean is not None
        and layer.running_var is not None
    ):
        with torch.no_grad():
            layer.running_mean.lerp_(mu_C, layer.momentum)
            layer.running_var.lerp_(var_C * (n / (n - 1)), layer.momentum)
            if layer.num_batches_tracked is not None:
                layer.num_batches_tracked += 1
    return normalised(y, (mu_C, var_C), scale_and_shift(layer, mu_C), layer.eps)
