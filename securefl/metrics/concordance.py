"""C-index of survival: how often of two whose order is known the one at more risk has it first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from securefl.errors import DataError
from securefl.metrics.classes import wrong_form
from securefl.metrics.metric import OfMeans, is_nan, zeros_and_ones

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Concordance(OfMeans):
    """Harrell's C (JAMA 1982): share of comparable pairs that the outputs put in order.

    A pair is comparable where one has its event before the other's event or end of observation, or
    at the time at which the other's observation ends. Equal outputs count half. Pairs across
    clients are never seen, so over clients it is the weighted mean of their own.
    """

    name: ClassVar[str] = "c-index"
    title: ClassVar[str] = "C-index"
    needs: ClassVar[str] = (
        "one output a sample, larger for more risk, (batch) or (batch, 1), and targets (batch, 2): "
        "the time, and 1 for an event or 0 for the end of observation"
    )
    about: ClassVar[str] = "survival, of targets (time, event): pairs whose risks are in order"
    of_survival: ClassVar[bool] = True

    def of(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the value on these samples; NaN without comparable pairs: see `Metric.of`."""
        n = len(targets)
        if targets.shape != (n, 2) or outputs.shape not in {(n,), (n, 1)}:
            raise wrong_form(self.name, self.needs, outputs, targets)
        if not zeros_and_ones(targets[:, 1]):
            raise DataError(
                f"metric {self.name}: an event is 1, the end of observation 0, and these are "
                "others; targets are (time, event)"
            )
        if is_nan(outputs):
            return math.nan
        risk_N, (time_N, event_N) = outputs.cpu().double().reshape(-1), targets.cpu().double().T
        pairs, in_order = 0, 0.0
        for i in event_N.nonzero().reshape(-1).tolist():  # one at a time: n² would fill memory
            after_N = (time_N > time_N[i]) | ((time_N == time_N[i]) & (event_N == 0))
            later = risk_N[after_N]
            pairs += len(later)
            in_order += int((later < risk_N[i]).sum()) + 0.5 * int((later == risk_N[i]).sum())
        return in_order / pairs if pairs else math.nan
