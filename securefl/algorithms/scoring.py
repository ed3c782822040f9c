"""Metric and loss of a model on test samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from securefl.algorithms.algorithm import Loss
from securefl.algorithms.mean_loss import outputs_of
from securefl.data.samples import BATCH, Samples
from securefl.errors import DataError
from securefl.metrics.by_name import ACCURACY, accuracy_of
from securefl.metrics.chosen import inferred_metric
from securefl.metrics.metric import Metric, PooledScore, described


@dataclass(frozen=True, slots=True)
class Score:
    """Quality of a model."""

    value: float
    """Value by `metric`; NaN where the samples have none, as AUC of one class alone.

    **(note)** FedProf reports an "accuracy" of its regression, GasTurbine, and does not define it;
    here it is R²."""
    loss: float
    """Mean over the samples."""
    metric: str = ACCURACY
    clients: "Mapping[str, Score]" = field(default_factory=dict)
    """Scores by client, where each is scored by itself and this is their mean."""
    pooled: PooledScore | None = None
    """Value over all clients' samples, where each is scored by itself."""
    sums: Tensor | None = field(default=None, compare=False, repr=False)
    """Sums over these samples that `pooled` follows from: `Metric.sums`."""

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
    for output, y, mean in outputs_of(model, test, loss, batch_size):
        if not isinstance(output, Tensor):
            raise DataError(f"the model's output must be a tensor, not {described(output)}")
        parts.append((output, y))
        total_loss += mean * len(y)
    outputs, targets = (torch.cat(values) for values in zip(*parts, strict=True))
    metric = metric or inferred_metric(loss, outputs, targets)
    value, sums = metric.measured(outputs, targets)
    return Score(value, total_loss / len(test), metric.name, sums=sums)
