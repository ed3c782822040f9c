"""A model's outputs and loss over samples, batch by batch, in evaluation mode."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from securefl.algorithms.algorithm import Loss
from securefl.data.samples import BATCH, Samples, in_order


def mean_loss(model: nn.Module, data: Samples, loss: Loss) -> float:
    """Return the loss of a model in evaluation mode, a mean over the samples."""
    batches = outputs_of(model, data, loss, BATCH)
    return sum(mean * len(y) for _, y, mean in batches) / len(data)


def outputs_of(
    model: nn.Module, data: Samples, loss: Loss, batch_size: int
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Yield outputs, targets and mean loss of each batch."""
    model.eval()
    device = next(model.parameters()).device
    for batch in in_order(data, batch_size):
        x, y = (tensor.to(device) for tensor in batch)
        with torch.no_grad():  # which a generator must not hold while its caller computes
            output = model(x)
            mean = float(loss(output, y))
        yield output, y, mean
