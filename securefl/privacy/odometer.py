"""Privacy odometer of a run: its spending, known round by round before it, and counted."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, isfinite
from typing import final

from securefl.errors import ConfigError, RunFolderError
from securefl.privacy.accountants import epsilon
from securefl.privacy.events import Level, PrivacyEvent
from securefl.privacy.history import History

MARKS = 20
"""Rounds of a run at which ε is worked out by PLD, which takes a tenth of a second or more."""


@final
@dataclass(frozen=True, slots=True)
class Spending:
    """Releases of a run, by round."""

    level: Level
    delta: float
    rounds: int
    of_round: Callable[[int], tuple[PrivacyEvent, ...]]
    """Releases of the round after so many."""
    budget: float | None = None
    """Budget: the ε by PLD that the run may spend."""

    def charged(self, history: History, done: int) -> History:
        """Return the history with the round after `done` in it."""
        for event in self.of_round(done):
            history = history.plus(self.level, event)
        return history

    def history(self, rounds: int) -> History:
        """Return the history of a run without interruption, after so many rounds."""
        history = History()
        for done in range(rounds):
            history = self.charged(history, done)
        return history

    def covers(self, history: History, done: int) -> bool:
        """Return whether a history has all that so many rounds release."""
        need, have = self.history(done).counts(self.level), history.counts(self.level)
        return all(have[event] >= n for event, n in need.items())

    def epsilon_after(self, history: History, done: int, rounds: int) -> float:
        """Return the ε by PLD once the rounds after `done` and up to `rounds` have been, too."""
        for extra in range(done, rounds):
            history = self.charged(history, extra)
        return epsilon(history.events(self.level), self.delta)

    def last_round(self, history: History, done: int) -> int:
        """Return the last round within the budget; `done` where the next one would exceed it."""
        if self.budget is None or self.epsilon_after(history, done, self.rounds) <= self.budget:
            return self.rounds
        planned = range(done + 1, self.rounds + 1)
        n_within = bisect_right(
            planned, self.budget, key=lambda rounds: self.epsilon_after(history, done, rounds)
        )
        return done + n_within

    def next_mark(self, done: int) -> int:
        """Return the first marked round from `done` on: ε until then is at most what it is there.

        The same rounds in a run that was interrupted.
        """
        every = ceil(self.rounds / MARKS)
        return min(self.rounds, ceil(done / every) * every)


@final
class Odometer:
    """Odometer: a run's history, and the last round that its budget allows."""

    def __init__(self, spending: Spending, history: History | None = None, done: int = 0) -> None:
        """Start at a run's start, or after `done` rounds with this history.

        Raises:
            ConfigError: not one round is within the budget.
            RunFolderError: the history lacks a round.
        """
        self.spending = spending
        self.history = history or History()
        if not spending.covers(self.history, done):
            raise RunFolderError(
                f"the privacy history lacks releases of the {done} rounds before, so what the run "
                "has spent is not known: put a copy of it back if you have one, or start a new run "
                "on the assumption that its budget is gone"
            )
        self.last_round = spending.last_round(self.history, done)
        self._marked: tuple[int, float] | None = None
        if not self.last_round:
            least = spending.epsilon_after(self.history, 0, 1)
            words = (
                f"ε = {least:.3g}; take a larger privacy.sigma (`securefl privacy cost` finds it), "
                "or a larger budget"
                if isfinite(least)
                else "ε is infinite, since clients tell something without noise (`securefl "
                "privacy cost` says what); leave that, or the budget, out"
            )
            raise ConfigError(f"privacy.budget = {spending.budget:g}: after one round {words}")

    def charge(self, done: int) -> History:
        """Charge the round after `done` before it: its releases count, whatever happens."""
        self.history = self.spending.charged(self.history, done)
        return self.history

    def epsilon(self, done: int) -> float | None:
        """Return an upper bound of the spent ε, PLD's at the next mark; None where infinite."""
        mark = min(self.spending.next_mark(done), self.last_round)
        if self._marked is None or self._marked[0] != mark:
            self._marked = mark, self.spending.epsilon_after(self.history, done, mark)
        value = self._marked[1]
        return value if isfinite(value) else None

    def stopped(self, done: int) -> str:
        """Say why a run of so many rounds is over; empty where it has done all of them."""
        spending = self.spending
        if done >= spending.rounds:
            return ""
        return (
            f"stopped after round {done} of {spending.rounds}: the next would take ε to "
            f"{spending.epsilon_after(self.history, done, done + 1):.6g}, above "
            f"privacy.budget = {spending.budget:g}"
        )
