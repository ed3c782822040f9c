"""R², the coefficient of determination."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from securefl.metrics.classes import wrong_form
from securefl.metrics.metric import Metric, PooledScore

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class RSquared(Metric):
    """R², a plain mean over a sample's targets; at most 1.

    Of each target 1 - Σ (y - output)² / Σ (y - mean of y)²: below 0 where the model predicts worse
    than the targets' mean. One that never changes counts as 1 where it is met exactly, and as 0
    where it is not, as in scikit-learn.
    """

    name: ClassVar[str] = "r2"
    title: ClassVar[str] = "R²"
    needs: ClassVar[str] = "a number for each target"
    about: ClassVar[str] = "numbers: 1 less the share of their variance that is missed"
    low: ClassVar[float] = -math.inf
    of_numbers: ClassVar[bool] = True

    def of(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the value on these samples: see `Metric.of`."""
        output_BT, y_BT = self._columns(outputs, targets)
        residual_T = (y_BT - output_BT).square().sum(dim=0)
        return _explained(residual_T, (y_BT - y_BT.mean(dim=0)).square().sum(dim=0))

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return n, Σ y, Σ y² and Σ (y - output)² of each target, shape (4 x targets,)."""
        output_BT, y_BT = self._columns(outputs, targets)
        powers = (y_BT**0, y_BT, y_BT.square(), (y_BT - output_BT).square())
        found = y_BT.new_empty(4, y_BT.shape[1])
        for row, values in zip(found, powers, strict=True):
            row.copy_(values.sum(dim=0))
        return found.reshape(-1)

    def pooled(self, sums: Tensor) -> PooledScore:
        """Return the value on the union of all clients' samples."""
        n_T, y_T, square_T, residual_T = sums.reshape(4, -1)
        spread_T = square_T - y_T.square() / n_T
        # A target that never changes leaves the rounding of the two terms, and no spread.
        spread_T = spread_T.where(spread_T > square_T * 1e-14, spread_T * 0)
        return PooledScore(_explained(residual_T, spread_T), self.pooling)

    def _columns(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if outputs.shape != targets.shape:
            raise wrong_form(self.name, self.needs, outputs, targets)
        output_BT, y_BT = (v.reshape(len(v), -1).cpu().double() for v in (outputs, targets))
        return output_BT, y_BT


def _explained(residual_T: Tensor, spread_T: Tensor) -> float:
    flat_T = (residual_T != 0).double()
    return float(1 - (residual_T / spread_T).where(spread_T != 0, flat_T).mean())
