"""Differential privacy of opened scores, at the level of clients: clipped, then noised."""

from __future__ import annotations

from dataclasses import dataclass

from securefl.exchange.gaussian import Draw


@dataclass(frozen=True, slots=True)
class ScoreNoise:
    """What a score is clipped to, and the Gaussian noise that it then gets.

    A client moves its score by at most `bound`, so σ = `deviation` / `bound`.
    """

    bound: float
    deviation: float
    """In units of scores."""

    def on(self, score: float, draw: Draw) -> float:
        """Return the score, or what of 0..`bound` is next to it, with noise."""
        return min(max(score, 0.0), self.bound) + float(draw(1, self.deviation)[0])
