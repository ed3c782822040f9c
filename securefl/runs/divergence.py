"""Rule by which a run has diverged, in simulations and over a network."""

import math

from securefl.errors import Diverged

LOST = 1e6
"""Multiple of the first round's loss from which training does not recover."""


def check_loss(round_number: int, loss: float, first_loss: float | None) -> None:
    """Raise Diverged where a round's model is lost, before its numbers overflow.

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
