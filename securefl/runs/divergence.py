"""When a run has diverged: one rule, wherever its clients are."""

from __future__ import annotations

import math

from securefl.errors import Diverged

LOST = 1e6
"""How many times the first round's loss no training comes back from."""


def check_loss(round_number: int, loss: float, first_loss: float | None) -> None:
    """Raise Diverged where a round's model is lost, before its numbers run out.

    Args:
        round_number: from 1.
        loss: on the test data, after the round.
        first_loss: of the first round; None in it.
    """
    most = math.inf if first_loss is None else LOST * first_loss
    if not (math.isfinite(loss) and loss <= most):
        raise Diverged(
            f"round {round_number}: the loss on the test data is {loss:.3g}: training "
            "diverged. Lower train.lr, or drop it earlier (train.lr_drops)"
        )
