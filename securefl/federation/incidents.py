"""Contributions that did not count, and the error of a round without any."""

from dataclasses import dataclass, field

from securefl.errors import Diverged, TooFewContributions
from securefl.federation.ledger import utc_now

BOOKKEEPING_BYTES = 16
"""Length in bytes of a broadcast total's weight and number of clients."""

SPOILED = "total"
"""Name, in an incident, of any sum of the round that was refused after it was added up."""

PASSED = "pass"
"""Name, in an incident, of a round that leaves the model as it was for want of clients
(`sites.late`), or as totals of it would show one."""

SITS_OUT = "sits out"
"""Name, in an incident, of a round without a client that has interrupted others."""


@dataclass(frozen=True, slots=True)
class Incident:
    """Contribution that did not count, with the reason."""

    round: int
    name: str
    """Name of the message that was refused."""
    client: str
    reason: str
    diverged: bool = False
    """True where the client's own values cannot be sent, as they could not in a simulation."""
    at: str = field(default_factory=utc_now, compare=False, repr=False)
    """Time, UTC."""
    run: str = field(default="", compare=False, repr=False)
    """Id of the session in which it was written; empty before that."""


def nobody_left(
    round_number: int, first_reason: str, *, diverged: bool
) -> Diverged | TooFewContributions:
    """Return the error of a round without any contribution.

    `diverged` where values that cannot be sent were among the reasons.
    """
    if diverged:
        return Diverged(
            f"round {round_number}: no client's values can be used; first of all: {first_reason}. "
            "If training diverged, lower train.lr, or drop it earlier (train.lr_drops)"
        )
    return TooFewContributions(
        f"round {round_number}: no contribution counts; first of all: {first_reason}"
    )
