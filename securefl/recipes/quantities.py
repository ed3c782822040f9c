"""Quantities that a table's cells hold, as recipes name them; `figures` reads them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Quantity(StrEnum):
    """Number that a run's folder tells."""

    ACCURACY = "accuracy"
    """Test accuracy after the last round, in %; here and below of a regression R², times 100."""
    MEAN_ACCURACY = "mean-accuracy"
    """Test accuracy, mean over the last rounds, in %."""
    BEST_ACCURACY = "best-accuracy"
    """Test accuracy of the best round, in %."""
    EXTERNAL_ACCURACY = "external-accuracy"
    """Accuracy of the final global model on clients that never trained, their mean, in %."""
    ROUNDS_TO_TARGET = "rounds-to-target"
    """First round whose test accuracy is at least the target."""
    MINUTES_TO_TARGET = "minutes-to-target"
    """Minutes on simulated devices of the rounds up to that one."""
    WH_TO_TARGET = "wh-to-target"
    """Energy of all devices by then, in Wh."""
    SELECTED_SHARE = "selected-share"
    """Share of all selections that clients of some qualities had, in %."""
    EXCHANGES = "exchanges"
    """Communication rounds of the whole run: 3L + 1 for each round of FedTAN."""
    EXTRA_EXCHANGES = "extra-exchanges"
    """Share of the exchanges that carry something else than the model, in %."""
    MEGABYTES_PER_ROUND = "megabytes-per-round"
    """Traffic as FedTAN's Table 3 counts it, in MiB, mean over the rounds."""
    GIGABYTES = "gigabytes"
    """Traffic of the whole run in the same count, in GiB."""
    GIGABITS = "gigabits"
    """Traffic of the whole run in the same count, in 2^30 bits."""
    EXTRA_TRAFFIC = "extra-traffic"
    """Share of the traffic that is something else than the model, in %."""

    @property
    def decimals(self) -> int:
        """Digits after the point that tables show."""
        return DECIMALS[self]


DECIMALS = {
    Quantity.ACCURACY: 2,
    Quantity.MEAN_ACCURACY: 2,
    Quantity.BEST_ACCURACY: 2,
    Quantity.EXTERNAL_ACCURACY: 2,
    Quantity.ROUNDS_TO_TARGET: 1,
    Quantity.MINUTES_TO_TARGET: 3,
    Quantity.WH_TO_TARGET: 4,
    Quantity.SELECTED_SHARE: 1,
    Quantity.EXCHANGES: 0,
    Quantity.EXTRA_EXCHANGES: 2,
    Quantity.MEGABYTES_PER_ROUND: 4,
    Quantity.GIGABYTES: 4,
    Quantity.GIGABITS: 4,
    Quantity.EXTRA_TRAFFIC: 4,
}
SIMULATED = {Quantity.MINUTES_TO_TARGET, Quantity.WH_TO_TARGET}
TARGETED = {Quantity.ROUNDS_TO_TARGET, *SIMULATED}
QualityName = Literal["normal", "irrelevant", "blurred", "salt-and-pepper", "polluted", "noisy"]


class Measure(BaseModel):
    """Table `measure` of a recipe, its rows and its columns."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    quantity: Quantity = Quantity.ACCURACY
    target: Annotated[float, Field(gt=0, le=100, strict=True)] | None = None
    """Test accuracy in %, for the quantities `…-to-target` alone."""
    last: Annotated[int, Field(ge=1, le=10**6, strict=True)] | None = None
    """Rounds of `mean-accuracy` alone; 10 where absent."""
    qualities: tuple[QualityName, ...] = ()
    """Those of `selected-share` alone."""
    adapt_bn: Annotated[float, Field(ge=0, lt=1, strict=True)] | None = None
    """τ of the BN statistics re-estimated from test batches, for `external-accuracy` alone; the
    global statistics where absent."""
    batch_size: Annotated[int, Field(ge=1, le=10**6, strict=True)] = 32
    """Number of samples in these test batches."""

    @model_validator(mode="after")
    def _fits_together(self) -> Measure:
        if (self.quantity in TARGETED) != (self.target is not None):
            raise ValueError(
                f'measure.quantity = "{self.quantity}" with measure.target = {self.target}: '
                '"rounds-to-target" (or minutes, or wh) needs a target in %, such as 90.0, and no '
                "other takes one"
            )
        if self.last is not None and self.quantity is not Quantity.MEAN_ACCURACY:
            raise ValueError(
                f'measure.last = {self.last} with measure.quantity = "{self.quantity}": it goes '
                'with "mean-accuracy" alone'
            )
        if (self.quantity is Quantity.SELECTED_SHARE) != bool(self.qualities):
            raise ValueError(
                f'measure.quantity = "{self.quantity}" with measure.qualities = '
                f'{list(self.qualities)}: "selected-share" needs some, such as ["blurred"], and '
                "no other takes them"
            )
        if self.adapt_bn is not None and self.quantity is not Quantity.EXTERNAL_ACCURACY:
            raise ValueError(
                f'measure.adapt_bn = {self.adapt_bn} with measure.quantity = "{self.quantity}": it '
                'goes with "external-accuracy" alone'
            )
        return self
