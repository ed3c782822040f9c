"""Verdict on gradient inversion: what sealing BN's statistics, or all, keeps from attackers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from securefl.audit.inversion.hidden_statistics import Hidden, HiddenStatistics
from securefl.audit.rules import (
    MORE_NOISE,
    NOT_MEASURED,
    Rule,
    Verdict,
    always,
    decided,
    unmeasured,
)

ORDER = (Verdict.OPEN, Verdict.HOLDS, Verdict.WEAK, Verdict.LEAKS)
"""Verdicts from the best to the worst, of those that a section unites."""


def _costs(found: HiddenStatistics, rest: str) -> str:
    return f"Hiding the statistics costs attackers something, and {found.noun} are {rest}"


def _still(found: HiddenStatistics) -> str:
    return _costs(found, "still rebuilt, or may be, better than a guess from the label")


_UNMEASURED: Rule[HiddenStatistics] = unmeasured(lambda found: found.numbers)
STATISTICS_SEALED: tuple[Rule[HiddenStatistics], ...] = (
    _UNMEASURED,
    Rule(
        Verdict.LEAKS,
        lambda found: found.adaptive_gain.low > 0 and not found.protects,
        "who lacks the statistics rebuilds samples for certain better than a guess from the label, "
        "and lacking them costs nothing for certain",
        lambda found: (
            "Sealing the statistics is no protection: who reads a client's gradient could rebuild "
            f"its {found.noun} without them as well"
        ),
        do='Set exchange.encrypt = "model".',
    ),
    Rule(
        Verdict.WEAK,
        lambda found: found.adaptive_gain.low > 0,
        "the same, but lacking them costs every attacker something for certain",
        _still,
        do='Set exchange.encrypt = "model".',
    ),
    Rule(
        Verdict.OPEN,
        lambda found: not found.protects,
        "lacking them costs nothing for certain",
        lambda _: (
            "No protection is shown, and nobody without the statistics does better for certain "
            "than a guess from the label"
        ),
    ),
    Rule(
        Verdict.OPEN,
        lambda found: found.exact_gain.low <= 0,
        "not even who has them does better for certain than the guess",
        lambda found: _costs(found, "not rebuilt for certain even with them"),
    ),
    Rule(
        Verdict.WEAK,
        lambda found: found.adaptive_gain.value > 0,
        "who lacks them does better than the guess, though not for certain",
        _still,
        do='Set exchange.encrypt = "model".',
    ),
    Rule(
        Verdict.HOLDS,
        always,
        "who lacks them does no better than the guess",
        lambda found: _costs(found, "not rebuilt better than a guess from the label"),
    ),
)
"""Rules of a run that seals the statistics alone."""


def if_sealed(found: HiddenStatistics) -> str:
    """Return what sealing the statistics alone would come to, in words."""
    if not found.there:
        rebuilt = f"Who reads a client's gradient could rebuild its {found.noun}"
        guess = f"Nobody rebuilds {found.noun} for certain better than a guess from the label"
        return rebuilt if found.rebuilt else guess
    return decided(STATISTICS_SEALED, found)[1]


def if_nothing_is_sealed(found: HiddenStatistics) -> str:
    """Return what reading all comes to, in words; nothing where there are no statistics to read."""
    if not found.there:
        return if_sealed(found)
    if found.rebuilt:
        return f"Who reads a client's gradient and statistics could rebuild its {found.noun}"
    return (
        f"Nobody rebuilds {found.noun} for certain better than a guess from the label, statistics "
        "or not"
    )


NOTHING_SEALED: tuple[Rule[HiddenStatistics], ...] = (
    _UNMEASURED,
    Rule(
        Verdict.LEAKS,
        lambda found: found.rebuilt,
        "somebody rebuilds samples for certain better than a guess from the label",
        if_nothing_is_sealed,
        do=f'Set exchange.encrypt = "model". Or: {MORE_NOISE}',
    ),
    Rule(Verdict.OPEN, always, "nobody does", if_nothing_is_sealed),
)
"""Rules of a run that seals neither statistics nor updates."""


@final
@dataclass(frozen=True, slots=True)
class SumsFound:
    """Results of attacks on sums of all updates: what the rules go by."""

    noun: str
    """Plural of a sample's name."""
    own: str
    """Shape of the run's own rounds."""
    tried: bool
    """True where an attack could be tried on a sum as the run opens."""
    rebuilt: bool
    """True where one did better for certain than a guess from the labels."""
    recovered: float
    """Share of samples that came back clearly, by the best of them."""
    tried_smaller: bool
    """True where an attack could be tried on another sum, of fewer samples."""
    smaller: tuple[str, ...]
    """Shapes of other sums, of fewer samples, for which one did."""
    slight: bool
    """True where what one gained on a sum as the run opens is next to nothing."""
    smaller_telling: tuple[str, ...]
    """Shapes of those of `smaller` for which one gained more than next to nothing."""


_ALL = "Nobody received a single client's update, and all parties the sum of all of a round."


def of_smaller(found: SumsFound) -> str:
    """Return what sums that are smaller than the run's own gave away: a trial, not this run."""
    if not found.tried_smaller:
        return "These attacks could be tried on no smaller sum"
    if not found.smaller:
        return "Smaller sums gave nothing away"
    if found.smaller_telling:
        return (
            f"From smaller sums {found.noun} were rebuilt better than a guess from the labels, the "
            f"largest of {found.smaller_telling[-1]}"
        )
    return (
        f"From smaller sums, the largest of {found.smaller[-1]}, attacks came nearer to "
        f"{found.noun} than a guess from the labels by next to nothing, and none came back clearly"
    )


def _of_own(found: SumsFound) -> str:
    if found.slight:
        return (
            f"{_ALL} From such a sum ({found.own}) attacks come nearer to {found.noun} than a "
            "guess from the labels by next to nothing, and none comes back clearly"
        )
    return (
        f"{_ALL} From such a sum ({found.own}) {found.noun} are rebuilt better than a guess from "
        f"the labels, {found.recovered:.0%} of them clearly"
    )


_LARGER_SUMS = (
    "Have larger batches (train.batch_size) or more local steps (algorithm.local_steps). "
    f"Or: {MORE_NOISE}"
)


UPDATES_SEALED: tuple[Rule[SumsFound], ...] = (
    Rule(
        Verdict.LEAKS,
        lambda found: found.rebuilt,
        "from a sum as large as the run's own samples are rebuilt for certain better than a guess "
        "from the labels",
        _of_own,
        do=_LARGER_SUMS,
    ),
    Rule(
        Verdict.HOLDS,
        lambda found: found.tried,
        "from a sum as large as the run's own they are not",
        lambda found: (
            f"{_ALL} From such a sum ({found.own}) no {found.noun} were rebuilt for certain better "
            "than a guess from the labels"
        ),
    ),
    Rule(
        Verdict.WEAK,
        lambda found: bool(found.smaller),
        "a sum as large as the run's own is beyond these attacks, and from smaller ones samples "
        "are rebuilt",
        lambda found: (
            f"{_ALL} One of this run ({found.own}) is too large for these attacks, which is no "
            "proof, since smaller ones gave something away"
            f"{'' if found.smaller_telling else ', if next to nothing'}"
        ),
        do=_LARGER_SUMS,
    ),
    Rule(
        Verdict.OPEN,
        lambda found: not found.tried_smaller,
        "these attacks could be tried on no sum",
        lambda found: (
            f"{NOT_MEASURED} all parties received the sum of all updates of a round ({found.own}), "
            "and these attacks could be tried neither on such a sum nor on a smaller one"
        ),
        do=(
            "This section says nothing, good or bad. A full audit (--full) tries larger sums; what "
            "cannot be measured stands in the assessment as not known."
        ),
    ),
    Rule(
        Verdict.OPEN,
        always,
        "none of these",
        lambda found: (
            f"{_ALL} These attacks could not be tried on one of this run ({found.own}), and "
            "smaller ones gave nothing away"
        ),
    ),
)
"""Rules of a run of which nobody reads single clients' updates, but all read their sums."""
RULES: Mapping[Hidden, tuple[Rule[HiddenStatistics], ...]] = {
    Hidden.STATISTICS: STATISTICS_SEALED,
    Hidden.NOTHING: NOTHING_SEALED,
    Hidden.UPDATES: NOTHING_SEALED,
}


def united(
    found: Sequence[tuple[Verdict, str, str]],
) -> tuple[Verdict, str]:
    """Return the verdict of a section on several comparisons, the worst, and what to do."""
    verdict, _, do = max(found, key=lambda one: ORDER.index(one[0]))
    return verdict, do
