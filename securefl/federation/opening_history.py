"""Totals and scores that an authority was asked for, over all runs and restarts, and of whom.

A second answer for one total would be a second equation about it; and a run begun anew without one
client, with the same seeds, would show that client's values as the difference of two totals. A
second score of one profile would have noise of its own, and both together show more of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from securefl.errors import OpeningRefused
from securefl.exchange.matching import SCORE

Asked = tuple[str, int, str]
"""Run, round and name of a total."""
Scored = tuple[str, int, str, list[str]]
"""Run and round of scores, `SCORE`, and the names of whose they are."""
Row = Asked | Scored | tuple[str, int, str, str, list[str]]
"""`Asked`, as a total was asked for; then, as it was released, with the digest of the settings and
the names of who was in it. `Scored`, before scores are decrypted."""


@dataclass(slots=True)
class History:
    """Grows by a row before anything is decrypted, and by one before a total is released."""

    settings: str = ""
    """Digest of the settings that all parties of this run share."""
    write: Callable[[Row], None] = lambda _row: None
    """Keeps a row for good; raises where it cannot. In a simulation nothing comes after."""
    _asked: set[Asked] = field(default_factory=set)
    _n_asked: Counter[str] = field(default_factory=Counter)
    _signers: defaultdict[Asked, list[tuple[str, frozenset[str]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By settings, round and name: of each run, who was in the total that was opened."""
    _scored: set[tuple[str, int, str]] = field(default_factory=set)
    """Run, round and client of each score that was opened."""

    def take_up(self, rows: Iterable[Row]) -> None:
        """Take up what was written before."""
        for row in rows:
            if len(row) == 3:
                self._note_asked(row)
            elif len(row) == 4:
                run, number, _, clients = row
                self._scored.update((run, number, client) for client in clients)
            else:
                run, number, name, settings, signers = row
                self._note((run, number, name), settings, frozenset(signers))

    def claim(self, asked: Asked) -> int:
        """Use up the one answer; how many totals were asked for in this run, this one included.

        Raises:
            OpeningRefused: it was asked for before.
        """
        if asked in self._asked:
            raise OpeningRefused("asked for once already: an answer is given once, a refusal, too")
        self.write(asked)
        self._note_asked(asked)
        return self._n_asked[asked[0]]

    def require_alike(self, asked: Asked, signers: Iterable[str], at_least: int) -> None:
        """Refuse a list of signers that is nearly one of another run of the same settings.

        Raises:
            OpeningRefused: it differs from one by fewer than `at_least` names.
        """
        run, number, name = asked
        here = frozenset(signers)
        for other, there in self._signers[self.settings, number, name]:
            if other != run and 0 < len(here ^ there) < at_least:
                raise OpeningRefused(
                    f"a run of the same settings has had this total of {_named(here ^ there)} "
                    f"more or less, and the difference would show their values (fewer than "
                    f"{at_least}): have the same clients take part, or begin with another run.seed"
                )

    def release(self, asked: Asked, signers: Iterable[str]) -> None:
        """Keep who is in a total that is about to be released."""
        here = frozenset(signers)
        self.write((*asked, self.settings, sorted(here)))
        self._note(asked, self.settings, here)

    def claim_scores(self, run: str, number: int, clients: Iterable[str]) -> None:
        """Use up the one score that each of these clients has in a round.

        Raises:
            OpeningRefused: one was opened before; then none is used up.
        """
        scores = {(run, number, client) for client in clients}
        if again := scores & self._scored:
            raise OpeningRefused(f"opened once already, of {_named(name for *_, name in again)}")
        self.write((run, number, SCORE, sorted(name for *_, name in scores)))
        self._scored |= scores

    def _note_asked(self, asked: Asked) -> None:
        self._asked.add(asked)
        self._n_asked[asked[0]] += 1

    def _note(self, asked: Asked, settings: str, signers: frozenset[str]) -> None:
        run, number, name = asked
        self._signers[settings, number, name].append((run, signers))


def _named(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))[:200]
