"""Mean and variance of one batch, with one pass over it forward and one backward.

The same as autograd makes of the means of y and of (y - μ)², at a fraction of the time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


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
    """μ and the biased σ² of a batch (B, C, ...) over all axes but C; differentiable once."""
    mu_C, var_C = _BatchMoments.apply(y)
    return mu_C, var_C
