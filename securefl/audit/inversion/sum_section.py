"""Sums of all updates in the section on gradient inversion: which are tried, and their words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from securefl.audit.findings import Number
from securefl.audit.inversion.opened_total import OpenedRound, RoundShape
from securefl.audit.inversion.sample_kind import SampleKind
from securefl.audit.inversion.sum_attacks import AttackedSums, SumAttacker, SumEffort, attacked_sums
from securefl.audit.inversion.verdict import SumsFound
from securefl.io.html import PageTable

CLIENTS = (3, 5, 10)
"""Numbers of clients in the small sums that are tried beside the run's own."""
MOST_STEPS = 20
"""Local steps up to which small sums are tried with as many as the run's."""
MOST_GRADIENTS = 2000
"""Number of clients' gradients that sums of one shape are made of at most."""
NONE_TRIED = "none could be tried"
"""Words in the place of attacks on a sum."""
METHODS = {
    SumAttacker.FIRST_LAYER: "inputs of units of the first layer, or of pairs, that one sample "
    "alone was on for, where the model says that it would have had this gradient",
    SumAttacker.MATCHING: "gradient matching of all samples in the sum, as of one mini-batch",
}
NOTES = (
    (
        "Of sums the attackers know the model before the round, the numbers of clients, steps and "
        "samples, all labels, and public samples. Clients weigh the same, and take plain steps of "
        "SGD at the run's learning rate, with mini-batches drawn anew for each sum. With more "
        "clients than the run's, several share what one of these has."
    ),
    (
        "Gradient matching is of sums of few samples alone, and of models that are not too large "
        "for it. What single units show needs statistics that are constants: where BN normalises "
        "samples together, none has a unit to itself."
    ),
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class SumsTried:
    """Attacks on sums of a run's own rounds, and on smaller ones."""

    own: AttackedSums | None
    """None where the run's rounds are too large to be played."""
    small: Sequence[AttackedSums]
    shape: RoundShape
    """Shape of the run's own rounds."""

    def each(self) -> Iterator[AttackedSums]:
        """Yield all, the run's own last."""
        yield from self.small
        if self.own:
            yield self.own

    def found(self, noun: str) -> SumsFound:
        """Return what the rules go by."""
        rebuilt = [one for one in self.small if one.is_rebuilt]
        return SumsFound(
            noun,
            str(self.shape),
            tried=bool(self.own and self.own.by),
            rebuilt=bool(self.own and self.own.is_rebuilt),
            recovered=max(map(self.own.recovered, self.own.by.values()), default=0.0)
            if self.own
            else 0.0,
            tried_smaller=any(one.by for one in self.small),
            smaller=tuple(str(one.shape) for one in rebuilt),
            slight=bool(self.own and self.own.is_slight),
            smaller_telling=tuple(str(one.shape) for one in rebuilt if not one.is_slight),
        )


def tried_sums(opened: OpenedRound, effort: SumEffort, seed: int) -> SumsTried:
    """Attack sums of the run's own rounds, and of 3, 5 and 10 clients with the least mini-batches.

    Small sums are of one step and of the run's own number of steps.

    Raises:
        DataError: samples of no kind that is rebuilt.
    """
    own = opened.shape
    steps = dict.fromkeys((1, own.steps if own.steps <= MOST_STEPS else 1))
    shapes = [RoundShape(n, e, opened.least) for e in steps for n in CLIENTS]
    shapes.append(RoundShape(own.clients, 1, own.batch))
    shapes = [s for s in dict.fromkeys(shapes) if s != own and opened.fits(s)]

    def attacked(shape: RoundShape) -> AttackedSums | None:
        n = min(effort.sums, MOST_GRADIENTS // (shape.clients * shape.steps))
        return attacked_sums(opened, shape, n, effort, seed) if n > 1 else None

    small = [one for one in map(attacked, shapes) if one]
    return SumsTried(attacked(own) if opened.fits(own) else None, small, own)


def sum_numbers(tried: SumsTried, seed: int) -> Iterator[Number]:
    """Yield each attack's measure, and its gain over the guess from the labels."""
    for one in tried.each():
        kind, over = one.kind, f"sum of {one.shape}"
        about = f"{kind.middle} and 95 % interval over sums of {one.n_samples} {kind.noun}"
        for name, row, method in (
            ("no information", one.nothing, "the mean public sample"),
            ("baseline", one.baseline, "the guess from the labels"),
            *((name.value, row, METHODS[name]) for name, row in one.by.items()),
        ):
            measure = one.average(row)
            named = f"{over}: {kind.measure}, {name}"
            yield Number.of(named, measure, f"{method}; {about}", seed, kind.unit)
        for name, found in one.gains().items():
            named = f"{over}: gain over baseline, {name}"
            yield Number.of(named, found, f"{METHODS[name]}; {about}; paired", seed, kind.unit)
            share = one.recovered(one.by[name])
            clear = f"share of {kind.noun} that come back clearly, {kind.measure} {kind.bound}"
            yield Number(f"{over}: recovered, {name}", share, clear, seed, unit="%")


def sum_table(tried: SumsTried, kind: SampleKind) -> PageTable:
    """Return a row for each attack on each sum; in red those that do better than the guess."""
    rows, alarming = list[tuple[str, ...]](), set[int]()
    for one in tried.each():
        about = f"{one.shape} ({'this run' if one is tried.own else 'trial'})"
        guesses = [kind.shown(one.average(row)) for row in (one.baseline, one.nothing)]
        last = (*guesses, f"{one.n_samples:,}")
        gains = one.gains()
        for name, row in one.by.items():
            if gains[name].low > 0:
                alarming.add(len(rows))
            found = (kind.shown(gains[name]), f"{one.recovered(row):.0%}", name.value)
            rows.append((about, *found, kind.shown(one.average(row)), *last))
        if not one.by:
            rows.append((about, NONE_TRIED, "", "", "", *last))
    if not rows:
        rows.append((f"{tried.shape} (this run)", NONE_TRIED, *[""] * 6))
    columns = (
        *("sum of", f"gain over the guess, {kind.unit}", "recovered", "attack"),
        *(f"{kind.measure}, {kind.unit}", "the guess", "no information", f"{kind.noun} in it"),
    )
    title = "Sums of all clients' updates: this run's, and trials"
    if tried.small and not tried.own:
        title = "Trial: sums of all clients' updates"
    return PageTable(title, columns, rows, frozenset(alarming))


def figures(*tried: AttackedSums | None) -> str:
    """Return the best attack on each of these sums that was rebuilt from; on all, where none was.

    With the guess, and how many samples came back clearly; empty where no attack could be tried.
    """
    said, every = list[str](), [one for one in tried if one]
    telling = [one for one in every if one.is_rebuilt]
    for one in telling or every:
        name = one.surest
        if name:
            row, kind = one.by[name], one.kind
            best, guess = (kind.told(one.average(r).value) for r in (row, one.baseline))
            back = f"recovered {one.recovered(row) * row.score_NB.size:.0f} of {row.score_NB.size}"
            said.append(f"{one.shape}: {best}, {guess} guessed, {back}")
    return f" ({'; '.join(said)})" if said else ""
