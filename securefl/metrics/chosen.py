"""The metric of a task: by its name, a function of the user's, or the one that its loss implies."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from securefl.errors import ConfigError, DataError
from securefl.io.own_code import allowed_function
from securefl.losses.kinds import (
    ignored_label,
    loss_name,
    takes_classes,
    takes_labels,
    takes_masks,
    takes_numbers,
    takes_survival,
)
from securefl.metrics.by_name import (
    ACCURACY,
    C_INDEX,
    DICE,
    LABEL_ACCURACY,
    METRICS,
    R2,
    SHARES,
    listed,
)
from securefl.metrics.metric import Metric, OfMeans, described, zeros_and_ones

Measure = Callable[[Tensor, Tensor], float]
"""Function of all outputs and all targets of some test data to a number; larger is better."""


@dataclass(frozen=True, slots=True)
class OwnMeasure(OfMeans):
    """A function of the user's, which is given outputs and targets on the CPU."""

    name: str  # type: ignore[misc]  # of an object here, of a class elsewhere
    measure: Measure

    def of(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the number of these outputs and targets.

        Raises:
            ConfigError: the function gives none.
            DataError: an accuracy outside of 0..1, or as the function raises.
        """
        value = self._number(self.measure(outputs.cpu(), targets.cpu()))
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


def chosen_metric(given: str | Measure, loss: object = None) -> Metric:
    """Return the metric of this name, of a user's function, or of one by its `module:function`.

    Labels that the loss leaves out of its mean, metrics of classes leave out, too.

    Raises:
        ConfigError: neither a name nor a function, or one that cannot be had or is not allowed.
    """
    if isinstance(given, str) and given in METRICS:
        metric = METRICS[given]
        return metric(ignored=ignored_label(loss)) if metric.of_masks else metric()  # type: ignore[call-arg]
    if isinstance(given, str) and ":" in given:
        return OwnMeasure(given, _of_settings(given))
    if isinstance(given, str) or not callable(given):
        raise ConfigError(
            f"metric = {given!r:.80}: must be one of {', '.join(METRICS)}, or a function of "
            "(outputs, targets) that gives a number"
        )
    return OwnMeasure(getattr(given, "__name__", type(given).__name__), given)


def _of_settings(name: str) -> Measure:
    """Return a function that settings name, whose errors show none of its words on patients."""
    function = allowed_function(name, "run.metric")

    def measure(outputs: Tensor, targets: Tensor) -> float:
        try:
            return function(outputs, targets)  # type: ignore[no-any-return]  # checked by its caller
        except (Exception, SystemExit) as error:  # it may do anything
            raise DataError(
                f'run.metric = "{name}": raised a {type(error).__name__}: mend it; it is called '
                "with all outputs and targets of a test set"
            ) from error

    return measure


def inferred_metric(loss: object, outputs: object, targets: Tensor) -> Metric:
    """Return the metric of a task that names none, where loss, outputs and targets leave no doubt.

    Raises:
        DataError: they do.
    """
    whole = not targets.is_floating_point()
    if isinstance(outputs, Tensor):
        like_targets = outputs.is_floating_point() and outputs.shape == targets.shape
        if takes_masks(loss) and whole:
            return chosen_metric(DICE, loss)
        if takes_classes(loss) and whole and outputs.dim() > 1:
            return chosen_metric(ACCURACY, loss)
        if takes_labels(loss) and like_targets and zeros_and_ones(targets):
            return chosen_metric(LABEL_ACCURACY)
        if takes_numbers(loss) and like_targets and not whole:
            return chosen_metric(R2)
        n = len(targets)
        if takes_survival(loss) and outputs.shape in {(n,), (n, 1)} and targets.shape == (n, 2):
            return chosen_metric(C_INDEX)
    raise DataError(
        f"which metric scores the loss {loss_name(loss)}, outputs {described(outputs)} and targets "
        f"{described(targets)} is not certain: give one, Task(..., metric=...): {listed()}, or a "
        "function of (outputs, targets)"
    )
