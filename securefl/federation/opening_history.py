"""Record of the totals and scores that an authority was asked for, over all runs and restarts.

A second answer for one total would be a second equation about it; and a run begun anew without one
client, with the same seeds, would show that client's values as the difference of two totals. So
would three totals of other groups, added up, one in which a client counts twice, and two of one
round where one message follows from the other: SCAFFOLD's control variate from the parameters,
FedTAN's gradients from the update of one step, the statistics of its end from those of its middle.
So would totals of two rounds at one model, as after a round that passed: a client that draws
nothing sends the same in both; and of columns, whose sums are the same at any model, totals of any
two rounds. A second score of one profile would have noise of its own, and both
together show more of it; so would a second total of clients that add noise together.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from securefl.algorithms.standardisation import COLUMN_SUMS
from securefl.errors import OpeningRefused
from securefl.exchange.profile_match import SCORE
from securefl.federation.message import SCORE_MEAN
from securefl.federation.total import Terms

TotalId = tuple[str, int, str]
"""Run, round and name of a total."""
ScoresRow = tuple[str, int, str, str, str, list[str]]
"""Run and round of scores, `SCORE`, digests of the settings and of what the profiles were made
under, and the names of their clients."""
OldScoresRow = tuple[str, int, str, list[str]]
"""Row of scores without digests, of older releases."""
ReleaseRow = tuple[str, int, str, str, list[tuple[str, int, int]] | list[str]]
"""Run, round and name of a total, digest of the settings, and its clients: the name of each, how
often it counted, and the round that it went on from. Older releases kept the names alone."""
ModelRow = tuple[str, int, str, str, list[tuple[str, int, int]], str, bool]
"""The same with the digest of the model that the round began with, and whether the authority has
refused the total after it was decrypted: it has shown none of its values."""
Row = TotalId | ScoresRow | OldScoresRow | ReleaseRow | ModelRow
"""Row of the record: a `TotalId` before a total is asked for, a `ModelRow` before it is decrypted,
and again where it is refused then, a `ScoresRow` before scores are decrypted."""
MOST_LISTS = 4
"""Most lists of clients of a round's totals, over all runs of the same settings, and of all totals
at one model, whatever the settings are."""
MOST_SESSIONS = 8
"""Most runs of the same settings in which a client's score of one round is opened, or, where noise
hides clients, a round's totals; and most runs in which those at one model are."""
_ROUND = "round"
"""Name for all totals of a round."""


@dataclass(slots=True)
class OpeningHistory:
    """Record of openings: a row before each decryption, and one before a total is released."""

    settings: str = ""
    """SHA-256, in hex, of the settings that all parties of this run share."""
    write: Callable[[Row], None] = lambda _row: None
    """Function that keeps a row for good, or raises; a simulation keeps none."""
    _asked: set[TotalId] = field(default_factory=set)
    _n_asked: Counter[str] = field(default_factory=Counter)
    _signers: defaultdict[TotalId, list[tuple[str, Mapping[str, Terms | None]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Run and clients of each list that a total was opened of, by settings, round and name."""
    _same: "defaultdict[tuple[str, str], dict[tuple[str, int], _Opened]]" = field(
        default_factory=lambda: defaultdict(dict)
    )
    """Totals of each run and round, by `_same_where` and name."""
    _scored: set[tuple[str, int, str]] = field(default_factory=set)
    """Run, round and client of each score that was opened."""
    _n_scored: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    """Number of runs that had a client's score opened, by settings, round and client."""
    _profiled: dict[tuple[str, int], str] = field(default_factory=dict)
    """Digest of the model that profiles were made under, by run and round."""

    def take_up(self, rows: Iterable[Row]) -> None:
        """Restore the record from its rows."""
        for row in rows:
            if len(row) == 3:
                self._note_asked(row)
            elif len(row) == 4:
                run, number, _, clients = row
                self._note_scored((run, number), "", clients)
            elif len(row) == 6:
                run, number, _, settings, state, clients = row
                self._note_scored((run, number), settings, clients)
                self._profiled[run, number] = state
            elif len(row) == 5:
                run, number, name, settings, signers = row
                known = [
                    (s, None) if isinstance(s, str) else (s[0], Terms(*s[1:])) for s in signers
                ]
                self._note((run, number, name), settings, dict(known))
            else:
                run, number, name, settings, listed, model, refused = row
                asked, terms = (run, number, name), {s[0]: Terms(*s[1:]) for s in listed}
                where = _same_where(name, settings, model)
                if refused:
                    self._forget(asked, where)
                else:
                    self._note(asked, settings, terms)
                    self._note_at(where, asked, terms)

    def claim(self, asked: TotalId) -> None:
        """Use up the one answer for a total.

        Raises:
            OpeningRefused: this total was asked for before.
        """
        if asked in self._asked:
            raise OpeningRefused("asked for once already: an answer is given once, a refusal, too")
        self.write(asked)
        self._note_asked(asked)

    def n_asked(self, run: str) -> int:
        """Return the number of totals that were asked for in a run."""
        return self._n_asked.get(run, 0)

    def require_alike(
        self,
        asked: TotalId,
        signers: Mapping[str, Terms],
        at_least: int,
        most_lists: int = MOST_LISTS,
        model: str = "",
    ) -> None:
        """Refuse a total that would show too few clients, together with others.

        Runs of the same settings may repeat what clients draw, rounds at one model, too, where they
        draw nothing, and one message of a round may follow from another. So totals of the same
        round, all at the same model, and all of columns, are held against each other as if each
        client had sent the same values in all of them.

        Raises:
            OpeningRefused: a client's terms are others; or some sum and difference of these totals
                is of fewer than `at_least` clients; or there are more than `most_lists` lists; or
                another total of this round was of other clients.
        """
        run, _, name = asked
        there_too, way_out = "at this model", "begin with another run.seed"
        if name in COLUMN_SUMS:  # which no seed changes
            there_too, way_out = "of the same columns", "set samples.standardise = false"
        way_out = f"have the same clients take part, or {way_out}"
        of_round = self._of_round(asked)
        if any(other == run and of.keys() != signers.keys() for other, of in of_round):
            raise OpeningRefused(
                "another total of this round was of other clients, and what one sends in both may "
                "be the same: a round's totals are of the same clients"
            )
        others = [of for other, of in of_round if other != run]
        others += [of.signers for of in self._others_at(model, asked).values()]
        for there in others:
            if changed := [who for who in signers if there.get(who) not in {None, signers[who]}]:
                raise OpeningRefused(
                    "totals of this round were opened in a run of the same settings, or "
                    f"{there_too}, and in them {_named(changed)} counted another number of times, "
                    "or went on from another round; the difference would show their values: "
                    f"{way_out}"
                )
        lists = {frozenset(signers), *(frozenset(there) for there in others)}
        if len(lists) == 1:
            return
        before = (
            "totals of this round were opened of other clients in runs of the same settings, or "
            f"{there_too}"
        )
        if len(lists) > most_lists:
            raise OpeningRefused(
                f"{before}, and {most_lists} list{'s' * (most_lists > 1)} at most may be opened: "
                f"{way_out}"
            )
        shown = fewest(lists)
        if len(shown) < at_least:
            raise OpeningRefused(
                f"{before}, and their sums and differences would show the values of "
                f"{_named(shown)} (fewer than {at_least}): {way_out}"
            )

    def require_sessions_left(self, asked: TotalId, model: str, most: int) -> None:
        """Refuse a total whose noise could be averaged away over sessions.

        Raises:
            OpeningRefused: totals of this round, or at this model, were opened in `most` other runs
                of the same settings.
        """
        runs = {other for other, _ in self._of_round(asked)}
        runs |= {other for other, _ in self._others_at(model, asked)}
        if len(runs - {asked[0]}) >= most:
            raise OpeningRefused(
                f"totals of this round, or at this model, were opened in {most} runs of the same "
                "settings, and the mean over more would have less noise than the privacy that "
                "they state: begin with another run.seed"
            )

    def release(self, asked: TotalId, signers: Mapping[str, Terms], model: str = "") -> None:
        """Keep the clients of a total that is about to be decrypted."""
        self.write(self._row(asked, signers, model, refused=False))
        self._note(asked, self.settings, signers)
        self._note_at(_same_where(asked[2], self.settings, model), asked, signers)

    def refuse(self, asked: TotalId, signers: Mapping[str, Terms], model: str = "") -> None:
        """Keep that a total was refused after it was decrypted, so that nobody has seen its values.

        Others at this model may then be of other clients; those of its round, in other runs, not.
        """
        self.write(self._row(asked, signers, model, refused=True))
        self._forget(asked, _same_where(asked[2], self.settings, model))

    def _row(
        self, asked: TotalId, signers: Mapping[str, Terms], model: str, *, refused: bool
    ) -> ModelRow:
        listed = [(name, of.times, of.since) for name, of in sorted(signers.items())]
        return (*asked, self.settings, listed, model, refused)

    def claim_scores(
        self,
        run: str,
        number: int,
        state: str,
        clients: Collection[str],
        most_sessions: int = MOST_SESSIONS,
    ) -> None:
        """Use up the one score that each of these clients has in a round, under one model.

        Raises:
            OpeningRefused: a score was opened before, or in `most_sessions` runs of the same
                settings, or others of this round were of profiles under another model; then none is
                used up.
        """
        if again := [name for name in clients if (run, number, name) in self._scored]:
            raise OpeningRefused(f"opened once already, of {_named(again)}")
        if self._profiled.get((run, number), state) != state:
            raise OpeningRefused("other profiles of this round were made under another model")
        counted = self._n_scored
        if often := [c for c in clients if counted[self.settings, number, c] >= most_sessions]:
            raise OpeningRefused(
                f"opened in {most_sessions} runs of the same settings, of {_named(often)}: begin "
                "with another run.seed"
            )
        self.write((run, number, SCORE, self.settings, state, sorted(clients)))
        self._note_scored((run, number), self.settings, clients)
        self._profiled[run, number] = state

    def _note_scored(self, about: tuple[str, int], settings: str, clients: Iterable[str]) -> None:
        run, number = about
        for client in clients:
            self._scored.add((run, number, client))
            self._n_scored[settings, number, client] += 1

    def _note_asked(self, asked: TotalId) -> None:
        self._asked.add(asked)
        self._n_asked[asked[0]] += 1

    def _note(self, asked: TotalId, settings: str, signers: Mapping[str, Terms | None]) -> None:
        run, number, name = asked
        known, total = self._signers[settings, number, _one_of(name)], (run, dict(signers))
        if total not in known:
            known.append(total)

    def _note_at(self, where: Iterable[str], asked: TotalId, signers: Mapping[str, Terms]) -> None:
        run, number, name = asked
        for each in where:
            known = self._same[each, _one_of(name)]
            known.setdefault((run, number), _Opened(dict(signers))).names.add(name)

    def _forget(self, asked: TotalId, where: Iterable[str]) -> None:
        run, number, name = asked
        for each in where:
            known = self._same.get((each, _one_of(name)), {})
            if of := known.get((run, number)):
                of.names.discard(name)
                if not of.names:
                    del known[run, number]

    def _of_round(self, asked: TotalId) -> list[tuple[str, Mapping[str, Terms | None]]]:
        """Return run and clients of each list of this round, in all runs of these settings."""
        _, number, name = asked
        return self._signers.get((self.settings, number, _one_of(name)), [])

    def _others_at(self, model: str, asked: TotalId) -> "dict[tuple[str, int], _Opened]":
        """Return what was opened of the same values in other rounds, runs and settings."""
        run, number, name = asked
        known = dict[tuple[str, int], _Opened]()
        for each in _same_where(name, self.settings, model):
            known |= self._same.get((each, _one_of(name)), {})
        known.pop((run, number), None)
        return known


@dataclass(slots=True)
class _Opened:
    """Totals of one round that were opened at a model; all are of the same clients."""

    signers: Mapping[str, Terms]
    names: set[str] = field(default_factory=set)


def _same_where(name: str, settings: str, model: str) -> list[str]:
    """Return names of all totals in which a client may send the same values as in this one.

    Those at one model, whatever the settings are; and of columns, all of the same settings.
    """
    columns = [f"columns of {settings}"] if name in COLUMN_SUMS else []
    return [model, *columns] if model else columns


def _one_of(name: str) -> str:
    """Return the name that a total is held against others under."""
    return name if name == SCORE_MEAN else _ROUND


def fewest(lists: Collection[frozenset[str]]) -> list[str]:
    """Return the fewest clients that some combination of these lists' totals is of.

    One that leaves the fewest is zero at clients whose columns span all but one dimension. So its
    coefficients are minors of a matrix of zeros and ones, which up to 3 by 3 are 2 at most.
    """
    names = sorted(frozenset[str]().union(*lists))
    list_client = np.array([[name in of for name in names] for of in lists], dtype=int)
    # All of them: with at most four lists there are 5^4.
    combinations = np.array(list(product(range(-2, 3), repeat=len(lists))))
    left = combinations @ list_client != 0
    n_left = left.sum(axis=1)
    found = left[np.where(n_left > 0, n_left, len(names) + 1).argmin()]
    return [name for name, is_left in zip(names, found, strict=True) if is_left]


def _named(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))[:200]
