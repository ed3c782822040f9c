"""Clients that were lost between two sealed totals of a round, which then counts for nothing.

The difference of the two totals could show such a client. It takes part in the next round: its line
may have been down for a moment. Lost so a second time, it sits out the round after, then two, four
and so on, while enough others are there. So one that loses its line on purpose has one round in
seventeen pass, or, where it goes on and on, one in 33. Several have as many more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

MOST_OUT = 32
"""Most rounds that a client sits out."""
FORGOTTEN = 16
"""Rounds of a client that counted, after which one of its interruptions is forgotten."""
_TIMES, _COUNTED = "interrupted", "counted since"


@dataclass(slots=True)
class Interruptions:
    """Rounds of a run that clients have interrupted, and those that they sit out for it."""

    least: int
    """Number of clients without which no client sits out."""
    _times: dict[str, int] = field(default_factory=dict)
    """Number of rounds that each client has interrupted and that are not forgotten."""
    _counted: dict[str, int] = field(default_factory=dict)
    """Number of rounds in which each of them has counted since."""
    _until: dict[str, int] = field(default_factory=dict)
    """Number of the last round that each client sits out; a run that is resumed has all of them
    back."""

    def numbers(self) -> dict[str, dict[str, float]]:
        """Return the interruptions as numbers by client, for a checkpoint."""
        both = {_TIMES: self._times, _COUNTED: self._counted}
        return {name: {c: float(n) for c, n in of.items()} for name, of in both.items() if of}

    def go_on_from(self, numbers: Mapping[str, Mapping[str, float]]) -> None:
        """Take up what `numbers` gave."""
        self._times, self._counted = (
            {client: int(n) for client, n in numbers.get(name, {}).items()}
            for name in (_TIMES, _COUNTED)
        )

    def note(self, number: int, lost: Collection[str]) -> None:
        """Have these, who have interrupted the round of this number, sit out what is due."""
        for client in lost:
            times = self._times[client] = self._times.get(client, 0) + 1
            self._counted[client] = 0
            if times > 1:
                self._until[client] = number + min(2 ** (times - 2), MOST_OUT)

    def counted(self, clients: Collection[str]) -> None:
        """Note that these counted in a round; interruptions of long ago are forgotten."""
        for client in self._times.keys() & clients:
            self._counted[client] += 1
            if self._counted[client] == FORGOTTEN:
                self._counted[client] = 0
                self._times[client] -= 1
                if not self._times[client]:
                    del self._times[client], self._counted[client]

    def out_of(self, number: int, present: Sequence[str]) -> list[str]:
        """Return the clients of these that are to sit out the round of this number."""
        return [name for name in present if self._until.get(name, 0) >= number]

    def words(self, client: str) -> str:
        """Return the reason why a client sits out."""
        return (
            f"{client}: sits out until round {self._until[client]}: {self._times[client]} rounds "
            "have lately lost it between two of their totals"
        )
