"""Accuracy and loss of a model on test samples; R² in accuracy's place for a regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from securefl.algorithms.base import Loss
from securefl.data.samples import BATCH, Samples, in_order
from securefl.errors import DataError


@dataclass(frozen=True, slots=True)
class Score:
    """How good a model is."""

    accuracy: float
    """Share of samples whose largest output is their label, 0..1; of a regression R², at most 1.

    **(note)** R² is below 0 where the model predicts worse than the targets' mean. FedProf reports
    an "accuracy" of its regression, GasTurbine, and does not define it."""
    loss: float
    """Mean over the samples."""


def evaluate(model: nn.Module, test: Samples, loss: Loss, *, batch_size: int = BATCH) -> Score:
    """Score a model in evaluation mode.

    A classifier gives outputs (B, classes, ...) for labels (B, ...). A regression gives outputs of
    its targets' shape, floats both, and has a loss for them, which cross-entropy is not. The
    samples are taken in their order.

    Raises:
        DataError: outputs or labels of another shape, for which accuracy means nothing.
    """
    model.eval()
    device = next(model.parameters()).device
    correct = total_loss = n_labels = 0.0
    predicted: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for batch in in_order(test, batch_size):
            x, y = (tensor.to(device) for tensor in batch)
            output = model(x)
            if _classifies(output, y):
                correct += float((output.argmax(dim=1) == y).sum())
                n_labels += y.numel()
            elif _regresses(output, y, loss):
                predicted.append((output, y))
            else:
                raise DataError(
                    "the model's output must be a tensor (batch, classes, ...) and the labels "
                    f"whole numbers (batch, ...), not {_shape(output)} and {_shape(y)}: accuracy "
                    "needs classes; two of them are two outputs. Targets that are numbers have "
                    "the output's shape, and a loss such as torch.nn.functional.mse_loss"
                )
            total_loss += float(loss(output, y)) * len(x)
    if predicted:
        outputs, targets = (torch.cat(parts) for parts in zip(*predicted, strict=True))
        accuracy = r_squared(outputs, targets)
    else:
        accuracy = correct / n_labels
    return Score(accuracy, total_loss / len(test))


def r_squared(output: Float[Tensor, "B ..."], y: Float[Tensor, "B ..."]) -> float:
    """The coefficient of determination, a plain mean over the targets of one sample.

    Of each target 1 - Σ (y - output)² / Σ (y - mean of y)². One that never changes counts as 1
    where it is met exactly, and as 0 where it is not, as in scikit-learn.
    """
    output_BT, y_BT = (
        values.reshape(len(y), -1).to("cpu", torch.float64) for values in (output, y)
    )
    residual_T = (y_BT - output_BT).square().sum(dim=0)
    spread_T = (y_BT - y_BT.mean(dim=0)).square().sum(dim=0)
    unexplained_T = torch.where(spread_T > 0, residual_T / spread_T, (residual_T != 0).double())
    return float(1 - unexplained_T.mean())


def _classifies(output: Any, y: Tensor) -> bool:
    if not isinstance(output, Tensor) or output.dim() < 2 or y.is_floating_point():
        return False
    return output.shape[:1] + output.shape[2:] == y.shape


def _regresses(output: Any, y: Tensor, loss: Loss) -> bool:
    # Cross-entropy takes such targets for shares of classes, and would give some number for them.
    if not isinstance(output, Tensor) or loss is functional.cross_entropy:
        return False
    return output.is_floating_point() and y.is_floating_point() and output.shape == y.shape


def _shape(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return f"a {type(value).__name__}"
