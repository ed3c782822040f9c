"""The round whose totals were being opened when its server stopped."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InFlight:
    """Clients of the total that was asked for last.

    The authority opens a total of a repeated round for the same clients alone.
    """

    round: int
    clients: tuple[str, ...]
