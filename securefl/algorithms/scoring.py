"""Metric and loss of a model on test samples."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from securefl.algorithms.algorithm import Loss
from securefl.data.samples import BATCH, Samples, in_order
from securefl.errors import DataError
from securefl.metrics import ACCURACY, Metric, accuracy_of, described, inferred_metric


@dataclass(frozen=True, slots=True)
class Score:
    """Quality of a model."""

    value: float
    """Value by `metric`: of accuracies 0..1, of R² at most 1.

    **(note)** FedProf reports an "accuracy" of its regression, GasTurbine, and does not define it;
    here it is R²."""
    loss: float
    """Mean over the samples."""
    metric: str = ACCURACY
    clients: "Mapping[str, Score]" = field(default_factory=dict)
    """Scores by client, where each is scored by itself and this is their mean."""

    @property
    def accuracy(self) -> float:
        """The value, 0..1; raises ConfigError where the metric is no accuracy."""
        return accuracy_of(self.metric, self.value)


def evaluate(
    model: nn.Module,
    test: Samples,
    loss: Loss,
    metric: Metric | None = None,
    *,
    batch_size: int = BATCH,
) -> Score:
    """Score a model in evaluation mode. The samples are taken in their order.

    Args:
        model: is in evaluation mode afterwards.
        test: the samples.
        loss: mean over a batch, of (model output, y).
        metric: inferred from the loss, the outputs and the targets where None.
        batch_size: samples at a time.

    Raises:
        DataError: the outputs are no tensor, the metric is not certain, or not for these data.
    """
    parts: list[tuple[Tensor, Tensor]] = []
    total_loss = 0.0
    for output, y, mean in _batches(model, test, loss, batch_size):
        if not isinstance(output, Tensor):
            raise DataError(f"the model's output must be a tensor, not {described(output)}")
        parts.append((output, y))
        total_loss += mean * len(y)
    outputs, targets = (torch.cat(values) for values in zip(*parts, strict=True))
    metric = metric or inferred_metric(loss, outputs, targets)
    return Score(metric.of(outputs, targets), total_loss / len(test), metric.name)


def mean_loss(model: nn.Module, data: Samples, loss: Loss) -> float:
    """Return the loss of a model in evaluation mode, a mean over the samples."""
    batches = _batches(model, data, loss, BATCH)
    return sum(mean * len(y) for _, y, mean in batches) / len(data)


def _batches(
    model: nn.Module, data: Samples, loss: Loss, batch_size: int
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Outputs, targets and mean loss of each batch."""
    model.eval()
    device = next(model.parameters()).device
    for batch in in_order(data, batch_size):
        x, y = (tensor.to(device) for tensor in batch)
        with torch.no_grad():  # which a generator must not hold while its caller computes
            output = model(x)
            mean = float(loss(output, y))
        yield output, y, mean
