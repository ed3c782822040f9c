"""What a run has spent, while it goes on."""

from __future__ import annotations

from math import isfinite
from typing import final

from securefl.errors import ConfigError, RunFolderError
from securefl.privacy.history import History
from securefl.privacy.spending import Spending


@final
class Meter:
    """A run's history, and the last round that its budget allows."""

    def __init__(self, spending: Spending, history: History | None = None, done: int = 0) -> None:
        """At a run's start, or after `done` rounds with this history.

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
        """Before the round after `done`: what it is about to release counts, whatever happens."""
        self.history = self.spending.charged(self.history, done)
        return self.history

    def epsilon(self, done: int) -> float | None:
        """What was spent, at most: ε by PLD at the next marked round; None where it is infinite."""
        mark = min(self.spending.next_mark(done), self.last_round)
        if self._marked is None or self._marked[0] != mark:
            self._marked = mark, self.spending.epsilon_after(self.history, done, mark)
        value = self._marked[1]
        return value if isfinite(value) else None

    def stopped(self, done: int) -> str:
        """Why a run of so many rounds is over; empty where it has done all of them."""
        spending = self.spending
        if done >= spending.rounds:
            return ""
        return (
            f"stopped after round {done} of {spending.rounds}: the next would take ε to "
            f"{spending.epsilon_after(self.history, done, done + 1):.6g}, above "
            f"privacy.budget = {spending.budget:g}"
        )
