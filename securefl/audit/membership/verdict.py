"""Verdict on membership: whether an attack is found, and whether it is strong.

An attack is found where its AUC or its true positive rate at 1 % false positives has a probability
of less than 5 % under chance, divided by the number of all such tests (Bonferroni). It is strong
with an AUC of 0.7 or more, or where it recognises a tenth of the members at 1 % false positives
(ten times chance), by the lower end of the interval.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from securefl.audit.rules import (
    MORE_NOISE,
    Rule,
    Verdict,
    always,
    counted,
    unmeasured,
)
from securefl.audit.statistics import Interval, Roc, least_visible_area
from securefl.audit.thresholds import (
    ALARM,
    CONFIDENCE,
    FEWEST_RECORDS,
    SAID_AREA,
    SAID_RATE,
    SLIGHT_AREA,
    SLIGHT_RATE,
    STRONG_AREA,
    STRONG_RATE,
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class MeasuredAttack:
    """Result of one attack on the records that are compared."""

    name: str
    observer: str
    """Party that can do this."""
    method: str
    roc: Roc
    area: Interval
    rate: Interval | None
    """True positive rate at 1 % false positives; None where there are too few non-members."""
    p_value: float
    """Least probability under chance of the attack's tests."""
    another_run: bool = False
    """True where it was tried on another run of the same settings."""

    @property
    def strong(self) -> bool:
        """True where what it finds is more than slight."""
        return self.area.low >= STRONG_AREA or bool(self.rate and self.rate.low >= STRONG_RATE)

    @property
    def slight(self) -> bool:
        """True where no number of it is far from chance."""
        by_rate = self.rate is None or self.rate.low <= SLIGHT_RATE
        return self.area.value <= SLIGHT_AREA and by_rate


@final
@dataclass(frozen=True, slots=True)
class Compared:
    """Results of all attacks: what the rules go by."""

    attacks: Sequence[MeasuredAttack]
    members: int
    others: int
    probability: float
    """Probability under chance below which an attack is found."""

    @property
    def alarmed(self) -> Sequence[MeasuredAttack]:
        """Attacks that are found."""
        return [each for each in self.attacks if each.p_value < self.probability]

    @property
    def best(self) -> MeasuredAttack:
        """Attack that chance explains least; among strong ones where one of those is found.

        One on this very run comes before one on another run of the same settings.
        """
        strong = [each for each in self.alarmed if each.strong]
        return min(
            strong or self.alarmed or self.attacks,
            key=lambda each: (each.another_run, each.p_value, -each.area.value),
        )

    @property
    def numbers(self) -> Iterator[float]:
        """Numbers that decide."""
        for each in self.attacks:
            yield from (each.p_value, each.area.value, each.area.low)
            yield from (each.rate.value, each.rate.low) if each.rate else ()


ON_ANOTHER_RUN = "here tried on the run played again, which is another one of the same settings"
"""Clause on an attack whose models are of another run."""


def _holds(found: Compared) -> str:
    visible = least_visible_area(found.members, found.others, found.probability)
    return (
        f"None of {counted(len(found.attacks), 'attack')} told training records from others better "
        f"than by chance. An attack that picks the training record out of two in {visible:.1%} of "
        f"the cases (50 % is guessing) would have been noticed with these {found.members} and "
        f"{found.others} records, in {CONFIDENCE:.0%} of audits; a weaker one may have been missed."
    )


def _told(how: str, best: MeasuredAttack) -> str:
    shown = []
    if best.area.low >= SAID_AREA:
        shown.append(
            f"picks the training record out of two in {best.area.in_percent()} of the cases (50 % "
            "is guessing)"
        )
    if best.rate and best.rate.low > SAID_RATE:
        shown.append(
            f"recognises {best.rate.in_percent()} of the training records while it is wrong "
            "about one other record in a hundred (1 % is guessing)"
        )
    found = ". It ".join(shown) or "does so by too little to say it in a number"
    tried = f", {ON_ANOTHER_RUN}" if best.another_run else ""
    return (
        f"Who has seen enough can tell {how} which records were trained on. The attack "
        f"{best.name!r}, open to {best.observer}{tried}, {found}."
    )


RULES: tuple[Rule[Compared], ...] = (
    unmeasured(lambda found: found.numbers),
    Rule(
        Verdict.OPEN,
        lambda found: min(found.members, found.others) < FEWEST_RECORDS,
        f"fewer than {FEWEST_RECORDS} training or test records can be compared",
        lambda found: (
            f"Only {found.members} training and {found.others} test records could be compared."
        ),
        do="Compare more records: a larger test set, or all clients.",
    ),
    Rule(
        Verdict.HOLDS,
        lambda found: not found.alarmed,
        f"no attack is found: each is likelier than {100 * ALARM:g} % under chance, over all tests "
        f"together; it says which AUC would have been found in {CONFIDENCE:.0%} of audits",
        _holds,
    ),
    Rule(
        Verdict.LEAKS,
        lambda found: any(each.strong for each in found.alarmed),
        f"an attack that is found has an AUC of {STRONG_AREA} or more, or a TPR of "
        f"{100 * STRONG_RATE:g} % at 1 % FPR, by the lower end of its interval",
        lambda found: _told("clearly", found.best),
        do=MORE_NOISE,
    ),
    Rule(
        Verdict.WEAK,
        always,
        "an attack is found",
        lambda found: _told(
            f"{'slightly ' if found.best.slight else ''}better than by chance", found.best
        ),
        do=MORE_NOISE,
    ),
)
