"""Accuracy and loss of a model on test samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from securefl.algorithms.base import Loss
from securefl.data.samples import Samples

BATCH = 1024


@dataclass(frozen=True, slots=True)
class Score:
    """How good a model is."""

    accuracy: float
    """Share of samples whose largest output is their label, 0..1."""
    loss: float
    """Mean over the samples."""


def evaluate(model: nn.Module, test: Samples, loss: Loss) -> Score:
    """Score a model in evaluation mode."""
    model.eval()
    device = next(model.parameters()).device
    correct = total_loss = 0.0
    with torch.no_grad():
        for index in torch.arange(len(test)).split(BATCH):
            x, y = (tensor.to(device) for tensor in test.take(index))
            output = model(x)
            total_loss += float(loss(output, y)) * len(index)
            correct += float((output.argmax(dim=1) == y).sum())
    return Score(correct / len(test), total_loss / len(test))
