"""How much a run may spend, asked before it spends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from securefl.privacy.accountants import check_delta, epsilon
from securefl.privacy.events import Level, PrivacyEvent, require_number
from securefl.privacy.history import History


@final
@dataclass(frozen=True, slots=True)
class Budget:
    """An ε, by PLD, that a run's history must not exceed.

    Raises ConfigError where ε or δ is out of range.
    """

    level: Level
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        require_number("budget epsilon", self.epsilon, 0, float("inf"), "3 is usual")
        check_delta(self.delta)

    def epsilon_after(self, history: History, *planned: PrivacyEvent) -> float:
        """ε at the budget's level once the planned releases have happened, too."""
        return epsilon((*history.events(self.level), *planned), self.delta)

    def allows(self, history: History, *planned: PrivacyEvent) -> bool:
        """Whether the planned releases, a round's for example, stay within the budget."""
        return self.epsilon_after(history, *planned) <= self.epsilon
