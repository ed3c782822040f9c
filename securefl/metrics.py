"""Metrics of a model's outputs: accuracies, R², or a function of the user's."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from securefl.errors import ConfigError, DataError

Measure = Callable[[Tensor, Tensor], float]
"""Function of all outputs and all targets of some test data to a number; larger is better."""
ACCURACY, LABEL_ACCURACY, R2 = "accuracy", "label-accuracy", "r2"
SHARES = frozenset({ACCURACY, LABEL_ACCURACY})
"""Metrics that are accuracies: shares of right answers, 0..1."""
IGNORED = -100
"""Label that torch's losses of classes leave out, where nothing else is said."""
_TITLES = {LABEL_ACCURACY: "label accuracy", R2: "R²"}
_OF_CLASSES = (
    *(functional.cross_entropy, functional.nll_loss, functional.multi_margin_loss),
    *(nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss),
)
_OF_LABELS = (functional.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss)
_OF_NUMBERS = (
    *(functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss),
    *(nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss),
)


@dataclass(frozen=True, slots=True)
class Metric:
    """Measure with its name."""

    name: str
    measure: Measure

    def of(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the number of these outputs and targets.

        Raises:
            ConfigError: a user's function gives none.
            DataError: an accuracy outside of 0..1, or the data are not for this metric.
        """
        value = self._number(self.measure(outputs, targets))
        if self.name in SHARES and not 0 <= value <= 1:
            raise DataError(
                f"metric {self.name}: gave {value:g}, and an accuracy is a share of right answers, "
                "0..1; divide it, or give the function another name"
            )
        return value

    def _number(self, value: object) -> float:
        try:
            return float(value)  # type: ignore[arg-type]  # a user's function gives anything
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"metric {self.name}: gave {described(value)}; the function must return one number "
                "for all outputs and targets: a float, or a tensor of one element"
            ) from error


def class_accuracy(
    outputs: Shaped[Tensor, "B C ..."], targets: Int[Tensor, "B ..."], ignored: int = IGNORED
) -> float:
    """Return the share of labels that are the largest of their outputs, 0..1, less `ignored` ones.

    Where none counts it is 0.

    Raises:
        DataError: outputs or labels of another form.
    """
    classes = outputs.dim() > 1 and outputs.shape[1] > 1 and not targets.is_floating_point()
    if not classes or outputs.shape[:1] + outputs.shape[2:] != targets.shape:
        raise DataError(
            f"metric {ACCURACY}: needs outputs (batch, classes, ...), of two classes or more, and "
            f"whole numbers (batch, ...) for labels, not {described(outputs)} and "
            f"{described(targets)}"
        )
    counted = targets != ignored
    right = (outputs.argmax(dim=1) == targets) & counted
    return float(right.sum()) / max(int(counted.sum()), 1)


def label_accuracy(outputs: Float[Tensor, "B ..."], targets: Shaped[Tensor, "B ..."]) -> float:
    """Return the share of labels, 0 or 1 each, that the sign of their own logit tells, 0..1.

    Raises:
        DataError: not a logit for each label, or labels that are neither 0 nor 1.
    """
    if outputs.shape != targets.shape:
        raise DataError(
            f"metric {LABEL_ACCURACY}: needs a logit for each label, not {described(outputs)} and "
            f"{described(targets)}"
        )
    if not _zeros_and_ones(targets):
        raise DataError(
            f"metric {LABEL_ACCURACY}: labels are 0 or 1, and these are others; give metric= a "
            "function of (outputs, targets)"
        )
    return float(((outputs > 0) == (targets > 0)).sum()) / targets.numel()


def r_squared(output: Float[Tensor, "B ..."], y: Float[Tensor, "B ..."]) -> float:
    """Return the coefficient of determination, a plain mean over a sample's targets; at most 1.

    Of each target 1 - Σ (y - output)² / Σ (y - mean of y)²: below 0 where the model predicts worse
    than the targets' mean. One that never changes counts as 1 where it is met exactly, and as 0
    where it is not, as in scikit-learn.

    Raises:
        DataError: not a number for each target.
    """
    if output.shape != y.shape:
        raise DataError(
            f"metric {R2}: needs a number for each target, not {described(output)} and "
            f"{described(y)}"
        )
    output_BT, y_BT = (
        values.reshape(len(y), -1).to("cpu", torch.float64) for values in (output, y)
    )
    residual_T = (y_BT - output_BT).square().sum(dim=0)
    spread_T = (y_BT - y_BT.mean(dim=0)).square().sum(dim=0)
    unexplained_T = torch.where(spread_T > 0, residual_T / spread_T, (residual_T != 0).double())
    return float(1 - unexplained_T.mean())


_BY_NAME = {ACCURACY: class_accuracy, LABEL_ACCURACY: label_accuracy, R2: r_squared}


def chosen_metric(given: str | Measure, loss: object = None) -> Metric:
    """Return the metric of this name, or of a user's function.

    Labels that the loss leaves out of its mean, the accuracy of classes leaves out, too.

    Raises:
        ConfigError: neither a name nor a function.
    """
    if given == ACCURACY:
        return Metric(ACCURACY, partial(class_accuracy, ignored=ignored_label(loss)))
    if isinstance(given, str) and given in _BY_NAME:
        return Metric(given, _BY_NAME[given])
    if isinstance(given, str) or not callable(given):
        raise ConfigError(
            f"metric = {given!r:.80}: must be one of {', '.join(_BY_NAME)}, or a function of "
            "(outputs, targets) that gives a number"
        )
    own: Measure = given
    name = getattr(given, "__name__", type(given).__name__)
    return Metric(name, lambda outputs, targets: own(outputs.cpu(), targets.cpu()))


def inferred_metric(loss: object, outputs: object, targets: Tensor) -> Metric:
    """Return the metric of a task that names none, where loss, outputs and targets leave no doubt.

    Raises:
        DataError: they do.
    """
    kind, whole = _kind(loss), not targets.is_floating_point()
    if isinstance(outputs, Tensor):
        like_targets = outputs.is_floating_point() and outputs.shape == targets.shape
        if kind in _OF_CLASSES and whole and outputs.dim() > 1:
            return chosen_metric(ACCURACY, loss)
        if kind in _OF_LABELS and like_targets and _zeros_and_ones(targets):
            return chosen_metric(LABEL_ACCURACY)
        if kind in _OF_NUMBERS and like_targets and not whole:
            return chosen_metric(R2)
    raise DataError(
        f"which metric scores the loss {loss_name(loss)}, outputs {described(outputs)} and targets "
        f"{described(targets)} is not certain: give one, Task(..., metric=...): "
        f'"{ACCURACY}" (the largest output is the class), "{LABEL_ACCURACY}" (a logit above 0 is '
        f'the label 1), "{R2}" (numbers), or a function of (outputs, targets)'
    )


def takes_classes(loss: object) -> bool:
    """Return whether the loss is one of torch's whose targets are numbers of classes."""
    return _kind(loss) in _OF_CLASSES


def ignored_label(loss: object) -> int:
    """Return the label that a loss of classes leaves out of its mean."""
    while isinstance(loss, partial):
        if "ignore_index" in loss.keywords:
            return int(loss.keywords["ignore_index"])
        loss = loss.func
    return int(getattr(loss, "ignore_index", IGNORED))


def takes_floats(loss: object) -> bool:
    """Return whether the loss is one of torch's with a floating-point target for each output."""
    return _kind(loss) in (*_OF_LABELS, *_OF_NUMBERS)


def loss_name(loss: object) -> str:
    """Return the name of a loss, for a message."""
    kind = _kind(loss)
    return str(getattr(kind, "__name__", type(loss).__name__))


def title(metric: str) -> str:
    """Return the name of a metric, for people."""
    return _TITLES.get(metric, metric)


def heading(metric: str) -> str:
    """Return the name of a metric, to begin a line with."""
    return title(metric)[:1].upper() + title(metric)[1:]


def shown(metric: str, value: float) -> str:
    """Return a value of a metric, for people: accuracies in %."""
    return f"{100 * value:.1f} %" if metric in SHARES else f"{value:.3f}"


def accuracy_of(metric: str, value: float) -> float:
    """Return the value of a metric that is an accuracy, 0..1; raises ConfigError for others."""
    if metric not in SHARES:
        raise ConfigError(
            f"there is no accuracy: the metric is {title(metric)}, {value:.3g}; read the score, or "
            "give the task another metric"
        )
    return value


def described(value: object) -> str:
    """Return type and shape of a tensor, for a message."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def _kind(loss: object) -> object:
    """Return the function, or the class of a module."""
    while isinstance(loss, partial):
        loss = loss.func
    return type(loss) if isinstance(loss, nn.Module) else loss


def _zeros_and_ones(targets: Tensor) -> bool:
    return bool(((targets == 0) | (targets == 1)).all())
