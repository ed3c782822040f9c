"""γ (y - μ) / √(σ² + ε) + β, with gradients of μ and σ² as well, each pass a single one.

The same as autograd makes of the formula, at a fraction of the time: PyTorch's own kernels of batch
normalisation take μ and σ² for constants, and the two sums that they make for γ and β are all that
the gradients of μ and σ² need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


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
        grad_mu_C = -scale_C * grad_bias_C
        grad_var_C = -0.5 * scale_C * grad_weight_C * torch.rsqrt(var_C + ctx.eps)
        return grad_y, grad_mu_C, grad_var_C, grad_weight_C, grad_bias_C, None


def normalised(
    y: Tensor, moments: Sequence[Tensor], affine: Sequence[Tensor], eps: float
) -> Tensor:
    """A batch (B, C, ...) normalised by (μ, σ²), then scaled and shifted by (γ, β).

    Differentiable once.
    """
    out: Tensor = _Normalised.apply(y, *moments, *affine, eps)
    return out
