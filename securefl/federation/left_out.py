"""Clients left out of the next rounds: lost between two totals, or searched for spoilt ones.

The difference of the two totals could show such a client. It takes part in the next round: its line
may have been down for a moment. Lost so a second time, it sits out the round after, then two, four
and so on, while enough others are there. So one that loses its line on purpose has one round in
seventeen pass, or, where it goes on and on, one in 33. Several have as many more.

A total that the authority refuses shows that one of its clients has sealed rubbish, and not which.
Its round is passed: the model stays. The next rounds are of a part of these clients, until totals
open. Then the others come back, one group after the other. A group with which totals are refused
again is halved; a client that is such a group alone is guilty, and stays out.

The search finds a client that spoils every total, and nobody where a single total was spoiled. A
client that spoils some totals can throw suspicion on others in the same rounds.
"""

from __future__ import annotations

import random
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


GUILTY = "guilty"
_ALL, _CLEAR, _GROUP, _TRIED = "suspects", "suspects clear", "suspects back ", "suspects tried"


@dataclass(slots=True)
class Suspects:
    """Search of a run for the clients that spoil totals."""

    least: int
    """Least number of clients of a total."""
    guilty: set[str] = field(default_factory=set)
    """Names of clients that stay out."""
    _all: list[str] = field(default_factory=list)
    """Clients of whom at least one has spoiled a total; empty where nobody is searched for."""
    _clear: list[str] = field(default_factory=list)
    """Clients with whom totals open; before there are any, those of the next attempt."""
    _groups: list[list[str]] = field(default_factory=list)
    """Groups of the other clients, once some are clear; the last one comes back next."""
    _n_tried: int = 0
    """Number of attempts that were refused since the search began."""

    def numbers(self) -> dict[str, dict[str, float]]:
        """Return the search as numbers by client, for a checkpoint."""
        lists = {GUILTY: sorted(self.guilty), _ALL: self._all, _CLEAR: self._clear}
        lists |= {f"{_GROUP}{i}": group for i, group in enumerate(self._groups)}
        found = {name: {c: float(i) for i, c in enumerate(of)} for name, of in lists.items() if of}
        return found | ({_TRIED: {"": float(self._n_tried)}} if self._n_tried else {})

    def go_on_from(self, numbers: Mapping[str, Mapping[str, float]]) -> None:
        """Take up the search that `numbers` gave."""

        def listed(name: str) -> list[str]:
            places = numbers.get(name, {})
            return sorted(places, key=lambda client: places[client])

        self.guilty = set(listed(GUILTY))
        self._all, self._clear = listed(_ALL), listed(_CLEAR)
        n_groups = sum(name.startswith(_GROUP) for name in numbers)
        self._groups = [group for i in range(n_groups) if (group := listed(f"{_GROUP}{i}"))]
        self._n_tried = int(numbers.get(_TRIED, {}).get("", 0))

    def taking_part(self, present: Collection[str]) -> list[str]:
        """Return the clients of these that are in the next round."""
        back = self._groups[-1] if self._groups else []
        return [
            name
            for name in present
            if name not in self.guilty and (not self._all or name in self._clear or name in back)
        ]

    def opened(self, signers: Collection[str]) -> None:
        """Clear these clients, whose totals have all been opened; absent ones stay suspects."""
        if self._groups:
            self._clear += [name for name in self._groups.pop() if name in signers]
        elif self._all:
            self._clear = [name for name in self._clear if name in signers]
            self._groups = _halves([name for name in self._all if name not in self._clear])
        if not self._groups:
            self._all = []

    def refused(self, signers: Sequence[str]) -> bool:
        """Suspect the clients of a refused total; returns False where none can be left out."""
        back = self._groups.pop() if self._groups else []
        if self._all and not back:
            self._n_tried += 1
        elif set(back) & set(signers):
            if len(back) == 1:
                self.guilty.update(back)
            else:
                self._groups += _halves(back)
            if not self._groups:
                self._all = []
            return True
        else:  # nobody is clear, or not any longer
            self._all, self._groups, self._n_tried = list(signers), [], 0
        return self._try_others()

    def _try_others(self) -> bool:
        n = len(self._all)
        n_out = n - max(self.least, (n + 1) // 2)
        if n_out < 1 or self._n_tried > 2 * n:
            return False
        start = self._n_tried * n_out
        order = self._all[start % n :] + self._all[: start % n]
        if start >= n:  # every single one has been left out: there are several of them
            random.Random(self._n_tried).shuffle(order)  # noqa: S311 (nobody's secret)
        self._clear = order[n_out:]
        return True


def _halves(group: list[str]) -> list[list[str]]:
    half = len(group) // 2
    return [part for part in (group[:half], group[half:]) if part]
