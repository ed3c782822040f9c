"""What an engine is: a way of carrying out the local training of a round's clients."""

from __future__ import annotations

from typing import Protocol

from securefl.federation.round import OpenRound


class Engine(Protocol):
    """Trains clients. Every engine gives the same result, within rounding."""

    def train(self, ongoing: OpenRound) -> None:
        """Have all clients of the round train, and hand in what they send."""

    def close(self) -> None:
        """Let go of processes and threads; safe to call twice."""
