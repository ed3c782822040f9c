"""Contributions that did not count, and why a round ends without any."""

from __future__ import annotations

from dataclasses import dataclass

from securefl.errors import Diverged, TooFewContributions

BOOKKEEPING_BYTES = 16
"""A broadcast total's weight and number of clients."""

SPOILED = "total"
"""In an incident, the name of whatever sum of the round was refused once it was added up."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A contribution that did not count, and why."""

    round: int
    name: str
    """Of the message that was refused."""
    client: str
    reason: str


def nobody_left(
    round_number: int, first_reason: str, *, diverged: bool
) -> Diverged | TooFewContributions:
    """Why a round ends without any contribution; `diverged` where values were among the reasons."""
    if diverged:
        return Diverged(
            f"round {round_number}: no client's values can be used; first of all: {first_reason}. "
            "If training diverged, lower train.lr, or drop it earlier (train.lr_drops)"
        )
    return TooFewContributions(
        f"round {round_number}: no contribution counts; first of all: {first_reason}"
    )
