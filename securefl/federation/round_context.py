"""What both sides of a round know of it before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from securefl.types import Plan, State


@dataclass(frozen=True, slots=True)
class RoundContext:
    """The round after `state`."""

    run: str
    """Id of the run, 64 hex digits, which every signed header names."""
    state: State
    """What clients begin with."""
    plan: Plan
    """What they are going to send."""
    times: Mapping[str, int]
    """The clients in order, and how often each counts."""
    since: Mapping[str, int] = field(default_factory=dict)
    """The last round in which a client's contributions counted; 0 for who is not in it."""
    in_memory: frozenset[str] = frozenset()
    """Names of the messages that are handed over in memory and neither sealed nor signed."""

    @property
    def number(self) -> int:
        """From 1."""
        return self.state.round + 1

    @property
    def signed(self) -> bool:
        """Whether any message is bytes."""
        specs = (*self.plan.sums, *self.plan.update)
        return not all(spec.name in self.in_memory for spec in specs)
