"""Clients that were lost between two sealed totals of a round, which then counts for nothing.

The difference of the two totals could show such a client. It takes part in the next round: its line
may have been down for a moment. Lost so a second time, it sits out the round after, then two, four
and so on, so that a client that fails, or wants to, delays a run and does not stop it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

MOST_OUT = 32
"""Most rounds that a client sits out."""
_TIMES, _UNTIL = "interrupted", "out until"


@dataclass(slots=True)
class Interruptions:
    """Rounds of a run that clients have interrupted, and those that they sit out for it."""

    least: int
    """Number of clients without which no client sits out."""
    _times: dict[str, int] = field(default_factory=dict)
    """Number of rounds that each client has interrupted."""
    _until: dict[str, int] = field(default_factory=dict)
    """Number of the last round that each client sits out."""

    def numbers(self) -> dict[str, dict[str, float]]:
        """Return the rounds as numbers by client, for a checkpoint."""
        both = {_TIMES: self._times, _UNTIL: self._until}
        return {name: {c: float(n) for c, n in of.items()} for name, of in both.items() if of}

    def go_on_from(self, numbers: Mapping[str, Mapping[str, float]]) -> None:
        """Take up what `numbers` gave."""
        self._times, self._until = (
            {client: int(n) for client, n in numbers.get(name, {}).items()}
            for name in (_TIMES, _UNTIL)
        )

    def note(self, number: int, lost: Collection[str]) -> None:
        """Have these, who have interrupted the round of this number, sit out what is due."""
        for client in lost:
            times = self._times[client] = self._times.get(client, 0) + 1
            if times > 1:
                self._until[client] = number + min(2 ** (times - 2), MOST_OUT)

    def taking_part(self, number: int, present: Sequence[str]) -> Sequence[str]:
        """Return the clients of these that are in the round of this number."""
        among = [name for name in present if self._until.get(name, 0) < number]
        return among if len(among) >= self.least else present

    def words(self, client: str) -> str:
        """Return the reason why a client sits out."""
        return (
            f"{client}: sits out until round {self._until[client]}: "
            f"{self._times[client]} rounds have lost it between two of their totals"
        )
