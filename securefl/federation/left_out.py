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

A round that passes leaves the model as it was, so the totals that were opened in it and those of
the next round are of the same values, where clients draw nothing. All lists of clients at one model
are therefore chosen so that no sum and difference of their totals shows too few: the next round is
of the same clients, or leaves out others, too; where neither can be had, none is begun.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement, islice

from securefl.federation.opening_history import MOST_LISTS, fewest
from securefl.federation.total import Terms

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

    @property
    def back(self) -> Sequence[str]:
        """The group that is to come back in the next round; empty where none is."""
        return self._groups[-1] if self._groups else []

    @property
    def suspected(self) -> list[str]:
        """Clients of whom one spoils totals, as far as is known; empty without a search."""
        return [name for group in self._groups for name in group] or list(self._all)

    def taking_part(self, present: Collection[str]) -> list[str]:
        """Return the clients of these that are in the next round."""
        return [
            name
            for name in present
            if name not in self.guilty
            and (not self._all or name in self._clear or name in self.back)
        ]

    def opened(self, signers: Collection[str], waiting: Collection[str] = ()) -> None:
        """Clear these clients, whose totals have all been opened; absent ones stay suspects.

        Those of the group that comes back which are `waiting` come back next.
        """
        if self._groups:
            back = self._groups.pop()
            self._clear += [name for name in back if name in signers]
            if kept := [name for name in back if name in waiting and name not in signers]:
                self._groups.append(kept)
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


MOST_TRIED = 500
"""Lists that are tried before a model is taken to have no other."""
List = tuple[tuple[str, int, int], ...]
"""Name, `times` and `since` of each client of a list."""


@dataclass(slots=True)
class ListsOfModel:
    """Lists of clients of which sealed totals were opened at one model, and its next ones.

    The authority and each officer enforce the same, over all sessions (`OpeningHistory`).
    """

    least: int
    """Least number of clients that any total, or sum and difference of totals, may be of."""
    most_lists: int = MOST_LISTS
    model: str = ""
    """Digest of the model; empty where nothing is sealed."""
    _lists: list[dict[str, Terms]] = field(default_factory=list)

    def at(self, model: str) -> None:
        """Begin a round at a model; the lists of another one are forgotten."""
        if model != self.model:
            self.model, self._lists = model, []

    def as_rows(self) -> tuple[List, ...]:
        """Return the lists as they are written down."""
        return tuple(
            tuple((name, of.times, of.since) for name, of in one.items()) for one in self._lists
        )

    def take_up(self, rows: Sequence[List]) -> None:
        """Take up lists that another session has written down."""
        self._lists = [{name: Terms(*of) for name, *of in one} for one in rows]

    def note(self, signers: Mapping[str, Terms]) -> bool:
        """Note the clients of a total that is about to be opened; returns whether they are new."""
        if len(signers) < self.least or self._known(signers):
            return False
        self._lists.append(dict(signers))
        return True

    def forget(self, signers: Mapping[str, Terms]) -> None:
        """Forget a list of which nothing was opened."""
        self._lists = [one for one in self._lists if one.keys() != signers.keys()]

    def allow(self, signers: Mapping[str, Terms]) -> bool:
        """Return True where totals of these clients show too few in no combination."""
        if not all(self._fits(*item) for item in signers.items()):
            return False
        return self._known(signers) or (
            len(self._lists) < self.most_lists and self._is_apart(frozenset(signers))
        )

    def again(self, present: Collection[str]) -> dict[str, Terms] | None:
        """Return the largest list all of whose clients are present; None where there is none."""
        known = [one for one in self._lists if one.keys() <= set(present)]
        return max(known, key=len, default=None)

    def chosen(
        self, present: Mapping[str, Terms], keep: Collection[str] = (), turn: int = 0
    ) -> list[str] | None:
        """Return as many of these clients as totals may be opened of; None where of no list.

        Args:
            present: clients to choose from, in order, with their terms in the round.
            keep: clients that are on the list, whoever is left out.
            turn: number by which the first one to be left out changes.
        """
        if not self._lists:
            return list(present)
        fitting = [name for name in present if self._fits(name, present[name])]
        again, found = self.again(fitting), None
        if len(self._lists) < self.most_lists and set(keep) <= set(fitting):
            found = next(self._others(fitting, keep, turn), None)
        if again is None or len(again) < len(found or ()) or not set(keep) <= again.keys():
            return found
        return [name for name in fitting if name in again]

    def missing(self, present: Collection[str]) -> list[str]:
        """Return who has to come back for a list that was opened: the fewest; none without one."""
        away = [[name for name in one if name not in present] for one in self._lists]
        return min(away, key=len, default=[])

    def _known(self, signers: Collection[str]) -> bool:
        return any(one.keys() == set(signers) for one in self._lists)

    def _fits(self, name: str, terms: Terms) -> bool:
        """Return True where a client would send the same as in all lists that it is on."""
        return all(one.get(name, terms) == terms for one in self._lists)

    def _is_apart(self, names: frozenset[str]) -> bool:
        lists = {frozenset(one) for one in self._lists}
        return not lists or len(fewest({*lists, names})) >= self.least

    def _others(
        self, names: Sequence[str], keep: Collection[str], turn: int
    ) -> Iterator[list[str]]:
        """Yield lists of these clients that may be opened beside those before, longest first.

        Clients that are on the same lists make no difference to each other.
        """
        alike = defaultdict[tuple[bool, ...], list[str]](list)
        start = turn % len(names) if names else 0
        for name in (*names[start:], *names[:start]):
            if name not in keep:
                alike[tuple(name in one for one in self._lists)].append(name)
        left_out = (
            picked
            for n_out in range(len(names) - self.least + 1)
            for picked in combinations_with_replacement(sorted(alike), n_out)
        )
        for picked in islice(left_out, MOST_TRIED):
            n_of = Counter(picked)
            if any(n > len(alike[group]) for group, n in n_of.items()):
                continue
            out = {name for group, n in n_of.items() for name in alike[group][:n]}
            if self._is_apart(frozenset(names) - out):
                yield [name for name in names if name not in out]


def next_list(
    lists: ListsOfModel, suspects: Suspects, present: Mapping[str, Terms], turn: int
) -> list[str] | None:
    """Return those of these clients whose totals may be opened next; None where of no list.

    Where suspects cannot come back at this model, the others move it first.
    """
    back = [client for client in suspects.back if client in present]
    listed = lists.chosen(present, back, turn)
    if listed is None and back:
        others = {client: of for client, of in present.items() if client not in back}
        listed = lists.chosen(others, turn=turn)
    return listed


def _halves(group: list[str]) -> list[list[str]]:
    half = len(group) // 2
    return [part for part in (group[:half], group[half:]) if part]
