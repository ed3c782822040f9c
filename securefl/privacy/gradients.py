"""The gradient of each record's term of the loss, all at once, by Opacus."""

from __future__ import annotations

import copy
import warnings

from jaxtyping import Shaped
from opacus import GradSampleModule
from torch import Tensor, nn

from securefl.algorithms.base import Loss, trained_parameters


def per_sample_gradients(
    model: nn.Module,
    x: Shaped[Tensor, "B ..."],
    y: Shaped[Tensor, "B ..."],
    loss: Loss,
) -> dict[str, Tensor]:
    """By parameter name, each of shape (B, *shape of the parameter); the model is not changed.

    The model must have passed `require_uncoupled`: of one that couples records these are gradients
    of nothing. `loss` is a mean over records.

    Raises:
        NotImplementedError: Opacus', for a trained layer that has buffers.
    """
    twin = copy.deepcopy(model)
    sampled = GradSampleModule(twin, loss_reduction="mean", strict=True)
    with warnings.catch_warnings():
        # Of the first layer, whose input needs no gradient; Opacus does without.
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        loss(sampled(x), y).backward()
    return {name: _of_each(p, len(x)) for name, p in trained_parameters(twin).items()}


def _of_each(parameter: nn.Parameter, n: int) -> Tensor:
    """What Opacus has left at a parameter; zeros where the loss does not reach it."""
    found: Tensor | None = getattr(parameter, "grad_sample", None)
    return parameter.new_zeros(n, *parameter.shape) if found is None else found
