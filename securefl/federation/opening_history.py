"""Record of the totals and scores that an authority was asked for, over all runs and restarts.

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

TotalId = tuple[str, int, str]
"""Run, round and name of a total."""
ScoresRow = tuple[str, int, str, list[str]]
"""Run and round of scores, `SCORE`, and the names of their clients."""
ReleaseRow = tuple[str, int, str, str, list[str]]
"""Run, round and name of a total, digest of the settings, and the names of its clients."""
Row = TotalId | ScoresRow | ReleaseRow
"""Row of the record: a `TotalId` before a total is decrypted, a `ReleaseRow` before it is released,
a `ScoresRow` before scores are decrypted."""


@dataclass(slots=True)
class OpeningHistory:
    """Record of openings: a row before each decryption, and one before a total is released."""

    settings: str = ""
    """SHA-256, in hex, of the settings that all parties of this run share."""
    write: Callable[[Row], None] = lambda _row: None
    """Function that keeps a row for good, or raises; a simulation keeps none."""
    _asked: set[TotalId] = field(default_factory=set)
    _n_asked: Counter[str] = field(default_factory=Counter)
    _signers: defaultdict[TotalId, list[tuple[str, frozenset[str]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Run and clients of each total that was opened, by settings, round and name."""
    _scored: set[tuple[str, int, str]] = field(default_factory=set)
    """Run, round and client of each score that was opened."""

    def take_up(self, rows: Iterable[Row]) -> None:
        """Restore the record from its rows."""
        for row in rows:
            if len(row) == 3:
                self._note_asked(row)
            elif len(row) == 4:
                run, number, _, clients = row
                self._scored.update((run, number, client) for client in clients)
            else:
                run, number, name, settings, signers = row
                self._note((run, number, name), settings, frozenset(signers))

    def claim(self, asked: TotalId) -> int:
        """Use up the one answer for a total; returns the number of totals asked for in its run.

        Raises:
            OpeningRefused: this total was asked for before.
        """
        if asked in self._asked:
            raise OpeningRefused("asked for once already: an answer is given once, a refusal, too")
        self.write(asked)
        self._note_asked(asked)
        return self._n_asked[asked[0]]

    def require_alike(self, asked: TotalId, signers: Iterable[str], at_least: int) -> None:
        """Refuse a list of signers that is nearly one of another run of the same settings.

        Raises:
            OpeningRefused: the lists differ by fewer than `at_least` names.
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

    def release(self, asked: TotalId, signers: Iterable[str]) -> None:
        """Keep the clients of a total that is about to be released."""
        here = frozenset(signers)
        self.write((*asked, self.settings, sorted(here)))
        self._note(asked, self.settings, here)

    def claim_scores(self, run: str, number: int, clients: Iterable[str]) -> None:
        """Use up the one score that each of these clients has in a round.

        Raises:
            OpeningRefused: a score was opened before; then none is used up.
        """
        scores = {(run, number, client) for client in clients}
        if again := scores & self._scored:
            raise OpeningRefused(f"opened once already, of {_named(name for *_, name in again)}")
        self.write((run, number, SCORE, sorted(name for *_, name in scores)))
        self._scored |= scores

    def _note_asked(self, asked: TotalId) -> None:
        self._asked.add(asked)
        self._n_asked[asked[0]] += 1

    def _note(self, asked: TotalId, settings: str, signers: frozenset[str]) -> None:
        run, number, name = asked
        self._signers[settings, number, name].append((run, signers))


def _named(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))[:200]
