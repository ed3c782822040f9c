"""A metric as it is declared: name, title, form of its data, range, and its value over all clients.

Where a metric is a function of sums over samples, its value over all clients' samples follows from
the sum of their sums, and nobody is shown one client's. Where it is not, the mean of the clients'
own values, weighted by their samples, stands in its place, and is called so.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor


class PooledBy(StrEnum):
    """Ways in which a metric's value over all clients is found."""

    SUMS = "sums"
    """Sums over samples: it is the value on the union of all clients' samples."""
    HISTOGRAM = "histogram"
    """Histograms: an estimate of the value on the union, with a bound of its error."""
    MEAN = "weighted-mean"
    """The mean of clients' own values, weighted by their samples: no value on the union."""


@dataclass(frozen=True, slots=True)
class PooledScore:
    """A metric's value over all clients."""

    value: float
    """NaN where the samples of all clients have none, as AUC of one class alone."""
    pooling: PooledBy
    within: float = 0.0
    """Largest distance from the value on the union, by the histogram's resolution."""


class Metric(ABC):
    """A metric. One that has no value on some samples is NaN there."""

    name: ClassVar[str]
    """Name in settings and in a run's folder."""
    title: ClassVar[str]
    """Name for people."""
    needs: ClassVar[str]
    """Form of outputs and targets, for messages."""
    about: ClassVar[str]
    """Half a sentence on what it measures, for lists of metrics."""
    larger_is_better: ClassVar[bool] = True
    low: ClassVar[float] = 0.0
    """Least value."""
    high: ClassVar[float] = 1.0
    """Largest value."""
    pooling: ClassVar[PooledBy] = PooledBy.SUMS
    of_classes: ClassVar[bool] = False
    """True where targets may be numbers of classes, one for each sample."""
    of_masks: ClassVar[bool] = False
    """True where targets may be the number of a class for each pixel or voxel. It has a label that
    is left out."""
    of_numbers: ClassVar[bool] = False
    """True where targets may be any numbers, one for each output."""
    of_survival: ClassVar[bool] = False
    """True where targets are (time, event)."""
    accuracy: ClassVar[bool] = False
    """True for shares of right answers."""

    @abstractmethod
    def of(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the value on these samples; NaN where there is none, or an output is NaN.

        Raises:
            DataError: outputs or targets of another form than `needs`.
            ConfigError: a user's function gives no number.
        """

    @abstractmethod
    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sums over these samples, shape (n,), float64 on the CPU; raises as `of`."""

    @abstractmethod
    def pooled(self, sums: Tensor) -> PooledScore:
        """Return the value over all clients, of the sum of their `sums`, shape (n,)."""

    def measured(self, outputs: Tensor, targets: Tensor) -> tuple[float, Tensor]:
        """Return value and sums; raises as `of`."""
        return self.of(outputs, targets), self.sums(outputs, targets)

    def n_sums(self, outputs: Tensor, targets: Tensor) -> int:
        """Return the number of sums for data of this form."""
        return len(self.sums(outputs, targets))


class OfSums(Metric):
    """A metric whose value is a function of its sums, on one client's samples as on all."""

    @abstractmethod
    def value(self, sums: Tensor) -> float:
        """Return the value by the sums, shape (n,); NaN where there is none."""

    def of(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the value on these samples: see `Metric.of`."""
        return self.measured(outputs, targets)[0]

    def measured(self, outputs: Tensor, targets: Tensor) -> tuple[float, Tensor]:
        """Return value and sums, which are worked out once."""
        sums = self.sums(outputs, targets)
        return self.value(sums), sums

    def pooled(self, sums: Tensor) -> PooledScore:
        """Return the value on the union of all clients' samples."""
        return PooledScore(self.value(sums), self.pooling)


class OfMeans(Metric):
    """A metric that is no function of sums: over clients the weighted mean of their values."""

    pooling: ClassVar[PooledBy] = PooledBy.MEAN

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the value times the samples, and the samples; zeros where it is not finite."""
        return self.measured(outputs, targets)[1]

    def measured(self, outputs: Tensor, targets: Tensor) -> tuple[float, Tensor]:
        """Return value and sums, with one call of what may be a function of the user's."""
        value = self.of(outputs, targets)
        n = len(targets) if math.isfinite(value) else 0
        sums = outputs.detach().cpu().double().new_tensor([n * value if n else 0.0, n])
        return value, sums

    def pooled(self, sums: Tensor) -> PooledScore:
        """Return the mean over the samples of clients that have a value."""
        total, n = sums.tolist()
        return PooledScore(total / n if n else math.nan, self.pooling)

    def n_sums(self, outputs: Tensor, targets: Tensor) -> int:
        """Return 2."""
        del outputs, targets  # a function of the user's may need more samples than a few
        return 2


def described(value: object) -> str:
    """Return type and shape of a tensor, for a message."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and shape is not None:
        return f"{str(dtype).removeprefix('torch.')} {tuple(shape)}"
    return f"a {type(value).__name__}"


def is_nan(outputs: Tensor) -> bool:
    """Return whether an output is NaN: no model that gives one has a score."""
    return bool(outputs.isnan().any())


def zeros_and_ones(targets: Tensor) -> bool:
    """Return whether all are 0 or 1."""
    return bool(((targets == 0) | (targets == 1)).all())
