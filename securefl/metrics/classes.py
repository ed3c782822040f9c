"""Metrics of classes that count right answers: accuracy, balanced accuracy, macro F1, Dice.

All but the accuracies are functions of three counts for each class c: samples of c that are told to
be c (TP), samples that are told to be c, and samples of c. Of predicted segments a sample is a
pixel or a voxel. Values are those of scikit-learn, which has no Dice.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from securefl.errors import DataError
from securefl.metrics.metric import Metric, OfSums, described, is_nan, zeros_and_ones

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
"""Label that torch's losses of classes leave out, where nothing else is said."""
CLASSES = (
    "outputs (batch, classes, ...), of two classes or more, and whole numbers (batch, ...) for "
    "labels"
)
ONE_LOGIT = f"{CLASSES}; or one logit, and a label 0 or 1, each (batch) or (batch, 1, ...)"


@dataclass(frozen=True, slots=True)
class Accuracy(OfSums):
    """Share of labels that are the largest of their outputs; 0 where none counts."""

    name: ClassVar[str] = "accuracy"
    title: ClassVar[str] = "accuracy"
    needs: ClassVar[str] = CLASSES
    about: ClassVar[str] = "the largest output is the class"
    accuracy: ClassVar[bool] = True
    of_classes: ClassVar[bool] = True
    of_masks: ClassVar[bool] = True
    ignored: int = IGNORED
    """Label that is left out."""

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return right answers and labels, shape (2,)."""
        if not are_classes(outputs, targets):
            raise wrong_form(self.name, self.needs, outputs, targets)
        counted = targets != self.ignored
        right = (outputs.argmax(dim=1) == targets) & counted
        return _counts(outputs, right.sum(), counted.sum())

    def value(self, sums: Tensor) -> float:
        """Return their ratio."""
        return float(sums[0]) / max(float(sums[1]), 1.0)


@dataclass(frozen=True, slots=True)
class LabelAccuracy(OfSums):
    """Share of labels, 0 or 1 each, that the sign of their own logit tells."""

    name: ClassVar[str] = "label-accuracy"
    title: ClassVar[str] = "label accuracy"
    needs: ClassVar[str] = "a logit for each label"
    about: ClassVar[str] = "a logit above 0 is the label 1"
    accuracy: ClassVar[bool] = True

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return right answers and labels, shape (2,)."""
        if outputs.shape != targets.shape:
            raise wrong_form(self.name, self.needs, outputs, targets)
        _require_labels(self.name, targets)
        right = (outputs > 0) == (targets > 0)
        return _counts(outputs, right.sum(), targets.new_tensor(targets.numel()))

    def value(self, sums: Tensor) -> float:
        """Return their ratio."""
        return float(sums[0]) / max(float(sums[1]), 1.0)


@dataclass(frozen=True, slots=True)
class _OfCounts(OfSums):
    """A metric of the counts of each class."""

    needs: ClassVar[str] = ONE_LOGIT
    of_classes: ClassVar[bool] = True
    of_masks: ClassVar[bool] = True
    ignored: int = IGNORED
    """Label that is left out."""

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return TP, told and true of each class, shape (3 x classes,)."""
        logits_NC, labels_N = class_logits(self, outputs, targets, self.ignored)
        n, told_N = logits_NC.shape[1], logits_NC.argmax(dim=1)
        counts = (labels_N[labels_N == told_N], told_N, labels_N)
        return _counts(logits_NC, *(labels.bincount(minlength=n) for labels in counts))

    def value(self, sums: Tensor) -> float:
        """Return the mean over the classes that have a value; NaN where none has."""
        ratios_C = self._of_each_class(*sums.reshape(3, -1))
        return float(ratios_C.nanmean())

    @abstractmethod
    def _of_each_class(self, right_C: Tensor, told_C: Tensor, true_C: Tensor) -> Tensor:
        """Return each class's value; NaN (0/0) for one that does not count."""


class BalancedAccuracy(_OfCounts):
    """Mean over classes of the share of their samples that are told; of those that have any."""

    name: ClassVar[str] = "balanced-accuracy"
    title: ClassVar[str] = "balanced accuracy"
    about: ClassVar[str] = "the mean over classes of the share of each that is told"

    def _of_each_class(self, right_C: Tensor, told_C: Tensor, true_C: Tensor) -> Tensor:
        del told_C
        return right_C / true_C


class MacroF1(_OfCounts):
    """Mean over classes of 2 TP / (told + true); of those that are told or true anywhere."""

    name: ClassVar[str] = "macro-f1"
    title: ClassVar[str] = "macro F1"
    about: ClassVar[str] = "the mean over classes of F1"

    def _of_each_class(self, right_C: Tensor, told_C: Tensor, true_C: Tensor) -> Tensor:
        return 2 * right_C / (told_C + true_C)


class Dice(_OfCounts):
    """Mean over segments of 2 TP / (told + true), over all pixels of all pictures.

    Class 0 is the background, and no segment. Segments that are told and true nowhere do not
    count. **(note)** Papers also take the mean over pictures, where a small segment counts as
    much as a large one, and one that a picture lacks has no value.
    """

    name: ClassVar[str] = "dice"
    title: ClassVar[str] = "Dice"
    needs: ClassVar[str] = f"a class for each pixel or voxel: {ONE_LOGIT}"
    of_classes: ClassVar[bool] = False
    about: ClassVar[str] = "overlap of segments, over all pixels; class 0 is the background"

    def _of_each_class(self, right_C: Tensor, told_C: Tensor, true_C: Tensor) -> Tensor:
        return (2 * right_C / (told_C + true_C))[1:]


def class_logits(
    metric: Metric, outputs: Tensor, targets: Tensor, ignored: int
) -> tuple[Tensor, Tensor]:
    """Return logits (N, C) and labels (N,) of all samples or pixels whose label counts.

    One logit z, of labels 0 or 1, is that of two classes, 0 and z.

    Raises:
        DataError: outputs or targets are of another form.
    """
    if are_classes(outputs, targets):
        n_classes = outputs.shape[1]
        logits_NC, labels_N = outputs.movedim(1, -1).reshape(-1, n_classes), targets.reshape(-1)
        counted_N = labels_N != ignored
        return logits_NC[counted_N], labels_N[counted_N].long()
    if outputs.shape != targets.shape or (outputs.dim() > 1 and outputs.shape[1] != 1):
        raise wrong_form(metric.name, metric.needs, outputs, targets)
    _require_labels(metric.name, targets)
    logits_N1 = outputs.reshape(-1, 1)
    return logits_N1 * logits_N1.new_tensor([0.0, 1.0]), targets.reshape(-1).long()


def wrong_form(name: str, needs: str, outputs: Tensor, targets: Tensor) -> DataError:
    """Return the error of data that are not for this metric."""
    return DataError(
        f"metric {name}: needs {needs}, not {described(outputs)} and {described(targets)}"
    )


def are_classes(outputs: Tensor, targets: Tensor) -> bool:
    """Return whether there is an output for each of several classes, and a class's number."""
    classes = outputs.dim() > 1 and outputs.shape[1] > 1 and not targets.is_floating_point()
    return classes and outputs.shape[:1] + outputs.shape[2:] == targets.shape


def _require_labels(name: str, targets: Tensor) -> None:
    if not zeros_and_ones(targets):
        raise DataError(
            f"metric {name}: labels are 0 or 1, and these are others; give metric= a function of "
            "(outputs, targets)"
        )


def _counts(outputs: Tensor, *counts: Tensor) -> Tensor:
    """Return all counts in one vector, which is NaN where an output is."""
    found = counts[0].new_tensor([n for of in counts for n in of.reshape(-1).tolist()])
    found = found.to("cpu").double()
    return found * math.nan if is_nan(outputs) else found
