"""Batch normalisation as functions: a batch's moments, γ (y - μ) / √(σ² + ε) + β, a forward.

They equal what autograd makes of the means of y and of (y - μ)² and of the formula, at a fraction
of the time: PyTorch's own kernels of batch normalisation take μ and σ² for constants, and the two
sums that they make for γ and β are all that the gradients of μ and σ² need.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from securefl.norms.find import BatchNorm, scale_and_shift


class _BatchMoments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> tuple[Tensor, Tensor]:
        mu_C, var_C = torch.batch_norm_update_stats(y, None, None, 0.0)
        ctx.save_for_backward(y, mu_C)
        return mu_C, var_C

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        y, mu_C = ctx.saved_tensors
        grad_mu_C, grad_var_C = grads
        n = y.numel() // y.shape[1]
        slope_C = 2 * grad_var_C / n  # ∂var/∂y = 2 (y - μ) / n, and ∂μ/∂y = 1 / n
        shift_C = grad_mu_C / n - slope_C * mu_C
        shape = 1, -1, *(1,) * (y.dim() - 2)
        return torch.addcmul(shift_C.view(shape), y, slope_C.view(shape))


def batch_moments(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return μ and biased σ² of a batch (B, C, ...) over all axes but C; differentiable once."""
    mu_C, var_C = _BatchMoments.apply(y)
    return mu_C, var_C


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        y, mu_C, var_C, weight_C, bias_C, ctx.eps = inputs
        out: Tensor
        out, *kept = torch.native_batch_norm(
            y, weight_C, bias_C, mu_C, var_C, training=False, momentum=0.0, eps=ctx.eps
        )
        # What is kept is empty on a CPU, and a GPU's backward kernel does not run without it.
        ctx.save_for_backward(y, mu_C, var_C, weight_C, *kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        y, mu_C, var_C, weight_C, *kept = ctx.saved_tensors
        (grad,) = grads
        # Σ g x̂ and Σ g, with x̂ = (y - μ) s and s = 1 / √(σ² + ε)
        grad_y, grad_weight_C, grad_bias_C = torch.ops.aten.native_batch_norm_backward(
            grad, y, weight_C, mu_C, var_C, *kept, False, ctx.eps, [True, True, True]
        )
        scale_C = weight_C * torch.rsqrt(var_C + ctx.eps)
        # ∂x̂/∂μ = -s and ∂x̂/∂σ² = -x̂ s² / 2, so both sums are known by now.
        grad_mu_C = -scale_C * grad_bias_C
        grad_var_C = -0.5 * scale_C * grad_weight_C * torch.rsqrt(var_C + ctx.eps)
        return grad_y, grad_mu_C, grad_var_C, grad_weight_C, grad_bias_C, None


def normalised(
    y: Tensor, moments: Sequence[Tensor], affine: Sequence[Tensor], eps: float
) -> Tensor:
    """Return a batch (B, C, ...) normalised by (μ, σ²), then scaled and shifted by (γ, β).

    Differentiable once.
    """
    out: Tensor = _Normalised.apply(y, *moments, *affine, eps)
    return out


def training_forward(
    layer: BatchNorm, y: Tensor, mu_C: Tensor, var_C: Tensor, n: float | Tensor
) -> Tensor:
    """Normalise a batch by (μ, σ²), and move running statistics towards them as PyTorch would.

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
