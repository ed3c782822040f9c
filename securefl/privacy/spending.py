"""What each round of a run spends, known before the run; so is where a budget ends it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import final

from securefl.privacy.accountants import epsilon
from securefl.privacy.events import Level, PrivacyEvent
from securefl.privacy.history import History

MARKS = 20
"""At so many rounds of a run ε is worked out by PLD, which takes a tenth of a second or more."""


@final
@dataclass(frozen=True, slots=True)
class Spending:
    """A run's releases by round."""

    level: Level
    delta: float
    rounds: int
    of_round: Callable[[int], tuple[PrivacyEvent, ...]]
    """What the round after so many releases."""
    budget: float | None = None
    """ε by PLD that the run may spend."""

    def charged(self, history: History, done: int) -> History:
        """The history with the round after `done` in it."""
        for event in self.of_round(done):
            history = history.plus(self.level, event)
        return history

    def history(self, rounds: int) -> History:
        """Of a run that was not interrupted, after so many rounds."""
        history = History()
        for done in range(rounds):
            history = self.charged(history, done)
        return history

    def covers(self, history: History, done: int) -> bool:
        """Whether a history has all that so many rounds release."""
        need, have = self.history(done).counts(self.level), history.counts(self.level)
        return all(have[event] >= n for event, n in need.items())

    def epsilon_after(self, history: History, done: int, rounds: int) -> float:
        """ε by PLD once the rounds after `done` and up to `rounds` have been, too."""
        for extra in range(done, rounds):
            history = self.charged(history, extra)
        return epsilon(history.events(self.level), self.delta)

    def last_round(self, history: History, done: int) -> int:
        """The last round that stays within the budget; `done` where the next one would not."""
        if self.budget is None or self.epsilon_after(history, done, self.rounds) <= self.budget:
            return self.rounds
        planned = range(done + 1, self.rounds + 1)
        n_within = bisect_right(
            planned, self.budget, key=lambda rounds: self.epsilon_after(history, done, rounds)
        )
        return done + n_within

    def next_mark(self, done: int) -> int:
        """The first of the marked rounds from `done` on: ε until then is at most what it is there.

        The same rounds in a run that was interrupted.
        """
        every = ceil(self.rounds / MARKS)
        return min(self.rounds, ceil(done / every) * every)
