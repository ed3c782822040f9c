"""Sum over clients as a differentiable operation.

Client i holds x_i and the loss F_i; the objective is F = Σ p_i F_i. The sum y = Σ p_j x_j reaches
every client, so the gradient that client i owes to its x_i is

    Σ_j p_j ∂F_j/∂y        (FedTAN Eq. (41))

which is the same sum over clients, of gradients: in the inner product weighted by p, the sum is
its own transpose. Nobody writes the exchange of gradients by hand.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from securefl.exchange.sums import Exchange
from securefl.types import NamedTensors, Total


class _GradientSum(torch.autograd.Function):
    """Autograd node: forward the known totals, backward the sum over clients of their gradients."""

    @staticmethod
    def forward(
        ctx: Any, exchange: Exchange, name: str, totals: NamedTensors, *values: Tensor
    ) -> tuple[Tensor, ...]:
        del values  # they are here for autograd, which will ask for their gradients
        ctx.exchange, ctx.name, ctx.keys = exchange, name, tuple(totals)
        return tuple(totals.values())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        summed = ctx.exchange.sum(ctx.name, dict(zip(ctx.keys, grads, strict=True))).values
        # One gradient for each argument of `forward`: of the first three there is none.
        return None, None, None, *(summed[key] for key in ctx.keys)


def with_gradient_sum(
    exchange: Exchange, name: str, values: NamedTensors, totals: NamedTensors
) -> dict[str, Tensor]:
    """Return `totals`, known already, as the differentiable sum over clients of `values`.

    The backward pass is one message `name` with the gradients of all of them.
    """
    outputs = _GradientSum.apply(exchange, name, totals, *(values[key] for key in totals))
    return dict(zip(totals, outputs, strict=True))


def client_sum(exchange: Exchange, name: str, values: NamedTensors) -> Total:
    """Return Σ p_i x_i over the clients of the round, differentiable.

    Forward is one message, `name`/sum; backward is one message, `name`/gradient.
    """
    total = exchange.sum(f"{name}/sum", {key: value.detach() for key, value in values.items()})
    return replace(
        total, values=with_gradient_sum(exchange, f"{name}/gradient", values, total.values)
    )
