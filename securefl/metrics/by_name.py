"""All metrics by their names, and the names and values of metrics for people."""

import math
from collections.abc import Mapping

from securefl.errors import ConfigError
from securefl.io.text import printable
from securefl.metrics.auc import Auc
from securefl.metrics.calibration import CalibrationError
from securefl.metrics.classes import Accuracy, BalancedAccuracy, Dice, LabelAccuracy, MacroF1
from securefl.metrics.concordance import Concordance
from securefl.metrics.metric import Metric, PooledBy, PooledScore
from securefl.metrics.r_squared import RSquared

METRICS: dict[str, type[Metric]] = {
    metric.name: metric
    for metric in (
        *(Accuracy, LabelAccuracy, BalancedAccuracy, MacroF1, Auc, CalibrationError),
        *(RSquared, Concordance, Dice),
    )
}
"""Metrics by name; a line here, and its file, make another."""
ACCURACY, LABEL_ACCURACY, R2 = Accuracy.name, LabelAccuracy.name, RSquared.name
C_INDEX, DICE = Concordance.name, Dice.name
SHARES = frozenset(name for name, metric in METRICS.items() if metric.accuracy)
"""Metrics that are accuracies: shares of right answers, 0..1."""
OVER_ALL = {
    PooledBy.SUMS: "over all samples",
    PooledBy.HISTOGRAM: "over all samples",
    PooledBy.MEAN: "weighted by samples",
}
"""Words on a value over all clients, by the way in which it is found."""


def listed() -> str:
    """Return the names of all metrics, each with what it measures, in one sentence's part."""
    return ", ".join(f'"{name}" ({metric.about})' for name, metric in METRICS.items())


def title(metric: str) -> str:
    """Return the name of a metric, for people; one of no metric may come from a foreign folder."""
    return METRICS[metric].title if metric in METRICS else printable(metric)


def heading(metric: str) -> str:
    """Return the name of a metric, to begin a line with; a `module:function` stays as it is."""
    return title(metric) if ":" in metric else title(metric)[:1].upper() + title(metric)[1:]


def shown(metric: str, value: float) -> str:
    """Return a value of a metric, for people: accuracies in %, and none as such."""
    if math.isnan(value):
        return "none"
    return f"{100 * value:.1f} %" if metric in SHARES else f"{value:.3f}"


def shown_over_all(metric: str, pooled: PooledScore) -> str:
    """Return the value over all clients, for people, after words on where it comes from."""
    value = shown(metric, pooled.value)
    within = f" ± {pooled.within:.3f}" if pooled.pooling is PooledBy.HISTOGRAM else ""
    return f"{OVER_ALL[pooled.pooling]} {value}{within}"


def shown_compared(metric: str, score: float, pooled: PooledScore | None) -> str:
    """Return the score by which rounds are compared: the value over all clients where it is one."""
    if pooled is None or math.isnan(pooled.value):
        return shown(metric, score)
    return shown_over_all(metric, pooled)


def range_of(metric: str) -> tuple[float, float]:
    """Return the least and the largest value of a metric; of a user's function any."""
    known = METRICS.get(metric)
    return (known.low, known.high) if known else (-math.inf, math.inf)


def is_better(metric: str, value: float, than: float) -> bool:
    """Return whether a value is better than another; of a user's function a larger one is."""
    known = METRICS.get(metric)
    return value > than if known is None or known.larger_is_better else value < than


def worst_of(metric: str, values: Mapping[str, float]) -> str:
    """Return the name of the worst of some values, none of which is NaN; of equals the first."""
    worst = next(iter(values))
    for name in values:
        if is_better(metric, values[worst], values[name]):
            worst = name
    return worst


def worst_said(metric: str, values: Mapping[str, float]) -> str:
    """Return words on the client of the worst value, and on those of none; empty of nobody."""
    known = {name: value for name, value in values.items() if not math.isnan(value)}
    without = [name for name in values if name not in known]
    words = [f"no {title(metric)} at {', '.join(without)}"] if without else []
    if known:
        name = worst_of(metric, known)
        words.insert(0, f"worst {name} with {shown(metric, known[name])}")
    return ", ".join(words)


def accuracy_of(metric: str, value: float) -> float:
    """Return the value of a metric that is an accuracy, 0..1; raises ConfigError for others."""
    if metric not in SHARES:
        raise ConfigError(
            f"there is no accuracy: the metric is {title(metric)}, {value:.3g}; read the score, or "
            "give the task another metric"
        )
    return value
